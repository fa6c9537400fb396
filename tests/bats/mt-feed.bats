#!/usr/bin/env bats
# mt-feed as a user meets it: any file, through pipes, against a server, and wrongly.

# shellcheck disable=SC2002  # pipes are what is tested
# shellcheck disable=SC2154  # run and serve set variables
# shellcheck disable=SC2317  # functions are called by `within`
load helper

# wav KIND RATE CHANNELS SAMPLES [SIZE]: a WAV on stdout; KIND is u8, s16, s24, s32, f32 or f64. With SIZE that stands
# in the header instead of the two lengths. Samples are those of a counter, so that no two pieces are the same.
wav() {
  perl -e '
    my ($kind, $rate, $ch, $n, $size) = @ARGV;
    my ($type, $bits) = $kind =~ /(.)(\d+)/;
    my $data = "";
    for my $i (0 .. $n * $ch - 1) {
      my $v = ($i * 77 + int($i / 1000)) % 65536 - 32768;
      $data .= $type eq "f" ? pack($bits == 32 ? "f<" : "d<", $v / 32768)
             : $bits == 8   ? pack("C", ($v >> 8) + 128)
             : $bits == 16  ? pack("s<", $v)
             : $bits == 24  ? substr(pack("l<", $v * 256), 0, 3)
             : pack("l<", $v * 65536);
    }
    my $b = $bits / 8;
    print "RIFF", pack("V", $size // 36 + length $data), "WAVEfmt ",
      pack("VvvVVvv", 16, $type eq "f" ? 3 : 1, $ch, $rate, $rate * $ch * $b, $ch * $b, $bits),
      "data", pack("V", $size // length $data), $data;
  ' "$@"
}

# What is in a wire stream on stdin: "FORMAT SAMPLES", after every line and payload was found whole and in order.
wire() {
  perl -e '
    my ($format, $bytes, $ended) = ("", 0, 0);
    binmode STDIN;
    while (my $line = <STDIN>) {
      die "behind the end: $line" if $ended;
      if (!$format) {
        die "no open: $line" unless $line =~ /^\{"metronome":1,"type":"open",.*"format":"(\w+)"/;
        $format = $1;
      } elsif ($line =~ /^\{"type":"audio","bytes":(\d+)\}\n$/) {
        die "a payload was cut" unless read(STDIN, my $pcm, $1) == $1;
        $bytes += $1;
        print STDERR $pcm if $ENV{PCM};
      } elsif ($line eq "{\"type\":\"end\"}\n") {
        $ended = 1;
      } else {
        die "unknown: $line";
      }
    }
    die "no end" unless $ended;
    print $format, " ", $bytes / ($format eq "f32le" ? 4 : 2), "\n";
  '
}

# feed ARGS…: what mt-feed writes, looked at.
feed() {
  mt-feed "$@" | wire
}

@test "mt-feed: no sample is lost, none is invented, in any kind of file" {
  for n in 0 1 15999 16000 40001; do
    for kind in u8:s16le s16:s16le s24:f32le s32:f32le f32:f32le f64:f32le; do
      wav "${kind%:*}" 16000 1 "$n" >x.wav
      [ "$(feed x.wav)" = "${kind#*:} $n" ]
      [ "$(feed - <x.wav)" = "${kind#*:} $n" ]
      [ "$(wav "${kind%:*}" 16000 1 "$n" | feed -)" = "${kind#*:} $n" ]
    done
  done
}

@test "mt-feed: stereo is one voice, the rate is the highest of the files in 16..24 kHz, or what --rate says" {
  wav s16 16000 2 5000 >stereo.wav
  [ "$(feed stereo.wav)" = "f32le 5000" ]
  wav s16 44100 1 44100 >cd.wav
  [ "$(feed cd.wav)" = "f32le 24000" ]
  [ "$(feed --rate 44100 cd.wav)" = "s16le 44100" ]
  wav u8 8000 2 4000 >phone.wav
  [ "$(feed phone.wav)" = "f32le 8000" ]
  wav s16 24000 1 12000 >voice.wav
  [ "$(feed voice.wav)" = "s16le 12000" ]
  [ "$(feed phone.wav voice.wav)" = "f32le 24000" ]
  [ "$(feed - <voice.wav)" = "f32le 8000" ]
}

@test "mt-feed: 16-bit sound arrives bit for bit" {
  wav s16 16000 1 40001 >x.wav
  mt-feed x.wav | PCM=1 wire >/dev/null 2>sent
  cmp sent <(tail -c +45 x.wav)
  # Floats too.
  wav f32 16000 1 40001 >x.wav
  mt-feed --frame 70ms x.wav | PCM=1 wire >/dev/null 2>sent
  cmp sent <(tail -c +45 x.wav)
}

@test "mt-feed: a pipe whose header does not know its length runs to its end" {
  for size in 0 4294967295; do
    [ "$(wav s16 16000 1 40001 "$size" | feed -)" = "s16le 40001" ]
    [ "$(wav s24 48000 2 48000 "$size" | feed -)" = "f32le 16000" ]
  done
}

@test "mt-feed: compressed files, from disk and through a pipe" {
  mt-feed "$DATA/jfk.flac" | PCM=1 wire >disk.said 2>disk
  mt-feed - <"$DATA/jfk.flac" | PCM=1 wire >stdin.said 2>stdin
  cat "$DATA/jfk.flac" | mt-feed - | PCM=1 wire >pipe.said 2>pipe
  cmp disk stdin
  cmp disk pipe
  [ "$(cat disk.said stdin.said pipe.said | sort -u)" = "s16le 176000" ]
}

@test "mt-feed: Ogg" {
  [ "$(feed "$DATA/tone.ogg")" = "f32le 30000" ]
  [ "$(cat "$DATA/tone.ogg" | feed -)" = "f32le 30000" ]
}

@test "mt-feed: samples without a header" {
  wav s16 16000 1 12345 | tail -c +45 >bare
  [ "$(feed --raw s16le:16000:1 bare)" = "s16le 12345" ]
  [ "$(feed --raw s16le:16000:1 - <bare)" = "s16le 12345" ]
  [ "$(cat bare | feed --raw u8:16000:2 -)" = "f32le 12345" ]
  # Half a sample is none.
  [ "$(head -c 1001 bare | feed --raw s16le:16000:1 -)" = "s16le 500" ]
}

@test "mt-feed: several files are one after another, and a length repeats them" {
  wav s16 16000 1 1000 >a.wav
  wav s16 16000 1 2500 >b.wav
  wav u8 16000 1 1 >c.wav
  [ "$(feed a.wav b.wav c.wav)" = "s16le 3501" ]
  [ "$(feed a.wav - c.wav <b.wav)" = "s16le 3501" ]
  [ "$(feed --seconds 2.5 a.wav b.wav)" = "s16le 40000" ]
  [ "$(feed --duration fixed:10ms a.wav b.wav)" = "s16le 160" ]
  [ "$(feed --duration file --seconds 1 a.wav b.wav)" = "s16le 3500" ]
  [ "$(cat a.wav | feed --seconds 1 -)" = "s16le 16000" ]
  # One that is 16-bit and one that is not: what holds both.
  wav f32 16000 1 10 >f.wav
  [ "$(feed a.wav f.wav)" = "f32le 1010" ]
}

@test "mt-feed: what can't be read is one line that names it, exit 1, and nothing on stdout" {
  wav s16 16000 1 1000 >good.wav
  : >empty.wav
  echo "this is no sound, it is a text of some length" >text.wav
  head -c 30 good.wav >short.wav
  mkdir folder
  for f in empty.wav text.wav short.wav folder missing.wav; do
    run -1 --separate-stderr mt-feed good.wav "$f"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ "$stderr" == "mt-feed: $f: "* ]]
  done
  run -1 --separate-stderr mt-feed - </dev/null
  [ -z "$output" ]
  [[ "$stderr" == *empty* ]]
  wav s16 16000 1 0 >silent.wav
  run -1 --separate-stderr mt-feed --loop silent.wav
  [[ "$stderr" == *silent.wav*repeat* ]]
}

@test "mt-feed: a file that was cut is sent to the cut, and that is said once" {
  wav s16 16000 1 1000 >good.wav
  head -c 1045 good.wav >cut.wav
  head -c 60000 "$DATA/jfk.flac" >cut.flac
  wav s16 16000 1 0 >silent.wav
  local said="ends after 500 of the 1000 samples in its header"
  [ "$(feed cut.wav 2>err)" = "s16le 500" ]
  [ "$(cat err)" = "mt-feed: cut.wav: $said" ]
  [ "$(feed --seconds 1 cut.wav 2>err)" = "s16le 16000" ]
  [ "$(cat err)" = "mt-feed: cut.wav: $said" ]
  [ "$(head -c 1044 good.wav | feed - 2>err)" = "s16le 500" ]
  [ "$(cat err)" = "mt-feed: stdin: $said" ]
  run -0 --separate-stderr mt-feed silent.wav good.wav
  [ "$stderr" = "mt-feed: silent.wav: holds not one sample" ]
  run -0 --separate-stderr bash -c 'mt-feed cut.flac >/dev/null'
  [[ "$stderr" == "mt-feed: cut.flac: ends after "*" of the 176000 samples in its header" ]]
}

@test "mt-feed: a damaged file is sent as far as it goes, and is a failure" {
  # From the middle on it is something else.
  { head -c $(($(stat -c %s "$DATA/jfk.flac") / 2)) "$DATA/jfk.flac"; head -c 20000 /dev/zero | tr '\0' '\252'; } >bad.flac
  run -1 bash -c 'mt-feed bad.flac >sent 2>err'
  [[ "$(cat err)" == "mt-feed: bad.flac: damaged"* ]]
  [ "$(wc -l <err)" -eq 1 ]
  read -r format n < <(wire <sent)
  [ "$format" = s16le ]
  [ "$n" -gt 16000 ]
  [ "$n" -lt 176000 ]
}

@test "mt-feed: wrong pauses" {
  for talk in 1s 1s: :1s 0:1s 1s:0 x:y 1s:1s:1s; do
    run -2 --separate-stderr mt-feed -s mt.sock --talk "$talk" "$DATA/jfk.flac"
    [[ $stderr == *--talk* ]]
  done
  run -2 --separate-stderr mt-feed --talk 1s:1s "$DATA/jfk.flac"
  [[ $stderr == *"need a server"* ]]
  run -2 --separate-stderr mt-feed -s mt.sock --talk 1s:1s -
  [[ $stderr == *pause* ]]
}

@test "mt-feed: a wrong call is exit 2, names the option, and leaves stdout empty" {
  wav s16 16000 1 100 >x.wav
  wrong() {
    run -2 --separate-stderr mt-feed "${@:2}"
    [ -z "$output" ]
    [[ "$stderr" == *"$1"* ]]
  }
  wrong FILE
  wrong --sessions -n 0 -s mt.sock x.wav
  wrong --sessions -n 2x -s mt.sock x.wav
  wrong --sessions -n 2 x.wav
  wrong --seconds --seconds 0 x.wav
  wrong --seconds --seconds 5q x.wav
  wrong --speed --speed 0 -s mt.sock x.wav
  wrong --speed --speed 2 x.wav
  wrong --frame --frame 0.1ms x.wav
  wrong --arrivals --arrivals some -s mt.sock x.wav
  wrong --arrivals --arrivals ramp -s mt.sock x.wav
  wrong --arrivals --arrivals poisson:0 -s mt.sock x.wav
  wrong --arrivals --arrivals poisson:1 x.wav
  wrong --duration --duration exp x.wav
  wrong --duration --duration fixed:-1 x.wav
  wrong --loop --duration file --loop x.wav
  wrong --phase --phase full -s mt.sock x.wav
  wrong --phase --phase random --no-pace -s mt.sock x.wav
  wrong --play --play dir x.wav
  wrong --tolerate --tolerate x.wav
  wrong --wait --wait 1 x.wav
  wrong --retry --retry x.wav
  wrong --pace --pace --no-pace x.wav
  wrong --raw --raw s16le x.wav
  wrong --rate --rate 100 x.wav
  wrong --temperature --temperature -1 x.wav
  wrong --top-p --top-p 1.5 x.wav
  wrong --prompt --prompt $'\xff' x.wav
  wrong once - - x.wav
  wrong --nonsense --nonsense x.wav
}

@test "mt-feed: what a session asks for stands in its open" {
  wav s16 16000 1 100 >x.wav
  mt-feed --prompt 'say "hé"' --seed 7 --temperature 0.5 --top-k 40 --top-p 0.9 --window 512 --answer-tokens 8 --tokens x.wav |
    head -n 1 >open
  run -0 jq -c '[.metronome,.type,.rate,.format,.prompt,.seed,.temperature,.top_k,.top_p,.window,.answer_tokens,.tokens]' open
  [ "$output" = '[1,"open",16000,"s16le","say \"hé\"",7,0.5,40,0.9,512,8,true]' ]
}

@test "mt-feed: a pace is the sound's, whatever the speed" {
  wav s16 16000 1 9600 >x.wav
  took() {
    local least=$1 t=$EPOCHREALTIME
    "${@:2}" >out
    t=$(((${EPOCHREALTIME/./} - ${t/./}) / 1000))
    echo "$t ms"
    [ "$(wire <out)" = "s16le 9600" ]
    [ "$t" -ge "$least" ]
  }
  took 600 mt-feed --pace x.wav
  took 300 mt-feed --pace --speed 2 x.wav
  took 600 mt-feed --pace --frame 250ms - <x.wav
}

@test "mt-feed: a live source is passed on at once" {
  mkfifo live
  mt-feed --raw s16le:16000:1 - <live >out &
  pid=$!
  exec 7>live
  head -c 3200 /dev/zero >&7
  heard() { [ "$(grep -ac '"audio"' out)" -ge 1 ]; }
  within 10 heard
  kill -0 "$pid"
  exec 7>&-
  wait "$pid"
  [ "$(wire <out)" = "s16le 1600" ]
}

@test "mt-feed: an interrupt ends the call in order" {
  mkfifo live
  mt-feed --raw s16le:16000:1 - <live >out 2>err &
  pid=$!
  exec 7>live
  head -c 3200 /dev/zero >&7
  heard() { [ "$(stat -c %s out)" -gt 3200 ]; }
  within 10 heard
  kill -INT "$pid"
  wait "$pid"
  exec 7>&-
  [ "$(wire <out)" = "s16le 1600" ]
  [ ! -s err ]
}

@test "mt-feed: a full disk is a failure, a reader that left is not" {
  wav s16 16000 1 100000 >x.wav
  run -1 --separate-stderr bash -c 'mt-feed x.wav >/dev/full'
  [[ "$stderr" == "mt-feed: standard output: "* ]]
  run -0 --separate-stderr bash -c 'set -o pipefail; mt-feed --loop x.wav | head -c 1000000 | wc -c'
  [ "$output" -eq 1000000 ]
  [ -z "$stderr" ]
}

@test "mt-feed: a server that is not there, or is something else" {
  wav s16 16000 1 100 >x.wav
  run -1 --separate-stderr mt-feed -s nobody.sock x.wav
  [[ "$stderr" == *"nobody.sock: no server"* ]]
  [ "${#stderr_lines[@]}" -eq 1 ]
  run -1 --separate-stderr mt-feed -s x.wav x.wav
  [ "${#stderr_lines[@]}" -eq 1 ]
  run -1 --separate-stderr mt-feed -s "$(printf '%0120d' 0)" x.wav
  [ "${#stderr_lines[@]}" -eq 1 ]
}

# ---- against the server ----

@test "mt-feed: more sessions than open files allow" {
  serve --backend cost:a=10us,b=1us --frame 100ms
  wav s16 16000 1 1600 >x.wav
  run -1 --separate-stderr bash -c 'ulimit -n 64; mt-feed -s mt.sock -n 80 x.wav >frames'
  [[ "${stderr_lines[0]}" == *"the limit on open files (ulimit -n)"* ]]
  [ "$(jq -s 'map(select(.status == "ok")) | length' frames)" -gt 40 ]
  [ "$(jq -s 'map(select(.type == "frame")) | length' frames)" -eq 80 ]
}

# records FILTER…: of the last run.
records() {
  jq -r "$@" <frames
}

@test "mt-feed: one record a frame, as the server gave it, with the round trip" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 40001 >x.wav
  mt-feed -s mt.sock --no-pace -n 3 x.wav >frames 2>err
  [ "$(records -s '[.[] | select(.type == "frame")] | length')" -eq 9 ]
  [ "$(records 'select(.type == "frame") | "\(.session) \(.frame)"' | sort -u | wc -l)" -eq 9 ]
  [ "$(records 'select(.type == "frame") | select(.rtt_ms > 0 and .latency_ms > 0 and .status == ("ok", "late"))' | jq -s length)" -eq 9 ]
  [ "$(records 'select(.type == "closed").frames' | sort -u)" -eq 3 ]
  [ "$(head -n 1 frames | jq -r '"\(.metronome) \(.tool) \(.sessions) \(.seed) \(.pace) \(.format)"')" = "1 mt-feed 3 1 false s16le" ]
  [[ "$(cat err)" == *"3 sessions, 9 frames"* ]]
  run -0 --separate-stderr mt-feed -q -s mt.sock --no-pace x.wav
  [ -z "$stderr" ]
  run -0 --separate-stderr mt-feed -v -s mt.sock --no-pace -n 2 x.wav
  [ "$(grep -c 'open after' <<<"$stderr")" -eq 2 ]
}

