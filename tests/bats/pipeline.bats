#!/usr/bin/env bats
# The main job from end to end, with the programs as they are: a real clip through the pipe, and eight calls on small pools.
# Deadlines are long, so that a slow machine shortens no answer: what is computed must not depend on its speed. Time is
# let run faster for the same reason: nothing here is about being on time, but about what happens to which frame.

# shellcheck disable=SC2154  # run sets stderr
load helper

CLIP=$DATA/jfk.flac
# Every frame adds the same number of tokens: a second of audio, its markup and a full answer.
CALL=(--frame 1s --mode free --answer-tokens 12 --deadline 10min)

# Fast, but not faster than eight calls can be computed: then their audio would pile up, and be dropped in the end.
case ${MT_SAN:-} in
*thread*) SPEED=0.4 ;;
*address*) SPEED=2 ;;
*) SPEED=3 ;;
esac

# calls SECONDS ARGS…: paced calls in step against mt.sock, records in frames.ndjson
calls() {
  mt-feed -q -s mt.sock -n "$1" --seconds "$2" --frame 1s --phase locked --speed "$SPEED" "${@:3}" "$CLIP" >frames.ndjson
}
# frames CONDITION: how many frame records it holds for
frames() {
  jq -s "map(select(.type == \"frame\" and ($1))) | length" frames.ndjson
}

@test "pipeline: a clip through mt-feed, mt-serve and jq" {
  run -0 --separate-stderr bash -o pipefail -c "mt-feed '$CLIP' | mt-serve --deadline 10min | tee out.ndjson | jq -r .text"
  [ -n "$output" ]
  # 11.0 s are five beats of 2 s and a rest; each is one record, in order, and says all that a record says.
  jq -se 'map(select(.type == "frame")) | length == 6 and map(.frame) == [range(6)] and all(.[];
      .status == "ok" and .session == "1" and .tokens_in > 0 and .tokens_out > 0 and .tokens_out <= 16 and .kv_tokens > 0
      and .pool > 0 and .pool <= 1 and .sessions == 1 and .cap >= 1 and .t > 0 and .deadline_ms == 600000
      and ((.wait_ms + .encode_ms + .prefill_ms + .decode_ms - .latency_ms) | fabs) < 0.001)' out.ndjson
  jq -se '.[0].metronome == 1 and .[0].type == "opened" and .[-1].type == "closed"' out.ndjson
}

@test "pipeline: Moshi answers 80 ms with 80 ms, and its voice is on disk" {
  serve -m "$MT_TESTS/golden/moshi-a" --deadline 10min
  run -0 --separate-stderr mt-feed -s mt.sock -n 2 --no-pace --tokens --play spoken --tolerate "$CLIP"
  grep -F '"frame"' <<<"$output" >frames.ndjson
  # 11.0 s are 137 beats and a rest.
  jq -se 'map(select(.type == "frame")) | group_by(.session) | map(map(.frame)) == [[range(138)], [range(138)]]' frames.ndjson
  jq -se 'map(select(.type == "frame")) | all(.status == "ok" and .tokens_in == 1 and .tokens_out == 1 and .kv_tokens <= 28)' frames.ndjson
  # Two calls with the same sound and nothing drawn at random say the same.
  jq -se 'map(select(.type == "frame")) | group_by(.session) | map(map([.text, .tokens])) | .[0] == .[1] and (map(.[0]) | length) == 2' frames.ndjson
  cmp spoken/0.wav spoken/1.wav
  # A header of 44 bytes, then 16 bits a sample at 24 kHz; the first frame is answered by silence.
  [ "$(stat -c %s spoken/0.wav)" -ge $((44 + 137 * 1920 * 2)) ]
}

@test "pipeline: the same audio gives the same answers, by file, by pipe, and in a saved stream" {
  mt-feed "$CLIP" | mt-serve --deadline 10min | jq -r .text >by-file
  mt-feed - <"$CLIP" | mt-serve --deadline 10min | jq -r .text >by-pipe
  mt-feed "$CLIP" >stream
  mt-serve --deadline 10min <stream | jq -r .text >by-stream
  [ "$(grep -c . by-file)" = 6 ]
  cmp by-file by-pipe
  cmp by-file by-stream
}

@test "pipeline: every CPU tier runs" {
  local t
  for t in scalar base avx2 avx2vnni avx512 avx512vnni; do
    mt-feed "$CLIP" | MT_CPU=$t mt-serve --deadline 10min >out.ndjson
    jq -se 'map(select(.type == "frame")) | length == 6 and all(.[]; .status == "ok" and .tokens_out > 0)' out.ndjson
  done
  MT_CPU=abacus run -2 --separate-stderr mt-serve --dry-run
  [[ "$stderr" == *abacus* ]]
}

