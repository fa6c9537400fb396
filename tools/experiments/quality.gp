# What the bound costs, six panels. Set by the caller: least (the window), what.
set terminal pngcairo noenhanced size 2000, 1000
set multiplot layout 2, 3 title "What the bound costs: " . what font ",14" margins 0.05, 0.98, 0.08, 0.90 spacing 0.05, 0.12
array colour[4] = [red, orange, blue, green]
set key at graph 0.98, graph 0.98
set offsets 0, 0, graph 0.25, 0
set title "on a text: loss beside the unbounded cache once a token is lost"
stats raw . "/cost-0.tsv" using 1 nooutput
set xrange [STATS_min / 1.2:STATS_max * 1.2]
set logscale x 2
set xlabel "window, tokens"
set ylabel "nats a token, 95 %"
set xzeroaxis linecolor rgb grey
plot for [i = 1:3] raw . "/cost-" . word("0 1 4", i) . ".tsv" using ($1 * (0.96 + 0.02 * i)):2:3:4 with yerrorlines pointtype 7 linecolor rgb colour[i] title "sinks: " . word("0 1 4", i)
unset logscale x
unset offsets
set key default
set key Left reverse spacing 1.35 samplen 3 top right
set title "where attention goes, queries 128 to 255: the first 8 tokens"
set xlabel "layer"
set ylabel "share of attention, 95 %"
stats raw . "/attention.tsv" using 2 nooutput
set yrange [0:1.35 * STATS_max]
set autoscale x
plot raw . "/attention.tsv" using 1:2:4:5 with yerrorlines pointtype 7 linecolor rgb blue title "the first 8 tokens", \
     raw . "/attention.tsv" using 1:3 with linespoints pointtype 6 linecolor rgb grey title "8 that are as far away"
set title sprintf("written by itself, window %d: runs of four tokens that are new", least)
set xlabel ""
set ylabel "distinct-4, 95 % beside the control"
set yrange [-0.45:1.1]
set ytics 0, 0.2
set key bottom left
set xrange [-0.6:5.4]
set xtics ("no sinks" 1, "4 sinks" 4)
array way[3] = ["free running", "in turns, one cache", "in turns, fresh caches"]
array tint[3] = [red, blue, green]
place(s, i) = (s > 0 ? 3 : 0) + 0.5 * i
plot for [i = 1:3] raw . "/" . word("free one fresh", i) . ".tsv" using (place($1, i)):2:3:4 with yerrorbars pointtype 7 pointsize 1.2 linecolor rgb tint[i] title way[i], \
     for [i = 1:3] raw . "/" . word("free one fresh", i) . ".tsv" using (place($1, i) + 0.12):5 with points pointtype 2 linecolor rgb grey title i == 1 ? "unbounded, in the same place" : ""
set xtics auto
set ytics auto
set key top right
set title "what is still known of a fact"
set xlabel "tokens since it was told"
set ylabel "nats an answer token, 95 %"
set autoscale x
set yrange [*:*]
set offsets graph 0.1, graph 0.1, graph 0.3, graph 0.1
plot raw . "/needle-unbounded.tsv" using 1:2:3:4 with yerrorlines pointtype 7 linecolor rgb grey title "unbounded", \
     raw . sprintf("/needle-window-%d-sinks-0.tsv", least) using 1:2:3:4 with yerrorlines pointtype 7 linecolor rgb red title sprintf("window %d", least), \
     raw . sprintf("/needle-window-%d-sinks-4.tsv", least) using 1:2:3:4 with yerrorlines pointtype 7 linecolor rgb blue title sprintf("window %d, 4 sinks", least)
unset offsets
set title "heard: does a word come back?"
set xlabel "silent turns since it was said"
set ylabel "share of words, 95 %"
set logscale x 2
set xtics ("0" 0.5, "1" 1, "2" 2, "4" 4, "8" 8, "16" 16)
set xrange [0.4:20]
set yrange [-0.05:1.6]
before(x) = x == 0 ? 0.5 : x
kvs = "unbounded window-512-sinks-4 window-128-sinks-4 window-128-sinks-80"
titles = "'repeat', unbounded|'repeat', window 512|'repeat', window 128|'first', window 128, 80 sinks"
array heard[4] = [grey, green, blue, violet]
title_of(i) = system(sprintf("echo \"%s\" | cut -d '|' -f %d", titles, i))
plot for [i = 1:4] raw . "/heard-" . word(kvs, i) . ".tsv" using (before($1) * (0.94 + 0.03 * i)):2:3:4 with yerrorlines pointtype 7 linecolor rgb heard[i] title title_of(i)
unset logscale x
set title "heard: calls of 30 turns"
set xlabel ""
set ylabel "share of frames answered rightly, 95 %"
set xtics autofreq
set xrange [-0.6:3.6]
set yrange [0:1.15]
plot raw . "/turns.tsv" using 0:2:3:4:xtic(1) with yerrorbars pointtype 7 pointsize 1.2 linecolor rgb blue notitle
unset multiplot
