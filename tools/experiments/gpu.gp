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
    set logscale x
    plot raw . "/attention.tsv" using 1:2 with points pointtype 7 linecolor rgb blue title "attention", \
         copy with lines linecolor rgb grey title "copies"
    unset logscale
} else {
    set multiplot next
}

set title "a decoding step and its floor (dashed)"
set xlabel "sessions"
set ylabel "ms"
step(i) = sprintf("< awk -F '\\t' '$1 == \"%s\"' %s/step.tsv", word(models, i), raw)
if (strstrt(have, "step")) {
    set logscale y
    set yrange [*:*]
    plot for [i = 1:words(models)] step(i) using 2:3 with linespoints linecolor i title word(models, i), \
         for [i = 1:words(models)] step(i) using 2:4 with lines linecolor i dashtype 2 notitle
    unset logscale
} else {
    set multiplot next
}

set title "the controller at work"
set xlabel "s"
set ylabel "latency, ms"
set yrange [0:*]
if (strstrt(have, "nstar-1")) {
    plot raw . "/nstar-1.tsv" using 1:2 with dots linecolor rgb blue title "a frame"
} else {
    set multiplot next
}

set title "without a bound, with a window: computed frames"
if (strstrt(have, "cliff")) {
    plot raw . "/cliff-1.tsv" using 1:2 with points pointtype 7 pointsize 0.3 linecolor rgb red title "unbounded", \
         raw . "/cliff-2.tsv" using 1:2 with points pointtype 7 pointsize 0.3 linecolor rgb blue title "window"
}
unset multiplot