@test "pipeline: the number of threads changes no bit of an answer" {
  local n
  for n in 1 2 3; do
    mt-feed "$CLIP" | mt-serve --deadline 10min --threads $n | jq -c 'select(.type == "frame") | [.frame, .text, .tokens_out]' >threads-$n
  done
  [ "$(wc -l <threads-1)" = 6 ]
  cmp threads-1 threads-2
  cmp threads-1 threads-3
}

# A pool of 200 blocks of 16 tokens is 25 blocks, 400 tokens, for each of eight calls in step.
@test "pipeline: without a bound, eight calls in step stall in the very frame that the formula names" {
  serve "${CALL[@]}" --kv unbounded --pool 200b
  run -1 calls 8 14
  stop
  # What a call adds is in its first records: n0 before the first frame, then the same for each frame.
  read -r n0 rate < <(jq -rs 'map(select(.type == "frame" and .session == "1") | .kv_tokens) | (.[2] - .[1]) as $f
    | "\(.[0] - $f) \($f)"' frames.ndjson)
  # t = (p floor(B/N) - n0 + 1) / r is when the first allocation fails; tokens come by the frame, hence "within one frame".
  wall=$(mt-predict -m qwen2.5-omni-tiny --pool 200b -n 8 --frame 1s --prompt-tokens "$n0" --rate "$rate" | jq .t_sat_locked_s)
  jq -ne --argjson w "$wall" --argjson n0 "$n0" --argjson r "$rate" '($w - (16 * 25 - $n0 + 1) / $r | fabs) < 1e-6'
  jq -se --argjson w "$wall" 'map(select(.type == "frame"))
    | (map(select(.status == "stalled").frame + 1) | min) as $first      # frame k is due at k + 1 s
    | ($first - $w | fabs) <= 1
      and all(.[] | select(.frame + 1 < $first); .status == "ok" and .tokens_out == 12)
      and all(.[] | select(.status == "stalled"); .tokens_out == 0 and .text == "" and .reason == "memory")' frames.ndjson
  # In step: what divides evenly is used up by all, and in the frame after it they meet the wall together.
  [ "$(frames '.status == "stalled"')" -ge 16 ]
  [ "$(frames '.status != "stalled" and .status != "ok"')" = 0 ]
}

@test "pipeline: --silent-stall calls the same frames ok; tokens_out still tells" {
  serve "${CALL[@]}" --kv unbounded --pool 200b --silent-stall
  run -0 --separate-stderr calls 8 14 -v
  stop
  [ "$(frames '.status == "ok"')" = 112 ]
  [ "$(frames '.tokens_out == 0')" -ge 16 ]
  # Whoever reads the records sees through it.
  local lies
  lies=$(frames '.tokens_out == 0')
  [[ "$stderr" == *"$lies frames say ok"* ]]
  [ "$(mt-probe play frames.ndjson | jq -s 'map(select(.type == "play_total").untruthful)[0]')" = "$lies" ]
  mt-predict frames.ndjson >predicted 2>warned
  [ "$(jq -c 'select(.type == "fit") | [.untruthful, .t_collapse_s != null]' predicted)" = "[$lies,true]" ]
  [ "$(jq -s 'map(select(.type == "live").unserved) | add' predicted)" = "$lies" ]
  grep -q "untruthful: $lies frames" warned
}

@test "pipeline: with a window the same calls are all ok, the pool is flat, and each answers as if it were alone" {
  serve "${CALL[@]}" --kv window=300,sinks=4 --pool 200b
  run -0 calls 8 14
  [ "$(frames '.status == "ok"')" = 112 ]
  # Reserved when they were admitted: the same share as long as there are eight. They end one by one.
  [ "$(frames '.sessions == 8')" -ge 80 ]
  [ "$(jq -s 'map(select(.type == "frame" and .sessions == 8).pool) | unique | length' frames.ndjson)" = 1 ]
  [ "$(jq -s 'map(select(.type == "frame").kv_tokens) | max' frames.ndjson)" = 304 ]
  jq -c 'select(.type == "frame") | [.frame, .text, .tokens_out, .kv_tokens]' frames.ndjson | sort | uniq -c | awk '{ print $1 }' |
    sort -u >how-often
  [ "$(cat how-often)" = 8 ]
  jq -c 'select(.type == "frame" and .session == "3") | [.frame, .text, .tokens_out, .kv_tokens]' frames.ndjson >among
  calls 1 14
  jq -c 'select(.type == "frame") | [.frame, .text, .tokens_out, .kv_tokens]' frames.ndjson >alone
  [ "$(wc -l <alone)" = 14 ]
  cmp among alone
  stop
}

@test "pipeline: a ninth call that does not fit is refused with the reason, and the eight don't notice" {
  serve "${CALL[@]}" --kv window=300,sinks=4 --pool 189b # 22 blocks each, one of them for all
  run -1 calls 9 4
  [ "$(frames '.status == "ok"')" = 32 ]
  [ "$(frames '.status == "refused" and .reason == "memory"')" = 1 ]
  [ "$(frames true)" = 33 ]
  stop
}
