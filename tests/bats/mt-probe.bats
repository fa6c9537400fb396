#!/usr/bin/env bats
# mt-probe as a user meets it: at a server, on records, and wrongly.

# shellcheck disable=SC2154  # run and serve set variables
# shellcheck disable=SC2317  # functions are called by `within`
load helper

# One second of silence, for sessions.
silence() {
  head -c 32000 /dev/zero >silence.raw
}
call() {
  mt-feed -q -s mt.sock --raw s16le:16000:1 "$@" silence.raw
}
# A server made of one line of perl, which gets each connection as $c: imposter CODE.
imposter() {
  perl -MIO::Socket::UNIX -e '
    my $s = IO::Socket::UNIX->new(Local => "mt.sock", Listen => 5) or die;
    while (my $c = $s->accept) { eval $ARGV[0]; die $@ if $@ }' "$1" 3>&- &
  SERVERS+=("$!")
  within 10 test -S mt.sock
}
# One member of the object on stdout.
get() {
  jq -e -r ".$1" <<<"$output"
}
# record SESSION FRAME STATUS LATENCY_MS [TOKENS_OUT [MORE]]
record() {
  echo '{"type":"frame","session":"'"$1"'","frame":'"$2"',"status":"'"$3"'","latency_ms":'"$4"',"deadline_ms":2000,"tokens_in":50,"tokens_out":'"${5:-9}${6:-}"'}'
}

@test "mt-probe: help lists the commands, and each has its own" {
  run -0 --separate-stderr mt-probe --help
  for c in watch stats cap check drain save play tokens logits embed; do
    grep -qE "^  $c " <<<"$output"
    mt-probe $c --help >help
    grep -q "^Usage: mt-probe $c " help
    mt-probe $c --version | grep -q '^mt-probe (metronome) [0-9]'
  done
}

@test "mt-probe: a wrong call is exit 2, says why, and leaves stdout empty" {
  wrong() {
    run -2 --separate-stderr mt-probe "${@:2}"
    [ -z "$output" ]
    [[ "$stderr" == *"$1"* ]]
  }
  wrong command
  wrong "'nonsense'" nonsense
  wrong nonsense --nonsense
  wrong SOCKET watch
  wrong SOCKET stats
  wrong SOCKET cap
  wrong SOCKET check
  wrong SOCKET drain
  wrong --wait drain -s mt.sock --wait soon
  wrong "'more'" drain -s mt.sock more
  wrong --period watch -s mt.sock --period 0
  wrong "'more'" watch -s mt.sock more
  wrong --format stats -s mt.sock --format xml
  wrong "'x'" cap -s mt.sock x
  wrong "'-1'" cap -s mt.sock -- -1
  wrong "'2'" cap -s mt.sock 1 2
  wrong --timeout check -s mt.sock --timeout 0
  wrong --frame play --frame 2q
  wrong --buffer play --buffer 0
  wrong "'b'" play a b
}

@test "mt-probe: no server: check is exit 2, the others fail" {
  run -2 --separate-stderr mt-probe check -s nobody.sock
  [ "$output" = down ]
  [[ "$stderr" == *nobody.sock* ]]
  for c in watch stats "cap 3" drain; do
    # shellcheck disable=SC2086
    run -1 --separate-stderr mt-probe $c -s nobody.sock
    [ -z "$output" ]
    [[ "$stderr" == "mt-probe: nobody.sock: "* ]]
  done
}

@test "mt-probe check: ok, late, refused" {
  silence
  serve --frame 1s --answer-tokens 2 --deadline 1min
  run -0 --separate-stderr mt-probe check -v -s mt.sock
  [ "$output" = ok ]
  [[ "$stderr" == *" ms for the frame"* ]]
  stop
  serve --frame 1s --answer-tokens 2 --deadline 1ms
  run -1 --separate-stderr mt-probe check -s mt.sock
  [ "$output" = late ]
  [ -z "$stderr" ]
  stop
  serve --frame 1s --answer-tokens 2 --max-sessions 1
  mt-feed -q -s mt.sock --raw s16le:16000:1 --loop silence.raw >frames &
  pid=$!
  within 20 grep -q opened frames
  run -1 --separate-stderr mt-probe check -s mt.sock
  [ "$output" = refused ]
  kill "$pid"
  wait "$pid"
}

