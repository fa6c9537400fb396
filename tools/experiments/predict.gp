# Left: foretold against happened. Right: error by model and forecast. Set by the caller: models, what.
set terminal pngcairo size 1500, 720
runs = raw . "/runs.tsv"
set multiplot title what font ",12"
set bmargin at screen 0.17
set tmargin at screen 0.88
set lmargin at screen 0.07
set rmargin at screen 0.46
set title "Foretold against measured"
set xlabel "collapse as measured, s"
set ylabel "collapse as foretold, s"
set logscale xy
set xtics (5, 10, 15, 20, 30, 50, 100, 150, 200, 300, 500, 700, 1000)
set ytics (5, 10, 20, 50, 100, 200, 500, 1000, 2000)
stats runs using 2 nooutput
lo = STATS_min / 1.4
hi = STATS_max * 1.4
set xrange [lo:hi]
set yrange [lo:hi * 3]
set key top left
plot x with lines linecolor rgb grey dashtype 2 title "as it came", \
     runs using 2:3 with points pointtype 6 linecolor rgb orange title "nominal: audio alone", \
     runs using 2:4 with points pointtype 7 pointsize 0.8 linecolor rgb blue title "full: with markup and answers", \
     runs using 2:5 with points pointtype 2 linecolor rgb green title "half: fitted half way through"
unset logscale
set ytics autofreq
set autoscale
set lmargin at screen 0.54
set rmargin at screen 0.98
set title "Error of each run: above 0 too late"
set xlabel "" 
set ylabel "error, %"
stats runs using 7 nooutput
m = abs(STATS_max) > abs(STATS_min) ? abs(STATS_max) : abs(STATS_min)
stats runs using 8 nooutput
m = abs(STATS_max) > m ? abs(STATS_max) : m
m = abs(STATS_min) > m ? abs(STATS_min) : m
m = m < 0.5 ? 0.5 : m
set yrange [-m * 1.2:m * 1.9]
set xrange [0.4:words(models) + 0.6]
set xtics () rotate by 20 right
set for [i = 1:words(models)] xtics add (word(models, i) i)
at(name) = sum [i = 1:words(models)] (name eq word(models, i) ? i : 0)
off(k) = 0.16 * ((int(k) * 7919 % 101) / 101. - 0.5)
plot 0 with lines linecolor rgb grey notitle, \
     runs using (at(strcol(1)) - 0.15 + off($0)):7 with points pointtype 7 pointsize 0.8 linecolor rgb blue title "full, before the run", \
     runs using (at(strcol(1)) + 0.15 + off($0)):8 with points pointtype 2 linecolor rgb green title "half, of the time left then"
unset multiplot
