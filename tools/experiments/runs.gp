# Left: the race of each unbounded run. Right: how many runs hit the wall. Set by the caller: models, what.
set terminal pngcairo size 1500, 750
race = raw . "/race.tsv"
hits = raw . "/hits.tsv"
N = words(models)
array colour[4] = [red, blue, orange, green]
mine(i, name) = strstrt(name, word(models, i)) == 1
set multiplot title what font ",13"
set bmargin at screen 0.14
set tmargin at screen 0.88
set lmargin at screen 0.06
set rmargin at screen 0.58
set title "The race that decides each unbounded run"
set xlabel "foretold: highest demand of the run's calls, as a share of the pool"
set ylabel "time of the wall, as a share of the run"
stats race using 3 nooutput
xmax = STATS_max > 1.2 ? STATS_max * 1.08 : 1.3
set xrange [0:xmax]
set yrange [0:1.5]
set ytics 0, 0.2, 1
set arrow 1 from 1, graph 0 to 1, first 1.05 nohead linecolor rgb grey dashtype 2
set arrow 2 from 0, 1 to xmax, 1 nohead linecolor rgb grey dashtype 3
set label 1 "end of the run; above it: the wall was not reached" at 0.02, 1.03 left textcolor rgb grey
set label 2 "demand = pool " at 1, graph 0.04 right textcolor rgb grey
set key top right maxrows 3
plot for [i = 1:N] race using 3:(mine(i, strcol(1)) && $2 == 1 ? $4 : NaN) with points pointtype 7 pointsize 1.2 linecolor rgb colour[i] title word(models, i), \
     for [i = 1:N] race using 3:(mine(i, strcol(1)) && $2 == 2 ? $4 : NaN) with points pointtype 5 pointsize 1.2 linecolor rgb colour[i] notitle, \
     for [i = 1:N] race using 3:(mine(i, strcol(1)) && strcol(4) eq "NaN" ? 1.06 + 0.03 * i : NaN) with points pointtype 6 pointsize 1.2 linecolor rgb colour[i] notitle, \
     race using 3:5 with points pointtype 1 pointsize 1.6 linecolor rgb "black" title "foretold by its race", \
     NaN with points pointtype 5 linecolor rgb grey title "square: batch 2"
unset label
unset arrow
set ytics autofreq
set lmargin at screen 0.66
set rmargin at screen 0.98
set title "Runs that hit the wall, both batches, 95 % Wilson interval"
set xlabel ""
set ylabel "share of runs, %"
set xrange [0.4:N + 0.6]
set yrange [0:119]
set xtics () rotate by 12 right
set for [i = 1:N] xtics add (word(models, i) i)
set key top left maxrows 1
x(name) = sum [i = 1:N] (name eq word(models, i) ? i : 0)
plot hits using (x(strcol(1)) - 0.1):(strcol(2) eq "unbounded" && strcol(3) eq "both" ? 100.0 * $4 / $5 : NaN):(100 * $6):(100 * $7) with yerrorbars pointtype 7 pointsize 1.6 linewidth 2 linecolor rgb red title "unbounded", \
     hits using (x(strcol(1)) + 0.1):(strcol(2) eq "window" && strcol(3) eq "both" ? 100.0 * $4 / $5 : NaN):(100 * $6):(100 * $7) with yerrorbars pointtype 5 pointsize 1.6 linewidth 2 linecolor rgb blue title "window"
unset multiplot