@test "mt-probe check: an engine that stands still is found within five frames, and one that is slow, and recovers" {
  silence
  serve --frame 200ms --answer-tokens 2 --fault stop-compute=1500ms
  run -0 mt-probe check -s mt.sock
  [ "$output" = ok ]
  sleep 2.6
  run -1 --separate-stderr timeout 5 mt-probe check -s mt.sock
  [ "$output" = stalled ]
  mt-probe watch -s mt.sock --period 50ms | head -1 | jq -e '.type == "status" and .health == "stalled"'
  kill -9 "$server"
  serve --backend cost:a=30ms,b=0 --frame 100ms --answer-tokens 1 --fault slow=20
  run -1 mt-probe check -s mt.sock
  [ "$output" = late ]
  mt-feed -q --tolerate -s mt.sock --raw s16le:16000:1 --seconds 1 silence.raw >frames
  jq -se 'map(select(.type == "frame")) | length == 10 and all(.status == "late" or .status == "dropped")' frames
  mt-probe watch -s mt.sock --period 50ms | head -1 | jq -e '.health == "late"'
}

@test "mt-probe check: a server that drains says so" {
  serve --frame 200ms --answer-tokens 2
  mt-probe watch -s mt.sock --period 50ms >watched 3>&- &
  SERVERS+=("$!")
  printf '{"metronome":1,"type":"drain"}\n' | socat -t 5 - UNIX-CONNECT:mt.sock
  within 5 grep -q '"health":"draining"' watched
  run -1 mt-probe check -s mt.sock
  [ "$output" = draining ]
}

@test "mt-probe check: what answers wrongly, or not at all" {
  opened='{"metronome":1,"type":"opened","session":"1","rate":16000,"frame_samples":160,"frame_s":0.01}'
  frame='{"type":"frame","session":"1","frame":0,"tokens_in":50,"tokens_out":0,"latency_ms":1,"status":'
  judge() { # WORD ANSWERS
    rm -f mt.sock
    # shellcheck disable=SC2016  # perl's variables
    imposter '<$c>; print $c q('"$2"'); $c->flush; local $/ = \400; <$c>;'
    run -1 --separate-stderr mt-probe check -s mt.sock --timeout 300ms
    [ "$output" = "$1" ]
  }
  judge stalled "$opened
$frame\"stalled\"}
"
  judge untruthful "$opened
$frame\"ok\"}
"
  judge dropped "$opened
$frame\"dropped\"}
"
  judge error "$opened
$frame\"fine\"}
"
  judge error '{"metronome":1,"type":"error","error":"no room at the inn"}
'
  [[ "$stderr" == *"no room at the inn"* ]]
  judge error 'HTTP/1.1 200 OK
'
  [ "${#stderr_lines[@]}" -eq 1 ]
  rm -f mt.sock
  imposter 'sleep 60'
  run -1 --separate-stderr mt-probe check -s mt.sock --timeout 200ms
  [ "$output" = timeout ]
}

@test "mt-probe stats: a line for programs, a table for people" {
  silence
  serve --frame 1s --answer-tokens 2
  call --no-pace >/dev/null
  run -0 --separate-stderr mt-probe stats -s mt.sock
  [ "${#lines[@]}" -eq 1 ]
  [ "$(get type)" = stats ]
  [ "$(jq '.frames | add' <<<"$output")" -eq 1 ]
  run -0 --separate-stderr mt-probe stats -s mt.sock --format table
  [ "${#lines[@]}" -gt 10 ]
  grep -qE '^sessions +0$' <<<"$output"
  grep -qE '^latency.count +1$' <<<"$output"
  run -1 --separate-stderr bash -c 'mt-probe stats -s mt.sock >/dev/full'
  [[ "$stderr" == *"standard output"* ]]
}

