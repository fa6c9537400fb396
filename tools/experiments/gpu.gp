# Attention against copies, steps against their floors, latencies under the controller, and without and with a bound. Set by the caller:
# what, copy (GB/s), models.
set terminal pngcairo size 1500, 1000
set multiplot layout 2, 2 title what
set key top left

set title "decode attention, bf16"
set logscale x
set xlabel "tokens x KV heads in the cache"
set ylabel "GB/s read"
set yrange [0:*]
plot raw . "/attention.tsv" using 1:2 with points pointtype 7 linecolor rgb blue title "attention", \
     copy with lines linecolor rgb grey title "copies"

set title "a decoding step and its floor (dashed)"
set xlabel "sessions"
set ylabel "ms"
set logscale y
set yrange [*:*]
step(i) = sprintf("< awk -F '\\t' '$1 == \"%s\"' %s/step.tsv", word(models, i), raw)
plot NaN notitle, \
     for [i = 1:words(models)] step(i) using 2:3 with linespoints linecolor i title word(models, i), \
     for [i = 1:words(models)] step(i) using 2:4 with lines linecolor i dashtype 2 notitle

unset logscale
set title "the controller at work"
set xlabel "s"
set ylabel "latency, ms"
set yrange [0:*]
plot raw . "/nstar-1.tsv" using 1:2 with dots linecolor rgb blue title "a frame"

set title "without a bound, with a window: computed frames"
plot raw . "/cliff-1.tsv" using 1:2 with points pointtype 7 pointsize 0.3 linecolor rgb red title "unbounded", \
     raw . "/cliff-2.tsv" using 1:2 with points pointtype 7 pointsize 0.3 linecolor rgb blue title "window"
unset multiplot
