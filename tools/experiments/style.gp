# The look of all pictures. Set by the caller: png, raw, mode.
set terminal pngcairo size 1200, 800 font "DejaVu Sans,12" linewidth 1.4
set output png
set datafile separator "\t"
set border 3
set tics nomirror out
set grid ytics linecolor rgb "#dddddd" linewidth 0.7
set key Left reverse spacing 1.35 samplen 3
red = "#c0392b"; blue = "#2166ac"; grey = "#606060"; green = "#1b7837"; orange = "#d98200"; violet = "#762a83"