@test "mt-probe cap: a number, or the caps on stdin" {
  serve --frame 1s --answer-tokens 2
  cap() { mt-probe stats -s mt.sock | jq .cap; }
  run -0 --separate-stderr mt-probe cap -s mt.sock 7
  [ "$(get type)" = cap ]
  [ "$(get cap)" = 7 ]
  [ "$(cap)" -eq 7 ]
  run -0 --separate-stderr mt-probe cap -s mt.sock <<'END'
{"type":"cap","cap":9,"reason":"grow"}
{"type":"frame","session":"1","frame":1}

{"type":"cap","cap":-3}
not JSON
{"type":"cap","cap":11}
END
  [ "$(jq -c .cap <<<"$output" | paste -sd ' ')" = "9 11" ]
  [[ "$stderr" == *"2 broken lines"* ]]
  [ "$(cap)" -eq 11 ]
}

@test "mt-probe cap: each line is applied when it comes" {
  serve --frame 1s --answer-tokens 2
  mkfifo caps
  mt-probe cap -s mt.sock <caps >out &
  pid=$!
  exec 7>caps
  for n in 3 4; do
    echo '{"type":"cap","cap":'$n'}' >&7
    within 10 grep -q "\"cap\":$n" out
    [ "$(mt-probe stats -s mt.sock | jq .cap)" -eq $n ]
  done
  exec 7>&-
  wait "$pid"
}

@test "mt-probe watch: each record as it comes, and a status line a period" {
  silence
  serve --frame 1s --answer-tokens 2
  mt-probe watch -s mt.sock --period 50ms | cat >seen &
  within 10 grep -q '"status"' seen
  call --no-pace -n 2 >frames
  both() { [ "$(grep -c '"type":"frame"' seen)" -eq 2 ]; }
  within 10 both
  cmp <(jq -c 'select(.type == "frame") | [.session, .frame, .text]' seen | sort) \
    <(jq -c 'select(.type == "frame") | [.session, .frame, .text]' frames | sort)
  n=$(grep -c '"type":"status"' seen)
  more() { [ "$(grep -c '"type":"status"' seen)" -gt $((n + 2)) ]; }
  within 10 more
}

@test "mt-probe watch: ends with the server, with a signal, with its reader" {
  serve --frame 1s --answer-tokens 2
  mt-probe watch -s mt.sock --period 20ms >seen 2>err &
  pid=$!
  within 10 test -s seen
  kill -INT "$pid"
  wait "$pid"
  run -0 --separate-stderr bash -c 'set -o pipefail; mt-probe watch -s mt.sock --period 20ms | head -n 2 | wc -l'
  [ "$output" -eq 2 ]
  [ -z "$stderr" ]
  mt-probe watch -s mt.sock --period 20ms >again 2>>err &
  pid=$!
  within 10 test -s again
  stop
  wait "$pid"
  [ ! -s err ]
}

@test "mt-probe watch: a connection that ends before the server does is a failure" {
  imposter 1 # nothing more than to accept
  run -1 --separate-stderr mt-probe watch -s mt.sock
  [[ "$stderr" == *"closed the connection"* ]]
}

