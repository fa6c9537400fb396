#!/usr/bin/env bats
# Servers over TCP: where they listen, who may do what there, and the limits.

# shellcheck disable=SC2030,SC2031,SC2154  # each test is a subshell; run and serve set variables
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--frame 200ms --answer-tokens 2 --kv window=128,sinks=4 --pool 4MiB)

# serve over TCP, too, on a free port: $tcp is where.
over_tcp() {
  serve -s tcp:127.0.0.1:0 "${QUICK[@]}" "$@"
  tcp=$(jq -r '.sockets[1]' ready.json)
}
silence() {
  head -c "$1" /dev/zero >silence.raw
}

@test "tcp: a wrong address or list is exit 2, and public ones are refused" {
  for bad in tcp: tcp:9001 tcp:a:b:1 tcp:127.0.0.1:65536 tcp::9001; do
    run -2 --separate-stderr mt-serve -s "$bad"
    [[ "$stderr" == *--socket*"$bad"* ]]
    [ -z "$output" ]
  done
  for public in tcp:0.0.0.0:0 'tcp:[::]:0' tcp:192.0.2.1:9001; do
    run -2 --separate-stderr mt-serve -s "$public"
    [[ "$stderr" == *"$public"*encryption*--listen-public* ]]
  done
  for list in '' connections=0 per-address=-1 opens=-1 rate=x idle=soon control=1 more; do
    run -2 --separate-stderr mt-serve -s tcp:127.0.0.1:0 --tcp "$list"
    [[ "$stderr" == *--tcp* ]]
  done
  run -2 --separate-stderr mt-serve -s mt.sock --tcp control
  [[ "$stderr" == *--tcp*tcp:HOST:PORT* ]]
  run -2 --separate-stderr mt-serve -s mt.sock --listen-public
  [[ "$stderr" == *--listen-public* ]]
  run -2 --separate-stderr mt-serve -s{1..9}
  [[ "$stderr" == *"at most 8"* ]]
}

@test "tcp: a port that is taken is exit 1; --listen-public lets others in" {
  over_tcp
  run -1 --separate-stderr mt-serve -s "$tcp" "${QUICK[@]}"
  [[ "$stderr" == *"$tcp"* ]]
  stop
  serve -s tcp:0.0.0.0:0 --listen-public "${QUICK[@]}"
  [[ "$(jq -r '.sockets[1]' ready.json)" == tcp:0.0.0.0:[1-9]* ]]
}

@test "tcp: calls have the same answers as on the Unix socket, by name and by address" {
  silence 64000
  over_tcp
  mt-feed -q -s mt.sock -n 2 --no-pace --raw s16le:16000:1 silence.raw | jq -c 'select(.type == "frame") | [.frame, .tokens_out, .text]' | sort >unix
  mt-feed -q -s "$tcp" -n 2 --no-pace --raw s16le:16000:1 silence.raw | jq -c 'select(.type == "frame") | [.frame, .tokens_out, .text]' | sort >inet
  [ "$(wc -l <unix)" = 20 ]
  diff unix inet
  mt-feed -q -s "tcp:localhost:${tcp##*:}" --no-pace --raw s16le:16000:1 silence.raw >named
  run -0 mt-probe check -s "$tcp"
  [ "$output" = ok ]
}

