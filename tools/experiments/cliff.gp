# A row a model: left the truthful engine, in the middle the silent one, right how many frames are on time. Set by the caller, a word
# for each model: models, beats (s), foretolds (s), windows (tokens), counts (calls); and what.
N = words(models)
H = 340
top = 60. / (H * N + 110)
h = (1. - top - 50. / (H * N + 110)) / N
set terminal pngcairo size 1800, H * N + 110
set multiplot title what font ",15"
do for [i = 1:N] {
    m = word(models, i)
    u = raw . "/" . m . "-unbounded.tsv"
    w = raw . "/" . m . "-windowed.tsv"
    s = raw . "/" . m . "-silent.tsv"
    deadline = 1000 * real(word(beats, i))
    foretold = real(word(foretolds, i))
    set autoscale # of the row above; stats minds the ranges
    stats w using 3 nooutput
    low = 10 ** floor(log10(STATS_min / 3.))
    stats u using 1 nooutput
    set xrange [0:ceil(STATS_max)]
    set tmargin at screen 1 - top - (i - 1) * h - 0.18 * h
    set bmargin at screen 1 - top - i * h + 0.14 * h
    set arrow 1 from foretold, graph 0 to foretold, graph 1 nohead linecolor rgb grey dashtype 2 front
    if (i == N) { set xlabel "time since the calls began, s" }

    set lmargin at screen 0.055
    set rmargin at screen 0.335
    set title sprintf("%s, %s calls: an empty frame is marked stalled", m, word(counts, i)) font ",12"
    set ylabel "latency, ms"
    set logscale y
    set format y "10^{%L}"
    set yrange [low:deadline * 400]
    set key at graph 0.02, 0.98 top left opaque spacing 1.1 font ",10"
    plot deadline with lines linecolor rgb grey dashtype 3 title sprintf("deadline; foretold wall: %.1f s", foretold), \
         u using 1:3:4 with filledcurves linecolor rgb red fillstyle transparent solid 0.25 noborder notitle, \
         w using 1:3:4 with filledcurves linecolor rgb blue fillstyle transparent solid 0.25 noborder notitle, \
         u using 1:2 with lines linewidth 2 linecolor rgb red title "unbounded: median, 5-95 %", \
         w using 1:2 with lines linewidth 2 linecolor rgb blue title sprintf("window=%s", word(windows, i)), \
         u using 1:($7 < 100 ? low * 1.3 : NaN) with points pointtype 2 pointsize 0.6 linecolor rgb red title "unbounded: frames come back empty, at once"

    set lmargin at screen 0.395
    set rmargin at screen 0.675
    set title "the silent engine: an empty frame is marked ok"
    plot deadline with lines linecolor rgb grey dashtype 3 title "deadline", \
         s using 1:3:4 with filledcurves linecolor rgb orange fillstyle transparent solid 0.25 noborder notitle, \
         s using 1:2 with lines linewidth 2 linecolor rgb orange title "unbounded, computed frames", \
         s using 1:($7 < 100 ? low * 1.3 : NaN) with points pointtype 2 pointsize 0.6 linecolor rgb orange title "reported as ok, at once, and empty"

    unset logscale y
    set format y "%g"
    set lmargin at screen 0.73
    set rmargin at screen 0.99
    set yrange [0:185]
    set ytics 0, 25, 100
    set ylabel "share, %"
    set title "frames on time, and pool in use"
    plot u using 1:5 with lines linecolor rgb grey dashtype 4 title "pool, unbounded", \
         w using 1:5 with lines linecolor rgb grey title "pool, window", \
         w using 1:6 with lines linewidth 2.5 linecolor rgb blue dashtype 2 title "on time, window", \
         s using 1:6 with lines linewidth 2.5 linecolor rgb orange title "on time, as the silent engine says", \
         u using 1:6 with lines linewidth 2.5 linecolor rgb red title "on time, unbounded"
    set ytics autofreq
}
unset multiplot
