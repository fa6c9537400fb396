#!/usr/bin/env bats
# mt-serve --metrics as those who watch meet it: curl, promtool, Prometheus itself.

# shellcheck disable=SC2030,SC2031,SC2154,SC2317  # each test is a subshell; run and serve set variables; within calls
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--frame 200ms --answer-tokens 2 --kv window=128,sinks=4 --pool 4MiB)

# serve with --metrics on a free port: $at is where.
metered() {
  command -v curl >/dev/null || skip "no curl"
  serve --metrics 0 "$@"
  at=$(jq -r .metrics ready.json)
}
get() {
  curl -s --max-time 10 "http://$at/$1"
}
metric() {
  get metrics | grep -v '^#' | grep -F "$1 " | sed 's/.* //'
}
code() {
  curl -s -o body -w '%{http_code}' --max-time 10 "http://$at/$1"
}
code_is() {
  [ "$(code "$1")" = "$2" ]
}
silence() {
  head -c "$1" /dev/zero >silence.raw
}

@test "metrics: a wrong address is exit 2, one that is taken exit 1, and there must be a server" {
  for bad in rubbish localhost: 99999 unix: 1:2:3; do
    run -2 --separate-stderr timeout 10 mt-serve -s mt.sock --metrics "$bad"
    [[ "$stderr" == *--metrics* ]]
    [ -z "$output" ]
  done
  run -2 --separate-stderr mt-serve --metrics 0
  [[ "$stderr" == *--metrics*"-s SOCKET"* ]]
  metered "${QUICK[@]}"
  run -1 --separate-stderr mt-serve -s other.sock --metrics "$at"
  [[ "$stderr" == *"$at"* ]]
}

