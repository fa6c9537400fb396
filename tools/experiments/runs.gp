# Left: the race of each unbounded run. Right: how many runs hit the wall. Set by the caller: seconds, what.
set terminal pngcairo size 1400, 700
race = raw . "/race.tsv"
hits = raw . "/hits.tsv"
set multiplot title what font ",13"
set bmargin at screen 0.10
set tmargin at screen 0.88
set lmargin at screen 0.06
set rmargin at screen 0.62
set title "The race that decides each unbounded run"
set xlabel "foretold: highest demand of the run's calls, as a share of the pool"
set ylabel "time of the wall, s after the first frames"
stats race using 2 nooutput
xmax = STATS_max > 1.2 ? STATS_max * 1.08 : 1.3
set xrange [0:xmax]
set yrange [0:seconds * 1.35]
set arrow 1 from 1, graph 0 to 1, first seconds * 1.05 nohead linecolor rgb grey dashtype 2
set arrow 2 from 0, seconds to xmax, seconds nohead linecolor rgb grey dashtype 3
set label 1 "end of the run; above it: the wall was not reached" at 0.02, seconds * 1.04 left textcolor rgb grey
set label 2 "demand = pool " at 1, graph 0.05 right textcolor rgb grey
set key top right
plot race using 2:($1 == 1 ? $3 : NaN) with points pointtype 7 pointsize 1.4 linecolor rgb red title "batch 1, wall as measured", \
     race using 2:($1 == 2 ? $3 : NaN) with points pointtype 5 pointsize 1.4 linecolor rgb violet title "batch 2, wall as measured", \
     race using 2:($4) with points pointtype 1 pointsize 2 linecolor rgb "black" title "foretold by its race", \
     race using 2:($1 == 1 && strcol(3) eq "NaN" ? seconds * 1.12 : NaN) with points pointtype 6 pointsize 1.4 linecolor rgb red title "batch 1, no wall", \
     race using 2:($1 == 2 && strcol(3) eq "NaN" ? seconds * 1.12 : NaN) with points pointtype 4 pointsize 1.4 linecolor rgb violet title "batch 2, no wall"
unset label
unset arrow
set lmargin at screen 0.70
set rmargin at screen 0.98
set title "Runs that hit the wall, 95 % Wilson interval"
set xlabel "batch"
set ylabel "share of runs, %"
set xrange [0.4:3.6]
set yrange [0:112]
set xtics ("1" 1, "2" 2, "both" 3)
x(b) = b eq "both" ? 3 : real(b)
set key top left
plot hits using (x(strcol(2)) - 0.1):(strcol(1) eq "unbounded" ? 100.0 * $3 / $4 : NaN):(100 * $5):(100 * $6) with yerrorbars pointtype 7 pointsize 1.6 linewidth 2 linecolor rgb red title "unbounded", \
     hits using (x(strcol(2)) + 0.1):(strcol(1) eq "window" ? 100.0 * $3 / $4 : NaN):(100 * $5):(100 * $6) with yerrorbars pointtype 5 pointsize 1.6 linewidth 2 linecolor rgb blue title "window"
unset multiplot
