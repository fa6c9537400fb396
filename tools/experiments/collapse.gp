# Pool and latency over time of two runs, with and without a bound: once as text on the terminal, once as DIR/collapse.png.
# Set by the caller: dir (holds unbounded.tsv and windowed.tsv: seconds, pool in %, latency in ms, status), foretold and
# deadline (seconds).
set datafile separator "\t"
u = dir . "/unbounded.tsv"
w = dir . "/windowed.tsv"
stats u using 1 nooutput
last = ceil(STATS_max)
answered(s) = s eq "stalled" ? NaN : 1

# ---- text ----
set terminal dumb 100 22 noenhanced
set key outside top center horizontal
set xlabel "seconds since the calls began"
set ylabel "pool, %"
set xrange [0:last]
set yrange [0:105]
set arrow 1 from foretold, 0 to foretold, 105 nohead
plot u using 1:2 with points pointtype "u" title "u  unbounded", \
     w using 1:2 with points pointtype "w" title "w  window", \
     NaN with points pointtype "|" title sprintf("|  foretold, %.1f s", foretold)
set terminal dumb 100 16 noenhanced
set ylabel "latency, ms"
set logscale y
set yrange [0.1:3000 * deadline]
set arrow 1 from foretold, 0.1 to foretold, 3000 * deadline nohead
plot u using 1:($3 * answered(strcol(4))) with points pointtype "u" title "u  answered", \
     w using 1:($3 * answered(strcol(4))) with points pointtype "w" title "w  window", \
     u using 1:(strcol(4) eq "stalled" ? ($3 > 0.1 ? $3 : 0.1) : NaN) with points pointtype "x" title "x  stalled: on time, empty"
unset logscale y
set yrange [0:105]

# ---- PNG ----
set terminal pngcairo size 1200, 900 font "DejaVu Sans,12" linewidth 1.5
set output dir . "/collapse.png"
red = "#c0392b"; blue = "#2166ac"; grey = "#606060"
set multiplot
set lmargin at screen 0.09
set rmargin at screen 0.97
set grid ytics linecolor rgb "#dddddd" linewidth 0.7
set border 3
set tics nomirror out
set key inside

set tmargin at screen 0.92
set bmargin at screen 0.54
set title "Eight paced calls on one pool of KV blocks: without a bound, and with a window" font ",15"
set key at graph 0.7, 0.3 right top vertical maxcols 1 reverse Left spacing 1.4 samplen 3
unset xlabel
set format x ""
set ylabel "pool in use, %"
set arrow 1 from foretold, 0 to foretold, 105 nohead linecolor rgb grey dashtype 2 linewidth 1.3 front
set label 1 sprintf(" foretold: %.1f s", foretold) at foretold, 50 left textcolor rgb grey front
plot u using 1:2 with lines linewidth 2.2 linecolor rgb red title "unbounded", \
     w using 1:2 with lines linewidth 2.2 linecolor rgb blue title "window=768, sinks=4"

set tmargin at screen 0.49
set bmargin at screen 0.09
unset title
unset label 1
set format x "%g"
set xlabel "time since the calls began, s"
set ylabel "latency of each frame, ms"
set logscale y
set yrange [0.1:5000 * deadline]
set ytics ("0.1" 0.1, "1" 1, "10" 10, "100" 100, "1000" 1000)
set arrow 1 from foretold, graph 0 to foretold, graph 1 nohead linecolor rgb grey dashtype 2 linewidth 1.3 front
set label 2 "deadline " at last, 1400 * deadline right textcolor rgb grey
set key at graph 0.02, 0.4 left top vertical maxcols 1 reverse Left spacing 1.4
plot 1000 * deadline with lines linecolor rgb grey linewidth 1 notitle, \
     u using 1:($3 * answered(strcol(4))) with points pointtype 7 pointsize 0.8 linecolor rgb red title "unbounded, answered", \
     w using 1:($3 * answered(strcol(4))) with points pointtype 6 pointsize 0.9 linecolor rgb blue title "window, answered", \
     u using 1:(strcol(4) eq "stalled" ? ($3 > 0.1 ? $3 : 0.1) : NaN) with points pointtype 2 pointsize 0.9 linecolor rgb red \
         title "unbounded, stalled: on time, but empty"
unset multiplot