@test "tcp: a caller may not watch or control, unless it is allowed" {
  over_tcp
  for c in stats watch 'cap 3'; do
    # shellcheck disable=SC2086  # a command and its argument
    run -1 --separate-stderr mt-probe ${c% *} -s "$tcp" ${c#"${c% *}"}
    [[ "$stderr" == *"may only call"* ]]
  done
  stop
  over_tcp --tcp control
  mt-probe stats -s "$tcp" | grep -q sessions
  mt-probe cap -s "$tcp" 3
  [ "$(mt-probe stats -s mt.sock --format json | jq .cap)" = 3 ]
}

@test "tcp: nobody there is one line, whatever the tool" {
  for call in "mt-feed --raw s16le:16000:1 -" "mt-probe stats" "mt-probe watch" mt-admit; do
    # shellcheck disable=SC2086
    run -1 --separate-stderr $call -s tcp:127.0.0.1:1 </dev/null
    [[ "${stderr_lines[-1]}" == *tcp:127.0.0.1:1*listens* ]] || { echo "$call: $stderr"; return 1; }
  done
  run -2 --separate-stderr mt-probe check -s tcp:127.0.0.1:1
  [ "$output" = down ]
}

@test "tcp: too many connections are refused, and those at the Unix socket still get in" {
  silence 64000
  for most in 2 80; do # fewer than there may be sessions, and many more
    over_tcp --max-sessions 4 --tcp "connections=$most,opens=0"
    for ((i = 0; i < most; i++)); do
      exec {fd}<>"/dev/tcp/127.0.0.1/${tcp##*:}"
    done
    run -1 --separate-stderr mt-feed -s "$tcp" --raw s16le:16000:1 silence.raw
    [[ "$output" == *'"refused"'*'"limit"'* ]]
    run -0 mt-probe check -s mt.sock
    [ "$(mt-probe stats -s mt.sock --format json | jq .sessions)" = 0 ]
    stop
  done
}

@test "tcp: one address has no more connections than it may" {
  silence 64000
  over_tcp --tcp per-address=2
  for _ in 1 2; do
    exec {fd}<>"/dev/tcp/127.0.0.1/${tcp##*:}"
  done
  run -1 --separate-stderr mt-feed -s "$tcp" --raw s16le:16000:1 silence.raw
  [[ "$output" == *'"refused"'*'"limit"'* ]]
  printf '{"metronome":1,"type":"open"}\n{"type":"end"}\n' |
    socat -t 5 - "TCP:127.0.0.1:${tcp##*:},bind=127.0.0.2" | grep -q opened # another one
  exec {fd}>&- # one of the first is gone, and there is room
  within 20 mt-feed -q -s "$tcp" --raw s16le:16000:1 silence.raw
}

@test "tcp: connections that come too fast are refused" {
  over_tcp --tcp opens=0.1
  for _ in {1..20}; do
    echo rubbish >"/dev/tcp/127.0.0.1/${tcp##*:}" || true
  done
  run -1 --separate-stderr mt-feed -s "$tcp" --raw s16le:16000:1 - </dev/zero
  [[ "$output" == *'"refused"'*'"pace"'* ]]
}

@test "tcp: who says nothing is let go, whether it has called or not" {
  over_tcp --tcp idle=300ms
  exec {fd}<>"/dev/tcp/127.0.0.1/${tcp##*:}"
  run -0 timeout 20 cat <&"$fd"
  [[ "$output" == *'"error"'*"nothing came for 0.3 s"* ]]
  exec {fd}<>"/dev/tcp/127.0.0.1/${tcp##*:}"
  echo '{"metronome":1,"type":"open"}' >&"$fd"
  run -0 timeout 20 cat <&"$fd"
  [[ "${lines[0]}" == *'"opened"'* ]]
  [[ "${lines[-1]}" == *'"error"'*"nothing came for 0.3 s"* ]]
  idle() { [ "$(mt-probe stats -s mt.sock --format json | jq .sessions)" = 0 ]; }
  within 5 idle
}

@test "tcp: audio that comes too fast waits, and none of it is lost" {
  silence 1280000 # 40 s, of which 30 may come at once
  over_tcp --tcp rate=4
  start=$(date +%s%N)
  mt-feed -q -s "$tcp" --no-pace --raw s16le:16000:1 silence.raw >frames
  took=$((($(date +%s%N) - start) / 1000000))
  [ "$(grep -c '"ok"\|"late"' frames)" = 200 ]
  [ "$took" -gt 1900 ] # 10 s at four times the rate, less a read of 2 s that the limit may be passed by
}
