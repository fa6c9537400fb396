# Latency against the number of calls, a panel for each model. Set by the caller: models, windows, target, what.
rows = words(models) > 1 ? 2 : 1
set terminal pngcairo size rows > 1 ? 1400 : 1000, rows > 1 ? 1000 : 650
set multiplot layout rows, rows title what font ",14" margins 0.075, 0.98, rows > 1 ? 0.065 : 0.10, 0.90 spacing 0.085, 0.11
array colour[4] = [blue, red, green, violet]
do for [i = 1:words(models)] {
    set autoscale
    model = word(models, i)
    lines = raw . "/" . model . ".lines"
    stats lines using 3 nooutput
    most = STATS_max
    stats lines using 6 nooutput
    T = 1000 * STATS_max
    top = 1
    do for [j = 1:words(windows)] {
        stats raw . "/" . model . "-" . word(windows, j) . ".tsv" using 1 nooutput
        top = STATS_max > top ? STATS_max : top
    }
    set title model
    set xlabel "calls, N"
    set ylabel "p95 latency of a frame, ms"


    set key top left
    array a[words(windows)]
    array b[words(windows)]
    array mem[words(windows)]
    do for [j = 1:words(windows)] {
        stats lines every ::(j-1)::(j-1) using 3 nooutput
        mem[j] = STATS_max
        stats lines every ::(j-1)::(j-1) using 4 nooutput
        a[j] = STATS_max
        stats lines every ::(j-1)::(j-1) using 5 nooutput
        b[j] = STATS_max
        set arrow j from mem[j], 0 to mem[j], T nohead linecolor rgb colour[j] dashtype 4 linewidth 1.5
        if (mem[j] <= top * 1.12) {
            set label j sprintf("N_{mem} %d ", mem[j]) at mem[j], T * (0.70 - 0.09 * j) right textcolor rgb colour[j] front
        } else {
            unset label j
        }
    }
    set xrange [0:top * 1.12]
    set yrange [0:T * 1.45]
    plot T with lines linecolor rgb grey dashtype 3 title "the beat", \
         target * T with lines linecolor rgb grey dashtype 2 title sprintf("%g %% of it", 100 * target), \
         for [j = 1:words(windows)] a[j] + b[j] * x with lines linecolor rgb colour[j] title sprintf("window %s: %.1f + %.3f N", word(windows, j), a[j], b[j]), \
         for [j = 1:words(windows)] raw . "/" . model . "-" . word(windows, j) . ".tsv" using 1:2:3:4 with yerrorbars pointtype 7 pointsize 1 linecolor rgb colour[j] notitle
    undefine a b mem
}
unset multiplot