@test "metrics: both formats, each with its content type, on TCP and on a Unix socket" {
  metered "${QUICK[@]}"
  run -0 curl -si "http://$at/metrics"
  [[ "$output" == *"Content-Type: text/plain; version=0.0.4; charset=utf-8"* ]]
  run -0 curl -si -H 'Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5' "http://$at/metrics"
  [[ "$output" == *"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"* ]]
  [ "${lines[-1]}" = "# EOF" ]
  [ "$(code nothing)" = 404 ]
  [ "$(curl -s -o body -w '%{http_code}' -X POST -d x "http://$at/metrics")" = 405 ]
  stop
  serve "${QUICK[@]}" --metrics unix:m.sock
  [ "$(stat -c %a m.sock)" = 600 ]
  curl -s --unix-socket m.sock http://x/metrics | grep -q metronome_build_info
  stop
  [ ! -e m.sock ]
}

@test "metrics: the counts are the records'" {
  silence 96000
  metered "${QUICK[@]}" --max-sessions 2
  mt-feed -q --tolerate --no-pace -s mt.sock -n 2 --raw s16le:16000:1 silence.raw >frames
  mt-feed -q --tolerate --no-pace -s mt.sock -n 3 --raw s16le:16000:1 silence.raw >others || true
  for status in ok late stalled dropped error; do
    n=$(cat frames others | jq -n --arg s $status '[inputs | select(.type == "frame" and .status == $s)] | length')
    [ "$(metric "metronome_frames_total{status=\"$status\"}")" = "$n" ]
  done
  [ "$(metric metronome_frame_latency_seconds_count)" = "$(cat frames others | grep -c '"status":"\(ok\|late\)"')" ]
  [ "$(metric 'metronome_frame_latency_seconds_bucket{le="0.2"}')" = "$(cat frames others | grep -c '"status":"ok"')" ]
  [ "$(metric 'metronome_refused_total{reason="limit"}')" = "$(mt-probe stats -s mt.sock | jq .refused)" ]
  [ "$(metric 'metronome_refused_total{reason="limit"}')" -ge 1 ]
  [ "$(metric metronome_admit_limit_sessions)" = 2 ]
  mt-probe cap -s mt.sock 1 >/dev/null
  [ "$(metric metronome_admit_limit_sessions)" = 1 ]
  [ "$(metric 'metronome_admit_limit_changes_total{direction="down"}')" = 1 ]
}

@test "metrics: health over HTTP is that of the engine, not of the listener" {
  metered "${QUICK[@]}" --fault stop-compute=1500ms
  [ "$(code healthz)" = 200 ]
  [ "$(code readyz)" = 200 ]
  [ "$(cat body)" = ok ]
  within 5 code_is healthz 503
  [[ "$(cat body)" == "stalled "*" ms" ]]
  [ "$(code readyz)" = 503 ]
  [ "$(metric 'metronome_health{probe="alive"}')" = 0 ]
  kill -9 "$server"
  serve "${QUICK[@]}" --deadline 1us --metrics "$at"
  [ "$(code healthz)" = 200 ]
  [ "$(code readyz)" = 503 ]
  [ "$(cat body)" = late ]
}

# The first word of /readyz, of mt-probe check and of the status line.
words() {
  code readyz >/dev/null
  echo "$(cut -d' ' -f1 body) $(mt-probe check -s mt.sock 2>/dev/null) $(mt-probe watch -s mt.sock 2>/dev/null | head -n 1 | jq -r .health)"
}
words_are() {
  [ "$(words)" = "$1 $1 $1" ]
}

@test "metrics: health is one word, over HTTP, from mt-probe check and in the status line" {
  metered "${QUICK[@]}" --fault stop-compute=4s
  within 10 words_are ok
  within 20 words_are stalled
  kill -9 "$server"
  serve "${QUICK[@]}" --metrics "$at"
  mt-probe drain -s mt.sock
  within 10 words_are draining
  [ "$(code healthz)" = 200 ]
  kill -9 "$server"
  serve "${QUICK[@]}" --deadline 1us --metrics "$at"
  within 10 words_are late
}

@test "metrics: a client that says nothing, or half of it, holds up nobody" {
  metered "${QUICK[@]}"
  for _ in {1..40}; do
    exec {fd}<>"/dev/tcp/${at%:*}/${at##*:}"
    printf 'GET /metr' >&"$fd"
  done
  silence 32000
  mt-feed -q --no-pace -s mt.sock --raw s16le:16000:1 silence.raw >frames
  jq -se 'map(select(.type == "frame")) | length > 0 and all(.status == "ok")' frames
  within 20 code_is healthz 200
}

@test "metrics: scraped ten times a second, frames take as long as ever" {
  local without with
  silence 3200
  metered --backend cost:a=60ms,b=0 --frame 100ms --answer-tokens 1
  p99() {
    mt-feed -q --tolerate -s mt.sock --raw s16le:16000:1 --seconds 6 --loop silence.raw |
      jq -s 'map(select(.type == "frame").latency_ms) | sort | .[(length * 0.99 | floor)]'
  }
  # Other load on the machine shows here, too (of 60 frames p99 is the worst): one quiet pair is enough, within 5 ms of 60.
  for _ in 1 2 3; do
    without=$(p99)
    (while sleep 0.1; do get metrics >/dev/null; done) 3>&- &
    SERVERS+=("$!")
    with=$(p99)
    kill "$!"
    echo "p99 ms: without $without, with $with"
    [ "$(jq -n "$with < $without * 1.08")" = true ] && return
  done
  return 1
}

@test "metrics: promtool finds nothing, and Prometheus scrapes them" {
  command -v promtool >/dev/null && command -v prometheus >/dev/null || skip "no prometheus here (Debian package prometheus)"
  metered "${QUICK[@]}"
  get metrics | promtool check metrics
  cp "$MT_TESTS"/../contrib/prometheus/*.yml .
  promtool check rules metronome.rules.yml
  promtool test rules metronome.test.yml
  sed -i "s/127.0.0.1:9464/$at/; s/5s/1s/" prometheus.yml
  promtool check config prometheus.yml
  prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:19464 >prom.log 2>&1 3>&- &
  SERVERS+=("$!")
  found() {
    curl -sf 'http://127.0.0.1:19464/api/v1/query?query=metronome_health' >result && jq -e '.data.result | length == 2' result >/dev/null
  }
  within 30 found
  curl -s 'http://127.0.0.1:19464/api/v1/targets' >targets
  jq -e '.data.activeTargets[0] | .health == "up" and .lastError == ""' targets || { cat targets; return 1; }
  typed() {
    curl -sf 'http://127.0.0.1:19464/api/v1/targets/metadata?metric=metronome_frame_latency_seconds' >result &&
      jq -e '.data[0].type == "histogram"' result >/dev/null
  }
  within 10 typed
}

@test "metrics: the dashboard is JSON, and asks for what there is" {
  metered "${QUICK[@]}"
  get metrics | sed -n 's/^# TYPE \([^ ]*\).*/\1/p' >there
  jq -r '.panels[].targets[].expr, .templating.list[].query' "$MT_TESTS/../contrib/grafana/metronome.json" |
    cat - "$MT_TESTS"/../contrib/prometheus/metronome.rules.yml | grep -o 'metronome_[a-z_]*' | sed 's/_bucket$//' | sort -u >asked
  [ "$(wc -l <asked)" -gt 15 ]
  while read -r m; do
    grep -qx "$m" there || { echo "$m"; return 1; }
  done <asked
}
