# Attention against copies, steps against their floors, latencies under the controller, and without and with a bound. Set by the caller:
# what, copy (GB/s), models, have (what of it there is: a cut run leaves the rest of the page blank).
set terminal pngcairo size 1500, 1000
set multiplot layout 2, 2 title what
set key top left

set title "decode attention, bf16"
set xlabel "tokens x KV heads in the cache"
set ylabel "GB/s read"
set yrange [0:*]
if (strstrt(have, "attention")) {
    set key bottom right
    set logscale x
    plot raw . "/attention.tsv" using 1:2 with points pointtype 7 linecolor rgb blue title "attention", \
         copy with lines linecolor rgb grey title "copies"
    unset logscale
    set key top left
} else {
    set multiplot next
}

set title "a decoding step and its floor (dashed)"
set xlabel "sessions"
set ylabel "ms"
step(i) = sprintf("< awk -F '\\t' '$1 == \"%s\"' %s/step.tsv", word(models, i), raw)
if (strstrt(have, "step")) {
    set logscale y
    set logscale x 2
    set yrange [*:*]
    plot for [i = 1:words(models)] step(i) using 2:3 with linespoints linecolor i title word(models, i), \
         for [i = 1:words(models)] step(i) using 2:4 with lines linecolor i dashtype 2 notitle
    unset logscale
} else {
    set multiplot next
}

set title "the controller at work, in real time"
set xlabel "s"
set ylabel "latency, ms"
set y2label "calls"
set yrange [0:*]
set y2range [0:*]
set y2tics
if (strstrt(have, "nstar")) {
    plot raw . "/nstar.tsv" using 1:2 with dots linecolor rgb blue title "a frame", \
         raw . "/nstar.tsv" using 1:3 axes x1y2 with lines linecolor rgb grey title "calls (right)"
} else {
    set multiplot next
}
unset y2label
unset y2tics

set title "calls without a bound, and with a window: p95 of a beat, its longest dotted"
if (strstrt(have, "cliff") || strstrt(have, "runs")) {
    plot raw . "/cliff.tsv" using 1:3 with lines linewidth 2 linecolor rgb red title "unbounded", \
         raw . "/cliff.tsv" using 1:4 with points pointtype 7 pointsize 0.2 linecolor rgb red notitle, \
         raw . "/runs.tsv" using 1:3 with lines linecolor rgb blue title "window, each run", \
         raw . "/runs.tsv" using 1:4 with points pointtype 7 pointsize 0.2 linecolor rgb blue notitle
}
unset multiplot