@test "mt-probe play: what a listener hears, by session and in all" {
  {
    record 1 0 ok 100
    record 2 0 ok 100
    record 1 1 stalled 1 0
    record 1 2 stalled 1 0
    record 1 3 late 2500
    record 2 1 ok 1 0
    record 1 4 ok 100
    record 2 2 ok 100 9 ',"rtt_ms":2100'
    echo '{"type":"status","t":1}'
    echo 'half a li'
    record feed-3 0 refused 0
  } >records
  run -0 --separate-stderr mt-probe play records
  [ "${#lines[@]}" -eq 3 ]
  [[ "$stderr" == *"1 broken line"* ]]
  [ "$(jq -c 'select(.session == "1") | [.frames, .heard, .silent, .gaps, .gap_s, .longest_gap_s, .underruns, .underrun_ms]' <<<"$output")" = '[5,3,2,1,4.5,4.5,1,500]' ]
  [ "$(jq -c 'select(.session == "2") | [.frames, .silent, .untruthful, .gaps, .underruns, .underrun_ms]' <<<"$output")" = '[3,1,1,1,1,100]' ]
  [ "$(jq -c 'select(.type == "play_total") | [.sessions, .frames, .refused, .gap_s, .longest_gap_s]' <<<"$output")" = '[2,8,1,6.6,4.5]' ]
  whole=$output
  run -0 --separate-stderr mt-probe play - <records
  [ "$output" = "$whole" ]
  run -0 --separate-stderr mt-probe play --frame 1s records
  [ "$(jq -c 'select(.session == "1").gap_s' <<<"$output")" = 2.5 ]
  # What takes 2.1 or 2.5 s is in time for a buffer of 3 s; with one of 50 ms nothing is.
  run -0 --separate-stderr mt-probe play --buffer 3s records
  [ "$(jq -c 'select(.type == "play_total") | [.underruns, .silent, .buffer_ms == 3000]' <<<"$output")" = '[0,3,true]' ]
  run -0 --separate-stderr mt-probe play -b 50ms records
  [ "$(jq -c 'select(.type == "play_total") | [.underruns, .heard, .silent]' <<<"$output")" = '[5,5,3]' ]
  run -0 --separate-stderr mt-probe play --format table records
  [ "${#lines[@]}" -eq 4 ]
  grep -qE '^all +8 ' <<<"$output"
}

@test "mt-probe play: a lost frame is a gap, and frame lengths are the server's" {
  {
    echo '{"metronome":1,"type":"opened","session":"1","frame_s":0.5}'
    record 1 0 ok 100
    record 1 2 ok 100
    record 1 3 dropped 100 0
  } >records
  run -0 --separate-stderr mt-probe play <records
  [ "$(jq -c 'select(.session == "1") | [.frames, .missing, .gaps, .gap_s]' <<<"$output")" = '[4,1,2,1]' ]
}

@test "mt-probe play: no file, no records, a full disk" {
  run -1 --separate-stderr mt-probe play missing
  [[ "$stderr" == "mt-probe: missing: "* ]]
  [ -z "$output" ]
  run -1 --separate-stderr mt-probe play .
  [ -z "$output" ]
  run -0 --separate-stderr mt-probe play /dev/null
  [ "$(get frames)" = 0 ]
  run -1 --separate-stderr bash -c 'mt-probe play /dev/null >/dev/full'
  [[ "$stderr" == *"standard output"* ]]
}

@test "mt-probe play: a run of mt-feed as it is" {
  silence
  serve --frame 1s --answer-tokens 2 --deadline 1min
  run -0 --separate-stderr bash -c 'mt-feed -q -s mt.sock --no-pace --raw s16le:16000:1 -n 2 silence.raw silence.raw | mt-probe play'
  [ "$(jq -c 'select(.type == "play_total") | [.sessions, .frames, .heard, .gaps]' <<<"$output")" = '[2,4,4,0]' ]
}

@test "mt-probe: every option of --help stands in the man page and in the completion" {
  for c in watch stats cap check drain save play tokens logits embed; do
    mt-probe $c --help >help
    mapfile -t options < <(grep -oE -- '--[a-z-]+' help | sort -u)
    [ "${#options[@]}" -ge 4 ]
    grep -qE "^\.It Cm .*\b$c\b|^\.Cm $c\$" "$MT_TESTS/../man/mt-probe.1"
    grep -qE "^    ([a-z]+ \| )*$c( \| [a-z]+)*\)" "$MT_TESTS/../completions/mt-probe"
    for o in "${options[@]}"; do
      grep -qE -- "Fl -${o#--}( |$)|, -${o#--}( |$)" "$MT_TESTS/../man/mt-probe.1" || { echo "man: $c $o"; false; }
      grep -qE -- "$o( |'|\"|\$)" "$MT_TESTS/../completions/mt-probe" || { echo "completion: $c $o"; false; }
    done
  done
}
