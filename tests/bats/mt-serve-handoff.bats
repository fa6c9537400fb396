#!/usr/bin/env bats
# mt-serve --handoff: a new server takes over from the old one, in the middle of calls.

# shellcheck disable=SC2030,SC2031,SC2154,SC2317  # each test is a subshell; run and serve set variables; within calls
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--frame 200ms --deadline 1s --answer-tokens 3 --kv window=40,sinks=4 --pool 4MiB --handoff hand.sock)

# 6 s of sound that is not silence, and what N calls of it are answered when nobody disturbs them.
undisturbed() {
  openssl enc -aes-128-ctr -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c 192000 >call.raw
  [ -s call.raw ] || seq 1 60000 | head -c 192000 >call.raw
  feed "$@" --no-pace >frames
  answers <frames >whole
  [ "$(wc -l <whole)" -ge 60 ]
}
too_slow() {
  [ -z "${MT_SAN:-}" ] || skip "the sanitizers are too slow for a beat: test_handoff has calls without one"
}
feed() {
  mt-feed -q --tokens -s mt.sock -n 2 --raw s16le:16000:1 call.raw "$@"
}
# Of a call by the others' numbers its session means nothing; late or not is the clock's business.
answers() {
  jq -c 'select(.type == "frame") | [.frame, .text, .tokens, .tokens_in, .kv_tokens]' | sort
}
# Paced calls that are in the middle; $calls is their pid.
calls() {
  too_slow
  feed "$@" >moved 2>feed.err 3>&- &
  calls=$!
  SERVERS+=("$calls")
  within 30 grep -q '"frame":5' moved
}
# They end well, were answered as undisturbed ones are, and at most one frame of each was late.
calls_end() {
  wait "$calls" || { cat feed.err; return 1; }
  answers <moved >got
  diff whole got
  jq -se '[.[] | select(.type == "frame" and .status != "ok")]
    | all(.status == "late") and (group_by(.session) | all(length <= 1))' moved
}
# One more server; $new is its pid, new.json and new.err what it says.
successor() {
  rm -f new.json
  mt-serve -s mt.sock "$@" >new.json 2>new.err 3>&- &
  new=$!
  SERVERS+=("$new")
}
last_session() {
  jq -s '[.[] | select(.session) | .session | tonumber] | max' "$1"
}
has_taken() {
  grep -q '"taken"' new.json
}

@test "handoff: paced calls, a watcher and a controller's cap go on at the new server" {
  serve "${QUICK[@]}"
  old=$server
  undisturbed
  mt-probe cap -s mt.sock 5 >/dev/null
  calls
  mt-probe watch -s mt.sock >watched 3>&- &
  SERVERS+=("$!")
  within 20 grep -q '"frame":8' watched
  frames=$(grep -c '"type":"frame"' watched)
  successor "${QUICK[@]}" --threads 3 --pool 3MiB
  within 60 has_taken
  [ "$(jq .taken new.json)" = 2 ]
  wait "$old"
  calls_end
  # The watcher has seen the frames of both; numbers, time and the cap go on.
  [ "$(grep -c '"type":"frame"' watched)" -gt "$frames" ]
  jq -se '[.[] | select(.type == "status") | .t] | . == sort' watched
  [ "$(mt-probe stats -s mt.sock | jq .cap)" = 5 ]
  feed --no-pace >again
  answers <again | diff whole -
  [ "$(last_session moved)" = 4 ]
  [ "$(last_session again)" = 6 ]
  kill -TERM "$new"
  wait "$new"
  [ ! -e mt.sock ] && [ ! -e hand.sock ]
}

@test "handoff: one after the other, MT_HANDOFFS times (5), under calls at 8 kHz and TCP" {
  too_slow
  serve "${QUICK[@]}" -s tcp:127.0.0.1:0
  new=$server
  undisturbed --rate 8000
  port=$(jq -r '.sockets[1]' ready.json)
  n=${MT_HANDOFFS:-5}
  mt-feed -q --tokens -s "$port" -n 2 --rate 8000 --seconds "$((n + 6))" --loop --raw s16le:16000:1 call.raw >moved 2>feed.err 3>&- &
  calls=$!
  SERVERS+=("$calls")
  within 30 grep -q '"frame":3' moved
  for ((i = 0; i < n; i++)); do
    old=$new
    successor "${QUICK[@]}" -s tcp:127.0.0.1:0
    within 60 has_taken
    wait "$old"
    [ "$(jq -r '.sockets | length' new.json)" = 2 ]
    [ "$(jq -r '.sockets[1]' new.json)" = "$port" ]
  done
  wait "$calls" || { cat feed.err; return 1; }
  jq -se '[.[] | select(.type == "frame")] | length > 60 and all(.status == "ok" or .status == "late")' moved
  jq -se 'all(.type != "closed" or .reason == "end")' moved
  mt-feed -q --tokens -s "$port" -n 2 --rate 8000 --seconds "$((n + 6))" --loop --no-pace --raw s16le:16000:1 call.raw | answers >whole
  answers <moved | diff whole -
  kill -TERM "$new"
  wait "$new"
}

@test "handoff: metrics go along: the socket, and what was counted" {
  command -v curl >/dev/null || skip "no curl"
  serve "${QUICK[@]}" --metrics unix:m.sock
  old=$server
  undisturbed
  calls
  successor "${QUICK[@]}" --metrics unix:m.sock
  within 60 has_taken
  wait "$old"
  calls_end
  curl -s --unix-socket m.sock http://x/metrics >metrics
  counted=$(sed -n 's/^metronome_frames_total{[^}]*} //p' metrics | awk '{ n += $1 } END { print n }')
  [ "$counted" = "$(cat frames moved | grep -c '"type":"frame"')" ]
  [ "$(curl -s --unix-socket m.sock http://x/readyz)" = ok ]
  kill -TERM "$new"
  wait "$new"
  [ ! -e m.sock ]
}

