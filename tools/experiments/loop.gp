# Signal against cap as tried, and cap and signal over time. Set by the caller: T (ms), best, after, from and to of the load (s), what.
set terminal pngcairo size 1200, 1000
set multiplot layout 3, 1 title "The live loop: " . what font ",13" margins 0.07, 0.97, 0.07, 0.92 spacing 0, 0.085
set key top left
stats raw . "/caps.tsv" using 2 nooutput
top = STATS_max > best ? STATS_max : best
set xlabel "cap" offset 0, 0.5
set ylabel "p95 of a window, ms"
set yrange [0:T * 1.4]
plot raw . "/search.tsv" using 1:2 with linespoints pointtype 7 linecolor rgb blue title "tried one by one, before", \
     raw . "/search-after.tsv" using 1:2 with linespoints pointtype 7 linecolor rgb orange title "and after", \
     0.8 * T with lines dashtype 2 linecolor rgb grey title "target, 80 % of the beat", T with lines dashtype 3 linecolor rgb grey title "the beat"
set xlabel "time, s" offset 0, 0.5
if (to > from) { set object 1 rectangle from first from, graph 0 to first to, graph 1 fillcolor rgb "#f3dcd5" fillstyle solid noborder behind }
set ylabel "sessions"
set yrange [0:top * 1.75]
plot raw . "/caps.tsv" using 1:2 with steps linewidth 1.5 linecolor rgb blue title "cap", \
     raw . "/caps.tsv" using 1:3 with lines linewidth 0.7 linecolor rgb grey title "live sessions", \
     best with lines dashtype 2 linecolor rgb "black" title sprintf("best before = %d", best), \
     after with lines dashtype 3 linecolor rgb "black" title sprintf("and after = %d", after)
set ylabel "p95 of a window, ms"
set yrange [0:T * 1.4]
plot raw . "/caps.tsv" using 1:4 with points pointtype 7 pointsize 0.5 linecolor rgb blue title "signal", \
     0.8 * T with lines dashtype 2 linecolor rgb grey notitle, T with lines dashtype 3 linecolor rgb grey title "the beat"
unset multiplot