@test "mt-feed: the same seed, the same answers, whoever else calls" {
  serve --frame 1s --answer-tokens 4
  wav s16 16000 1 32000 >a.wav
  texts() { jq -c 'select(.type == "frame") | [.frame, .tokens]' | sort; }
  mt-feed -q -s mt.sock --no-pace --tokens --temperature 1 --seed 5 a.wav | texts >one
  mt-feed -q -s mt.sock --no-pace --tokens --temperature 1 --seed 5 -n 3 a.wav | tee all |
    jq -r 'select(.type == "opened" and .feed == 0).session' >first
  jq -c --arg s "$(cat first)" 'select(.session == $s)' all | texts >again
  cmp one again
  [ -s one ]
  [ "$(texts <all | sort -u | wc -l)" -gt 2 ] # other seeds, other answers
}

@test "mt-feed: callers that pause send nothing meanwhile, by seed, and end when they would have" {
  serve --frame 100ms --backend cost:a=1ms --kv window=64,sinks=0
  mt-feed -q -s mt.sock -n 3 --seconds 6 --talk 500ms:500ms --seed 4 "$DATA/jfk.flac" >a
  mt-feed -q -s mt.sock -n 3 --seconds 6 --talk 500ms:500ms --seed 4 "$DATA/jfk.flac" >b
  local count='map(select(.type == "frame")) | group_by(.session | tonumber) | map(length)'
  [ "$(jq -sc "$count" a)" = "$(jq -sc "$count" b)" ]
  jq -se "$count"' | all(. >= 5 and . <= 50) and length == 3' a
  jq -se 'map(select(.type == "frame" and .session == "1").t) as $t | [range(1; $t | length) | $t[.] - $t[. - 1]] | max > 0.15' a
  jq -se 'map(select(.type == "frame").t) | max - min < 6.5' a
  # A pause never outlasts the call.
  timeout 10 mt-feed -q -s mt.sock -n 3 --seconds 1 --talk 100ms:1h "$DATA/jfk.flac" >c
  jq -se 'map(select(.type == "frame")) | length >= 3 and all(.status == "ok")' c
}

