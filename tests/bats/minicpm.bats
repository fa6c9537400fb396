#!/usr/bin/env bats
# MiniCPM-o through the programs: its own loop over a call, what it costs, what it refuses.

# shellcheck disable=SC2154  # what run sets
load helper

GOLDEN=$MT_TESTS/golden/minicpm-a
JFK=$MT_TESTS/data/jfk.flac

@test "minicpm: a call through a pipe draws and says what the authors' loop does" {
  mt-feed --tokens "$JFK" | mt-serve -m "$GOLDEN" --kv-type f32 --kv unbounded --pool 200b >out
  [ "$(jq -c 'select(.type == "frame") | [.frame, .status]' out | wc -l)" = 11 ]
  jq -c 'select(.type == "frame") | [.tokens, .text]' out >ours
  jq -c '.[] | select(.name == "duplex-plain") | .units[:11][] | [.drawn, .text]' "$GOLDEN/cases.json" >theirs
  diff ours theirs
}

@test "minicpm: --dry-run states the encoder's cache, in the KV type" {
  run -0 --separate-stderr mt-serve --dry-run -m synth:minicpm-o-4.5-tiny --kv-type bf16
  # 3 layers, K and V of 64, 9 units of 50
  jq -e '.bytes_session.encoder == 3 * 2 * 64 * 450 * 2 and .answer_tokens == 19 and .frame_s == 1' <<<"$output"
  run -0 --separate-stderr mt-serve --dry-run -m synth:minicpm-o-4.5-tiny --kv-type f32 --answer-tokens 4
  jq -e '.bytes_session.encoder == 3 * 2 * 64 * 450 * 4 and .answer_tokens == 4' <<<"$output"
}

@test "minicpm: a call of minutes over a small window; each unit one record, free ones in full" {
  mt-feed --loop --seconds 90 "$JFK" |
    mt-serve -m synth:minicpm-o-4.5-tiny --kv window=128,sinks=prompt --pool 64b --mode free >out
  jq -se 'map(select(.type == "frame")) | length == 90 and all(.[]; .status == "ok" and .tokens_out == 19)
    and (.[1:] | all(.[]; .tokens_in == 14)) and .[89].kv_tokens == .[40].kv_tokens' out
}

@test "minicpm: frames of another length are refused in one line" {
  run -2 --separate-stderr mt-serve --dry-run -m synth:minicpm-o-4.5-tiny --frame 2s
  [ -z "$output" ]
  [[ "$stderr" == *"1000 ms"* ]]
  [ "$(wc -l <<<"$stderr")" = 1 ]
}

@test "minicpm: embed and logits of a whole clip" {
  mt-probe embed -m "$GOLDEN" --audio "$JFK" >rows
  jq -se '.[0].positions == 110 and .[0].frames == 1100 and length == 111' rows
  unk=$(jq '."added_tokens_decoder" | to_entries[] | select(.value.content == "<unk>") | .key | tonumber' \
    "$GOLDEN/tokenizer_config.json")
  mt-probe logits -m "$GOLDEN" --tokens "1,$unk,$unk,2" --audio "$JFK@0:0.2" | jq -e '.pos == 3'
}
