# Left the truthful engine, right the silent one; above latency, below how many frames are on time. Set by the caller: deadline
# (ms), foretold (s), what, window.
set terminal pngcairo size 1500, 950
u = raw . "/unbounded.tsv"
w = raw . "/windowed.tsv"
s = raw . "/silent.tsv"
stats u using 1 nooutput
last = ceil(STATS_max)
stats w using 3 nooutput
low = 10 ** floor(log10(STATS_min / 3.))
set multiplot title what font ",15"
set xrange [0:last]
set lmargin at screen 0.085
set rmargin at screen 0.50
set arrow 1 from foretold, graph 0 to foretold, graph 1 nohead linecolor rgb grey dashtype 2 front

set tmargin at screen 0.90
set bmargin at screen 0.52
set title "The truth: an empty frame is marked stalled"
set ylabel "latency, ms: median, 5-95 %"
set logscale y
set yrange [low:deadline * 40]
set format x ""
set key at graph 0.02, 0.97 top left opaque box linecolor rgb "#eeeeee"
set label 1 sprintf("foretold: %.1f s ", foretold) at foretold, deadline * 0.6 right textcolor rgb grey front
plot deadline with lines linecolor rgb grey dashtype 3 title "deadline", \
     u using 1:3:4 with filledcurves linecolor rgb red fillstyle transparent solid 0.25 noborder notitle, \
     w using 1:3:4 with filledcurves linecolor rgb blue fillstyle transparent solid 0.25 noborder notitle, \
     u using 1:2 with lines linewidth 2 linecolor rgb red title "unbounded", \
     w using 1:2 with lines linewidth 2 linecolor rgb blue title window, \
     u using 1:($7 < 100 ? low * 1.3 : NaN) with points pointtype 2 pointsize 0.8 linecolor rgb red title "unbounded: frames come back empty, at once"

unset label 1
set lmargin at screen 0.585
set rmargin at screen 0.985
set title "The silent engine: an empty frame is marked ok"
plot deadline with lines linecolor rgb grey dashtype 3 title "deadline", \
     s using 1:3:4 with filledcurves linecolor rgb orange fillstyle transparent solid 0.25 noborder notitle, \
     s using 1:2 with lines linewidth 2 linecolor rgb orange title "unbounded, computed frames", \
     s using 1:($7 < 100 ? low * 1.3 : NaN) with points pointtype 2 pointsize 0.8 linecolor rgb orange title "reported as ok, at once, and empty"

unset logscale y
set tmargin at screen 0.47
set bmargin at screen 0.08
set yrange [0:109]
set format x "%g"
unset title
set xlabel "time since the calls began, s"
set ylabel "share, %"
set key at graph 0.02, 0.90
set lmargin at screen 0.085
set rmargin at screen 0.50
plot u using 1:5 with lines linecolor rgb grey dashtype 4 title "pool in use, unbounded", \
     w using 1:5 with lines linecolor rgb grey title "pool in use, window", \
     u using 1:6 with lines linewidth 2.5 linecolor rgb red title "frames on time, unbounded", \
     w using 1:6 with lines linewidth 2.5 linecolor rgb blue dashtype 2 title "frames on time, window"
set lmargin at screen 0.585
set rmargin at screen 0.985
plot s using 1:5 with lines linecolor rgb grey dashtype 4 title "pool in use", \
     s using 1:6 with lines linewidth 2.5 linecolor rgb orange title "frames reported on time", \
     s using 1:7 with lines linewidth 2.5 linecolor rgb red dashtype 2 title "frames computed and on time"
unset multiplot