@test "mt-feed: a session that is not admitted is a record, and a failure unless tolerated" {
  serve --frame 1s --answer-tokens 2 --max-sessions 1
  wav s16 16000 1 24000 >x.wav
  run -1 bash -c 'mt-feed -s mt.sock -n 3 --phase locked x.wav >frames 2>err'
  [ "$(records 'select(.status == "refused").reason' | sort | uniq -c | tr -s ' ')" = " 2 limit" ]
  [ "$(records -s '[.[] | select(.status == "ok" or .status == "late")] | length')" -eq 2 ]
  [[ "$(cat err)" == *"2 sessions refused"* ]]
  run -1 mt-feed -s mt.sock -n 3 x.wav
  run -0 mt-feed -s mt.sock -n 3 --tolerate x.wav
}

@test "mt-feed: --retry: a refused session waits until it is let in, and is then whole" {
  serve --frame 100ms --backend cost:a=1ms --max-sessions 2
  wav s16 16000 1 8000 >x.wav
  run -0 bash -c 'mt-feed -s mt.sock -n 5 --retry x.wav >frames 2>err'
  [ "$(records -s 'map(select(.type == "opened")) | length')" -eq 5 ]
  [ "$(records -s 'map(select(.type == "frame")) | length == 25 and all(.status == "ok")')" = true ]
  # Two were let in at once; the others waited for a call to end.
  [ "$(records -s 'map(select(.type == "opened").open_ms) | sort | .[2] >= 450')" = true ]
  [[ "$(cat err)" == *"offers refused and made again"* ]]
  [[ "$(cat err)" != *"sessions refused"* ]]
}

