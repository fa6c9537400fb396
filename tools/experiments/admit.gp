# Cap, pool and signal over time for each case. Set by the caller: cases, runs, T (ms), what, mem, star.
n = words(cases)
set terminal pngcairo size 500 * n, 1000
set multiplot layout 3, n columnsfirst title what font ",13" margins 0.22 / n, 1 - 0.08 / n, 0.075, 0.90 spacing 0.26 / n, 0.055
colour(c) = c eq "unbounded" ? red : c eq "slower" ? violet : blue
name(c) = c eq "slower" ? "windowed, costs x 4" : c
do for [i = 1:n] {
    case = word(cases, i)
    f = raw . "/" . case . "-"
    set autoscale
    stats f . "1.tsv" using 2 nooutput
    top = STATS_max
    do for [j = 1:runs] {
        stats f . j . ".tsv" using 2 nooutput
        top = STATS_max > top ? STATS_max : top
    }
    top = case eq "windowed" && mem == mem && mem < 2 * top && mem > top ? mem : top
    top = case eq "slower" && star == star && star > top ? star : top
    set title name(case)
    unset xlabel
    set ylabel "sessions"
    set yrange [0:top * 1.75]
    set key top left
    plot for [j = 1:runs] f . j . ".tsv" using 1:2 with steps linewidth 1.5 linecolor rgb colour(case) title (j == 1 ? "cap" : ""), \
         for [j = 1:runs] f . j . ".tsv" using 1:3 with lines linewidth 0.7 linecolor rgb grey title (j == 1 ? "live sessions" : ""), \
         (case eq "windowed" ? mem : NaN) with lines dashtype 2 linecolor rgb "black" title (case eq "windowed" && mem < 2 * top ? sprintf("N_{mem} = %d", mem) : ""), \
         (case eq "slower" ? star : NaN) with lines dashtype 3 linecolor rgb "black" title (case eq "slower" ? sprintf("N* = %d", star) : "")
    unset title
    set ylabel "p95 of a window, ms"
    set yrange [0:T * 3.3]
    plot T with lines dashtype 3 linecolor rgb grey title "the beat", 0.8 * T with lines dashtype 2 linecolor rgb grey title "target, 80 %", \
         for [j = 1:runs] f . j . ".tsv" using 1:4 with points pointtype 7 pointsize 0.5 linecolor rgb colour(case) title (j == 1 ? "signal (2 beats: not served)" : "")
    set xlabel "time, s"
    set ylabel "pool in use, %"
    set yrange [0:135]
    plot for [j = 1:runs] f . j . ".tsv" using 1:5 with lines linewidth 1 linecolor rgb colour(case) title (j == 1 ? "pool" : ""), \
         100 with lines dashtype 3 linecolor rgb "black" notitle
}
unset multiplot
