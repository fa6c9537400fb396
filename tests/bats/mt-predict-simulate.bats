#!/usr/bin/env bats
# mt-predict simulate: the engine under virtual time, as a user meets it, also wrongly.

# shellcheck disable=SC2154 # stderr is what run sets
load helper

M=(-m moshi-7b --pool 24GiB --mode free --answer-tokens 1 --cost "a=20ms,b=1.5ms")

sim() {
  mt-predict simulate "${M[@]}" "$@"
}

# A call that is refused with exit 2 and says so.
wrong() {
  local word=$1
  shift
  run -2 --separate-stderr mt-predict simulate "$@"
  [ -z "$output" ]
  [[ $stderr == *"$word"* ]]
}

@test "simulate: the same options give the same records, another seed gives others" {
  sim -n 20 --seconds 20 --kv window=1500,sinks=4 --phase random --cost a=20ms,b=1.5ms,jitter=3% >a
  sim -n 20 --seconds 20 --kv window=1500,sinks=4 --phase random --cost a=20ms,b=1.5ms,jitter=3% >b
  sim -n 20 --seconds 20 --kv window=1500,sinks=4 --phase random --cost a=20ms,b=1.5ms,jitter=3% --seed 2 >c
  cmp a b
  run ! cmp -s a c
}

@test "simulate: records are a server's, and the totals are their sum" {
  sim -n 30 --seconds 10 --kv unbounded --phase locked >out
  jq -se '(map(select(.type == "frame")) | length) as $n | map(select(.type == "simulated"))[0].frames | add == $n and $n > 3000' out
  jq -se 'map(select(.type == "frame")) | all(.wait_ms + .encode_ms + .prefill_ms + .decode_ms - .latency_ms | fabs < 1e-3)' out
  jq -se 'map(select(.type == "frame" and .status == "ok")) | all(.tokens_in == 1 or .tokens_in == 2)' out
  # 30 sessions in step: a + b N.
  jq -se 'map(select(.type == "frame").latency_ms) | max - 65 | fabs < 0.01' out
}

@test "simulate: the collapse comes in the frame that the closed form foretells" {
  for n in 30 35 39; do
    foretold=$(mt-predict -m moshi-7b --pool 24GiB -n $n --rate 25 | jq .t_sat_locked_s)
    sim -n $n --seconds 200 --phase locked --totals --patient --deadline 10s >out
    jq -e --argjson t "$foretold" '.t_collapse_s - $t | fabs <= 0.2' out
    jq -e '.frames.stalled > 0 and .frames.late == 0 and .pool > 0.99' out
  done
}

@test "simulate: a window never stalls, and who does not fit is refused with the reason" {
  sim -n 40 --seconds 100 --kv window=1500,sinks=4 --phase locked >out
  jq -se 'map(select(.status == "refused")) | length == 8 and all(.reason == "memory")' out
  jq -se 'map(select(.type == "simulated"))[0] | .refused_calls == 8 and .frames.stalled == 0 and .frames.late == 0' out
}

@test "simulate: silent stalls are ok frames without a token" {
  sim -n 39 --seconds 90 --phase locked --silent-stall --totals >out
  jq -e '.frames.stalled == 0 and .untruthful > 1000 and .frames.ok > .untruthful' out
}

@test "simulate: people who come and go" {
  sim -n 1000 --seconds 600 --kv window=1500,sinks=4 --arrivals poisson:0.2 --duration exp:30s --totals >out
  jq -e '.frames.ok > 20000 and .frames.stalled == 0' out
  sim -n 3 --seconds 600 --kv window=1500,sinks=4 --duration fixed:8s --totals >out
  jq -e '.frames.ok == 300' out
}

@test "simulate: answers end by themselves in turn mode" {
  mt-predict simulate -m qwen3-omni-30b --pool 40GiB -n 4 --seconds 400 --cost a=10ms,b=1ms --answer-tokens 64 --answers 8 >out
  jq -se 'map(select(.type == "frame").tokens_out) | add / length | . > 6.5 and . < 9.5' out
}

@test "simulate: wrong calls" {
  wrong -m
  wrong -m -m nothing --pool 1GiB --cost a=1ms
  wrong --pool -m moshi-7b --cost a=1ms
  wrong --pool -m moshi-7b --pool 1KiB --cost a=1ms
  wrong a=20ms "${M[@]}" --cost b=2ms
  wrong a=20ms "${M[@]}" --cost a=1ms,c=2
  wrong a=20ms "${M[@]}" --cost a=1ms,jitter=200%
  wrong --duration "${M[@]}" --duration file
  wrong --answers "${M[@]}" --answers 3
  wrong --seconds "${M[@]}" --seconds 0
  wrong no.wav "${M[@]}" no.wav
  wrong --frobnicate "${M[@]}" --frobnicate
  run -1 --separate-stderr mt-predict simulate -m moshi-7b --pool 10b --kv window=1500,sinks=4 --cost a=1ms
  [[ $stderr == *"not one session fits"* ]]
  run -1 --separate-stderr bash -c 'mt-predict simulate -m moshi-7b --pool 1GiB --cost a=1ms >/dev/full'
  [[ $stderr == *"No space left"* ]]
}