@test "mt-feed: --retry: who is never let in is one refused record, at the end of the run or interrupted" {
  serve --frame 100ms --backend cost:a=1ms --max-sessions 1
  wav s16 16000 1 8000 >x.wav
  run -1 bash -c 'mt-feed -s mt.sock -n 3 --retry --seconds 3 x.wav >frames 2>err'
  [ "$(records 'select(.status == "refused").reason' | sort | uniq -c | tr -s ' ')" = " 2 limit" ]
  [ "$(records -s 'map(select(.status == "ok")) | length')" -eq 30 ]
  mt-feed -s mt.sock -n 3 --retry --loop --tolerate x.wav >frames 2>err &
  pid=$!
  sent() { grep -q '"type":"frame"' frames; }
  within 10 sent
  kill -INT "$pid"
  wait "$pid"
  [ "$(records 'select(.status == "refused").feed' | wc -l)" -eq 2 ]
  [ "$(records 'select(.type == "closed").reason')" = end ]
}

@test "mt-feed: --retry: what is left of the run is all that a late one sends" {
  serve --frame 100ms --backend cost:a=1ms --max-sessions 1
  wav s16 16000 1 8000 >x.wav
  mt-feed -q -s mt.sock --seconds 3 x.wav >/dev/null &
  pid=$!
  full() { [ "$(mt-probe stats -s mt.sock | jq .sessions)" -eq 1 ]; }
  within 10 full
  mt-feed -q -s mt.sock --retry --seconds 8 x.wav >frames
  wait "$pid"
  [ "$(records -s 'map(select(.type == "frame")) | length >= 20 and length <= 75')" = true ]
}

