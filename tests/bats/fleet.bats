#!/usr/bin/env bats
# mt-admit --agent-check, by hand and with the real HAProxy: servers behind it as the example in contrib/haproxy has them.

# shellcheck disable=SC2030,SC2031,SC2154,SC2317  # each test is a subshell; run and serve set variables; within calls
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--backend cost:a=5ms,b=1ms --frame 500ms --answer-tokens 1)

# mt-admit on mt.sock with an agent on a free port, $agent: agent ARGS…
agent() {
  mt-admit -s mt.sock --agent-check 0 "$@" >admit.out 2>admit.err 3>&- &
  admit=$!
  SERVERS+=("$admit")
  within 20 grep -q agent_check admit.out
  agent=$(jq -r 'select(.type == "ready").agent_check' admit.out)
}
# What the agent says to a client that says "$1".
ask() {
  printf '%s' "${1:-}" | socat -t 5 - "TCP:$agent"
}
says() {
  said=$(ask "${2:-}")
  # shellcheck disable=SC2053  # a pattern
  [[ "$said" == $1 ]]
}
silence() {
  head -c "$1" /dev/zero >silence.raw
}

@test "agent-check: a wrong address is exit 2, one that is taken exit 1" {
  for bad in rubbish localhost: 99999 unix: 1:2:3; do
    run -2 --separate-stderr mt-admit -s mt.sock --agent-check "$bad"
    [[ "$stderr" == *--agent-check* ]]
    [ -z "$output" ]
  done
  agent
  run -1 --separate-stderr mt-admit -s mt.sock --agent-check "$agent"
  [[ "$stderr" == *--agent-check*"$agent"* ]]
}

@test "agent-check: the whole life of a server, to the byte" {
  silence 640000
  agent --cap0 10 --max 10
  [ "$(ask)" = "down # warming" ] # there is none yet
  serve "${QUICK[@]}"
  within 20 says "up ready 100% maxconn:10"
  [ "$(ask | od -An -c | tr -d ' \n')" = 'upready100%maxconn:10\n' ]
  within 20 says "up ready 100% maxconn:3" $'share=3\n'
  mt-feed -q --tolerate -s mt.sock -n 4 --raw s16le:16000:1 silence.raw >frames 3>&- &
  feeder=$!
  within 20 says "up ready 60% maxconn:10"
  kill -STOP "$server"
  within 20 says "down # stalled [0-9]*ms"
  kill -CONT "$server"
  within 20 says "up ready 60% maxconn:10"
  mt-probe drain -s mt.sock
  within 20 says "up drain maxconn:10"
  kill -INT "$feeder"
  wait "$feeder"
  kill -9 "$server"
  within 20 says "stopped # shutdown"
  serve "${QUICK[@]}"
  within 20 says "up ready 100% maxconn:10"
  kill -0 "$admit"
}

@test "agent-check: records on standard input, and their silence" {
  mkfifo in
  mt-admit --deadline 80ms --agent-check 0 --cap0 8 --max 8 <in >admit.out 3>&- &
  SERVERS+=("$!")
  exec {fd}>in
  within 20 grep -q agent_check admit.out
  agent=$(jq -r 'select(.type == "ready").agent_check' admit.out)
  [ "$(ask)" = "down # warming" ]
  echo '{"type":"status","t":1,"sessions":2,"pending":0,"health":"ok"}' >&"$fd"
  within 20 says "up ready 75% maxconn:8"
  echo '{"type":"status","t":2,"sessions":8,"pending":0,"health":"ok"}' >&"$fd"
  within 20 says "up ready 1% maxconn:8"
  echo '{"type":"status","t":3,"sessions":8,"pending":0,"health":"warming"}' >&"$fd"
  within 20 says "down # warming"
  within 20 says "down # stalled [0-9]*ms"
}

@test "mt-probe drain: waits for the last call, and says who is still there" {
  silence 64000
  serve "${QUICK[@]}"
  mt-feed -q -s mt.sock --raw s16le:16000:1 --loop --seconds 3 silence.raw >frames 3>&- &
  feeder=$!
  one() { [ "$(mt-probe stats -s mt.sock --format json | jq .sessions)" = 1 ]; }
  within 20 one
  run -1 --separate-stderr mt-probe drain -s mt.sock --wait 100ms
  [[ "$stderr" == *"1 calls are still there"* ]]
  run -0 mt-probe drain -s mt.sock --wait 1min
  [[ "$output" == *'"drain"'* ]]
  wait "$feeder"
  [ "$(grep -c '"ok"\|"late"' frames)" -ge 6 ]
  run -1 mt-feed -q -s mt.sock --raw s16le:16000:1 silence.raw
  [[ "$output" == *'"refused"'*'"drain"'* ]]
}

# ---- with HAProxy ----

MEMBERS=()