# Frames as [session, frame, status, tokens in, tokens out, tokens held], and the pool at the end of each beat.
account() {
  jq -c 'select(.type == "frame" and .frame < 8) | [(.session | tonumber), .frame, .status, .tokens_in, .tokens_out, .kv_tokens]' "$1" | sort -V
  jq -sc 'map(select(.type == "frame" and .frame < 8)) | group_by(.frame) | map(map(.pool) | max)' "$1"
}

# Latency is left out: it is this machine's, and no test asserts it.
@test "simulate: the live engine and the simulator agree, block by block and status by status" {
  [[ ${MT_SAN:-} != *thread* ]] || skip "under ThreadSanitizer the engine misses its beat, so records of two beats mix"
  local prompt opts=(--frame 1s --mode free --answer-tokens 8 --deadline 20s --pool 80b --kv unbounded)
  serve "${opts[@]}"
  mt-feed -q -s mt.sock -n 6 --seconds 9 --phase locked --tolerate "$DATA/jfk.flac" >live.ndjson
  stop
  prompt=$(jq -s 'map(select(.type == "frame" and .frame < 2 and .session == "1").tokens_in) | .[0] - .[1] + 1' live.ndjson)
  mt-predict simulate -m qwen2.5-omni-tiny "${opts[@]}" -n 6 --seconds 9 --phase locked \
    --prompt-tokens "$prompt" --cost a=5ms,b=1ms >sim.ndjson
  account live.ndjson >live
  account sim.ndjson >sim
  diff live sim
  grep -q stalled live
}

# The median latency of N sessions' frames in RECORDS, but for the first ones.
median() {
  jq -s --argjson n "$1" 'map(select(.type == "frame" and .status == "ok" and .frame > 1 and .sessions == $n).latency_ms) | sort | .[length / 2 | floor]' "$2"
}

# No test of this machine's speed: the engine's compute is a cost that sleeps, the simulator gets the cost that was fitted to the
# same records, and what is compared is bounded by how well that fit is. A machine that can't keep the beat shows it, and is let off.
@test "simulate: with the cost fitted to a live run, its latency is the live engine's within the fit's residual" {
  local n a b s late opts=(--frame 200ms --mode free --answer-tokens 4 --pool 4000b --kv "window=64,sinks=4")
  serve "${opts[@]}" --backend cost:a=20ms,b=3ms
  for n in 4 12 24; do
    mt-feed -s mt.sock -n $n --seconds 4 --phase locked --tolerate "$DATA/jfk.flac" >live$n.ndjson 2>feed
    late=$(sed -n 's/.*after their time by .* p99 \([0-9]*\)\..*/\1/p' feed)
    [ "$late" -lt 20 ] || skip "the machine is overloaded: frames went out $late ms after their time"
    jq -se 'map(select(.type == "frame")) | all(.status == "ok")' live$n.ndjson || skip "the machine is overloaded: frames missed the beat"
  done
  stop
  read -r a b s < <(cat live{4,12,24}.ndjson | mt-predict fit | jq -r '"\(.a_ms) \(.b_ms) \(.residual_ms)"')
  for n in 4 12 24; do
    mt-predict simulate -m qwen2.5-omni-tiny "${opts[@]}" -n $n --seconds 4 --phase locked --cost "a=${a}ms,b=${b}ms" >sim.ndjson
    jq -ne --argjson live "$(median $n live$n.ndjson)" --argjson sim "$(median $n sim.ndjson)" --argjson s "$s" \
      '($live - $sim | fabs) <= ([3 * $s, 20] | max)' || { echo "N = $n: live $(median $n live$n.ndjson), simulated $(median $n sim.ndjson), residual $s"; false; } >&2
  done
}

@test "simulate: a reader that left ends it, and is no failure" {
  run -0 --separate-stderr bash -c 'set -o pipefail; timeout 60 mt-predict simulate -m moshi-7b --pool 24GiB -n 30 --seconds 2000000 --cost a=20ms,b=1.5ms | head -n 1 | wc -l'
  [ "$output" -eq 1 ]
  [ -z "$stderr" ]
}