@test "mt-feed: a pool that fills is told by its records and by the exit status" {
  serve --frame 1s --answer-tokens 2 --kv unbounded --pool 12b
  wav s16 16000 1 128000 >x.wav
  run -1 --separate-stderr mt-feed -s mt.sock --no-pace x.wav
  [[ "$stderr" == *"stalled"*"first stall"* ]]
  [ "$(jq -r 'select(.type == "frame").frame' <<<"$output" | wc -l)" -eq 8 ]
  [ "$(jq -r 'select(.status == "stalled").frame' <<<"$output" | wc -l)" -ge 1 ]
}

@test "mt-feed: a server that dies is said once, and the frames without an answer have their records" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 16000 >x.wav
  mt-feed -s mt.sock -n 2 --loop x.wav >frames 2>err &
  pid=$!
  two() { [ "$(grep -c '"frame"' frames)" -ge 4 ]; }
  within 30 two
  kill -9 "$server"
  status=0
  wait "$pid" || status=$?
  [ "$status" -eq 1 ]
  [ "$(grep -c 'closed the connection' err)" -eq 2 ]
  jq -es '[.[] | select(.type == "frame" and .status == "error")] | all(.reason == "no answer")' frames
}

@test "mt-feed: a frame length that is not the server's stops the run" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 64000 >x.wav
  run -1 --separate-stderr mt-feed -s mt.sock --frame 2s x.wav
  [[ "$stderr" == *"--frame"*"1 s long, not 2 s"* ]]
  run -0 mt-feed -s mt.sock --frame 1s --seconds 20ms x.wav
}