proxied() {
  command -v haproxy >/dev/null || skip "no haproxy here (Debian package haproxy)"
  PORTS=$((20000 + $$ % 30 * 300)) # of which a fleet has room for 300
  export PORTS MAX=$1 CAP0=$1
  perl -pe 's/\b9(\d\d\d)\b/$ENV{PORTS} + $1/ge' "$MT_TESTS/../contrib/haproxy/haproxy.cfg" >haproxy.cfg
  haproxy -c -q -f haproxy.cfg
  haproxy -f haproxy.cfg >haproxy.log 2>&1 3>&- &
  SERVERS+=("$!")
  within 10 test -S haproxy.sock
}
member() {
  bash "$MT_TESTS/../contrib/haproxy/fleet" . "$1" "${QUICK[@]}" 2>"s$1.err" 3>&- &
  MEMBERS[$1]=$!
}
teardown() {
  for p in "${MEMBERS[@]}"; do # its own children go with it
    kill "$p" 2>/dev/null || true
    wait "$p" 2>/dev/null || true
  done
  for p in "${SERVERS[@]}"; do kill -9 "$p" 2>/dev/null || true; done
}
# Column COL of server sN as the proxy sees it.
seen() {
  echo "show stat" | socat - UNIX-CONNECT:haproxy.sock | awk -F, -v s="$1" -v c="$2" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } $2 == s { print $at[c] }'
}
up() {
  local n
  for n; do [[ "$(seen "s$n" status)" == UP* ]] || return 1; done
}
sessions() {
  mt-probe stats -s "s$1.sock" --format json | jq .sessions
}
all_in() {
  local sum=0 n
  for n in $2; do sum=$((sum + $(sessions "$n"))); done
  [ "$sum" = "$1" ]
}
call() {
  mt-feed -q --tolerate -s "tcp:127.0.0.1:$PORTS" --raw s16le:16000:1 --loop "$@" silence.raw 3>&-
}

@test "fleet: three servers behind HAProxy: calls go where there is room, one dies, one drains, one comes" {
  silence 64000
  proxied 3
  member 1
  member 2
  member 3
  within 60 up 1 2 3
  [ "$(seen s4 status)" != UP ]
  # The limits are the controllers', and the proxy has them.
  limits() { for n in 1 2 3; do [ "$(seen s$n slim)" = 3 ] || return 1; done; }
  within 10 limits || { cat s1.admit s1.err; seen s1 status; return 1; }

  # Six calls, one after the other: each server has as many beats free, so each gets two.
  call -n 6 --arrivals ramp:2 --seconds 14 >first 2>first.err &
  first=$!
  within 30 all_in 6 "1 2 3"
  placed=$(sessions 1)$(sessions 2)$(sessions 3)
  [ "$placed" = 222 ] || { echo "$placed"; cat s?.err; return 1; }

  # One is killed: its calls end, each with a reason, and nobody else's.
  kill -9 "$(pgrep -P "${MEMBERS[1]}" -x mt-serve)"
  down() { [[ "$(seen s1 status)" == DOWN* ]]; }
  within 20 down
  [ "$(sessions 2) $(sessions 3)" = "2 2" ]

  # New ones go elsewhere.
  call -n 2 --seconds 3 >second 2>second.err || { cat second.err s?.err; return 1; }
  [ "$(jq -s 'map(select(.type == "frame" and .status != "ok" and .status != "late")) | length' second)" = 0 ]
  [ "$(grep -c '"opened"' second)" = 2 ]

  # One drains: its calls go on, and it gets no new ones, though it has room; one that comes takes them.
  mt-probe drain -s s2.sock
  drained() { [[ "$(seen s2 status)" == @(DRAIN|DOWN)* ]]; }
  within 20 drained
  member 4
  within 60 up 4
  before=$(seen s2 stot)
  call -n 3 --seconds 3 >third 2>third.err || { cat third.err s?.err; return 1; }
  [ "$(grep -c '"opened"' third)" = 3 ]
  [ "$(seen s2 stot)" = "$before" ]
  [ "$(seen s4 stot)" -ge 1 ]

  wait "$first" || true # some of it was lost
  [ "$(grep -c 'the server closed the connection before the call was over' first.err)" = 2 ]
  [ "$(jq -s 'map(select(.type == "frame" and (.status | IN("ok", "late", "error") | not))) | length' first)" = 0 ]
  # Four of the six heard everything.
  [ "$(jq -s 'map(select(.type == "closed" and .reason == "end")) | length' first)" = 4 ]
}

@test "fleet: a full fleet refuses, and nobody waits" {
  silence 64000
  proxied 1
  member 1
  within 60 up 1
  limits() { [ "$(seen s1 slim)" = 1 ]; }
  within 10 limits || { cat s1.admit s1.err; seen s1 status; return 1; }
  call --seconds 6 >first &
  first=$!
  within 30 all_in 1 1
  run -1 call --seconds 2
  [[ "$output" != *'"opened"'* ]]
  wait "$first" || true # some of it was lost
  [ "$(jq -s 'map(select(.type == "closed" and .reason == "end")) | length' first)" = 1 ]
}