@test "handoff: a new server that does not fit says so in one line, and the old one goes on" {
  serve "${QUICK[@]}"
  undisturbed
  calls
  refused() {
    run -"$1" --separate-stderr mt-serve -s mt.sock "${QUICK[@]}" "${@:3}"
    [[ "$stderr" == *"$2"* ]] || { echo "$stderr"; return 1; }
    [ "$(wc -l <<<"$stderr")" = 1 ]
    [ -z "$output" ]
  }
  refused 1 "model is" -m synth:qwen2.5-omni-tiny,seed=2
  refused 1 '--kv-type is "bf16" there, "f32" here' --kv-type f32
  refused 1 "its window are 40 there, 30 fit here" --kv window=30,sinks=4
  refused 1 "its sessions are 2 there, 1 fit here" --max-sessions 1
  refused 1 '000000 there, 2000000000 here' --deadline 2s
  calls_end
}

@test "handoff: killed at any moment, the new server leaves the calls at the old one, or has them" {
  serve "${QUICK[@]}"
  undisturbed
  calls --loop --seconds 20
  for pause in 0 0.02 0.05 0.1 0.15 0.2 0.25 0.3; do
    successor "${QUICK[@]}"
    sleep "$pause"
    has_taken && break
    kill -9 "$new"
    wait "$new" || true
    mt-probe stats -s mt.sock >asked || break
  done
  if mt-probe stats -s mt.sock >asked; then
    # Before it had them, they are where they were; whoever has them has both.
    [ "$(jq .sessions asked)" = 2 ]
    wait "$calls" || { cat feed.err; return 1; }
    jq -se '[.[] | select(.type == "frame")] | length >= 190 and all(.status == "ok" or .status == "late")' moved
  else
    # It died when it had them, before its ready line said so: the old one had left in good order.
    wait "$server"
    rc=0
    wait "$calls" || rc=$?
    [ "$rc" != 0 ]
  fi
}

@test "handoff: an old server that is killed in the middle leaves the new one serving" {
  for pause in 0.02 0.1 0.2 0.3; do
    serve "${QUICK[@]}"
    [ -e whole ] || undisturbed
    calls
    successor "${QUICK[@]}"
    sleep "$pause"
    kill -9 "$server" || has_taken
    wait "$server" || true
    within 60 grep -q ready new.json
    [ "$(mt-probe stats -s mt.sock | jq .sessions)" = "$(jq '.taken // 0' new.json)" ]
    wait "$calls" || [ "$(jq '.taken // 0' new.json)" -lt 2 ]
    feed --no-pace | answers | diff whole -
    kill -TERM "$new"
    wait "$new"
  done
}

@test "handoff: an old server that was killed is followed by one that begins anew" {
  serve "${QUICK[@]}"
  kill -9 "$server"
  wait "$server" || true
  [ -e hand.sock ]
  successor "${QUICK[@]}"
  within 60 grep -q ready new.json
  [ "$(jq .taken new.json)" = null ]
  undisturbed
}

@test "handoff: an engine that does not come to a stop can't hand over, and its clients are told as before" {
  serve "${QUICK[@]}" --fault stop-compute
  told() {
    [ "$(timeout 5 mt-probe check -s mt.sock)" = stalled ]
  }
  within 20 told
  successor "${QUICK[@]}"
  rc=0
  wait "$new" || rc=$?
  [ "$rc" = 1 ]
  [[ "$(cat new.err)" == *"--handoff: the other server"* ]]
  within 10 told
  run -1 --separate-stderr mt-serve -s mt.sock "${QUICK[@]}"
  [[ "$stderr" == *"the engine does not come to a stop"* ]]
}

@test "handoff: calls don't end for want of a place for the new server's ready line" {
  [ -w /dev/full ] || skip "no /dev/full"
  serve "${QUICK[@]}"
  undisturbed
  calls
  mt-serve -s mt.sock "${QUICK[@]}" >/dev/full 2>new.err 3>&- &
  new=$!
  SERVERS+=("$new")
  wait "$server"
  calls_end
  kill -TERM "$new"
  wait "$new" || true # it could not say all that it had to say
}

@test "handoff: nobody there is a start, a file there is left alone, and wrong options are exit 2" {
  echo mine >file
  run -2 --separate-stderr mt-serve -s mt.sock --handoff file
  [[ "$stderr" == *"file: exists and is not a socket"* ]]
  [ "$(cat file)" = mine ]
  run -2 --separate-stderr mt-serve -s mt.sock --handoff "$(printf 'x%.0s' {1..200})"
  [[ "$stderr" == *"at most 107 bytes"* ]]
  run -2 --separate-stderr mt-serve --handoff hand.sock
  [[ "$stderr" == *"--handoff"*"-s SOCKET"* ]]
  run -2 --separate-stderr mt-serve -s mt.sock --handoff ""
  run -1 --separate-stderr mt-serve -s mt.sock --handoff none/hand.sock
  [[ "$stderr" == *"none"*"No such file"* ]]
  serve "${QUICK[@]}"
  [ "$(stat -c %a hand.sock)" = 600 ]
  # The session socket is no place for a successor, nor is the other way round.
  run -1 --separate-stderr mt-serve -s other.sock --handoff mt.sock
  [[ "$stderr" == *"something else than a hand-over"* ]]
  run -1 --separate-stderr mt-probe stats -s hand.sock
  undisturbed
}