@test "mt-feed: interrupted, every session ends in order" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 16000 >x.wav
  mt-feed -s mt.sock -n 3 --loop x.wav >frames 2>err &
  pid=$!
  some() { [ "$(grep -c '"type":"frame"' frames)" -ge 3 ]; }
  within 30 some
  kill -INT "$pid"
  wait "$pid"
  [ "$(records 'select(.type == "closed").reason' | sort | uniq -c | tr -s ' ')" = " 3 end" ]
  [[ "$(cat err)" == *"3 sessions"* ]]
}

@test "mt-feed: --play of a server that only writes says so, once" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 8000 >x.wav
  run -0 --separate-stderr mt-feed -s mt.sock -n 2 --play spoken x.wav
  [ "$(grep -c 'nothing was spoken' <<<"$stderr")" -eq 1 ]
  [ -d spoken ]
  [ -z "$(ls spoken)" ]
  run -1 --separate-stderr mt-feed -s mt.sock --play x.wav/spoken x.wav
  [[ "$stderr" == *"--play"* ]]
}

@test "mt-feed: records that can't be written end the run" {
  serve --frame 1s --answer-tokens 2
  wav s16 16000 1 16000 >x.wav
  run -1 --separate-stderr bash -c 'mt-feed -s mt.sock --loop x.wav >/dev/full'
  [[ "$stderr" == *"standard output"* ]]
  run -0 --separate-stderr bash -c 'set -o pipefail; mt-feed -q -s mt.sock --loop x.wav | head -n 3 | wc -l'
  [ "$output" -eq 3 ]
  [ -z "$stderr" ]
}

@test "mt-feed: a pipe all the way" {
  wav s16 16000 1 16000 >x.wav
  run -0 --separate-stderr bash -c 'set -o pipefail; mt-feed x.wav | mt-serve --frame 1s --answer-tokens 2 --deadline 1min | jq -r .status'
  [[ "$output" == *ok* ]]
}

@test "mt-feed: every option of --help stands in the man page and in the completion" {
  mt-feed --help >help
  mapfile -t options < <(grep -oE -- '--[a-z-]+' help | sort -u)
  [ "${#options[@]}" -gt 20 ]
  for o in "${options[@]}"; do
    grep -qE -- "Fl -${o#--}( |$)|, -${o#--}( |$)" "$MT_TESTS/../man/mt-feed.1" || { echo "man: $o"; false; }
    grep -qE -- "$o( |'|\$)" "$MT_TESTS/../completions/mt-feed" || { echo "completion: $o"; false; }
  done
}
