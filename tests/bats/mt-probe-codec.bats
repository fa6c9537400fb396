#!/usr/bin/env bats
# mt-probe codec: sound to codes and back, and what one gets who calls it wrongly.

# shellcheck disable=SC2154,SC2016  # run sets variables; bash -c has its own $1
load helper

A=$MT_TESTS/golden/mimi-a
B=$MT_TESTS/golden/mimi-b
C=$MT_TESTS/golden/mimi-c
JFK=$DATA/jfk.flac

# Exit STATUS, nothing on stdout, a reason that holds all WORDs: refused STATUS WORD… -- ARGS…
refused() {
  local status=$1 words=() w
  shift
  while [ "$1" != -- ]; do
    words+=("$1")
    shift
  done
  shift
  run "-$status" --separate-stderr mt-probe codec "$@" </dev/null
  [ -z "$output" ]
  [ "$(grep -vc "^Try \`\|^information.$" <<<"$stderr")" = 1 ]
  [[ "$stderr" == mt-probe* ]]
  for w in "${words[@]}"; do
    [[ "$stderr" == *"$w"* ]] || { echo "'$w' is not in: $stderr" >&2; return 1; }
  done
}

# A field of a WAV: field FILE OFFSET BYTES
field() {
  od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

@test "codec: a line a frame; the last is filled with silence; decode gives a float WAV of whole frames" {
  mt-probe codec encode -m "$A" "$JFK" >codes
  # 11 s are 137 frames and a half.
  [ "$(wc -l <codes)" = 138 ]
  jq -se '[.[].frame] == [range(138)] and all(.[]; .type == "codes" and (.codes | length) == 6 and all(.codes[]; . >= 0 and . < 40))' codes
  mt-probe codec decode -m "$A" -o out.wav codes
  [ "$(field out.wav 20 2)" = 3 ]
  [ "$(field out.wav 24 4)" = 24000 ]
  [ "$(field out.wav 54 4)" = $((138 * 1920 * 4)) ]
  [ "$(stat -c %s out.wav)" = $((58 + 138 * 1920 * 4)) ]
  # Standard input and output are the same.
  mt-probe codec encode -m "$A" <"$JFK" | cmp - codes
  mt-probe codec decode -m "$A" <codes >redirected.wav
  cmp redirected.wav out.wav
  # A pipe can't be told how long it will be: all but the sizes is the same.
  mt-probe codec decode -m "$A" codes | cat >piped.wav
  [ "$(field piped.wav 54 4)" = 4294967295 ]
  cmp <(tail -c +59 piped.wav) <(tail -c +59 out.wav)
  # And what was written can be heard.
  mt-probe codec encode -m "$A" out.wav | wc -l | grep -qx 138
}

@test "codec: live and whole part when the transformers are full" {
  mt-probe codec encode -m "$A" "$JFK" >live
  mt-probe codec encode -m "$A" --whole "$JFK" >whole
  # The context is 24 steps, 2 a frame.
  cmp <(head -n 12 live) <(head -n 12 whole)
  run ! cmp -s live whole
  mt-probe codec decode -m "$A" live >live.wav
  mt-probe codec decode -m "$A" --whole live >whole.wav
  cmp <(head -c $((58 + 12 * 7680)) live.wav | tail -c +59) <(head -c $((58 + 12 * 7680)) whole.wav | tail -c +59)
  run ! cmp -s live.wav whole.wav
}

@test "codec: a whole clip of the live codes is the same on any number of threads" {
  mt-probe codec encode -m synth:moshi-7b-tiny "$JFK" >one -T 1
  mt-probe codec encode -m synth:moshi-7b-tiny "$JFK" >three -T 3
  cmp one three
  run ! cmp -s one <(mt-probe codec encode -m synth:moshi-7b-tiny,seed=2 "$JFK")
}

@test "codec: fewer codebooks are the first ones, and decode takes what a line has" {
  mt-probe codec encode -m "$A" "$JFK" >six
  mt-probe codec encode -m "$A" --codebooks 2 "$JFK" >two
  cmp <(jq -c '.codes[:2]' six) <(jq -c .codes two)
  mt-probe codec encode -m "$A" -c 7 "$JFK" | jq -se 'all(.[].codes; length == 7)'
  mt-probe codec decode -m "$A" two >two.wav
  [ "$(field two.wav 54 4)" = $((138 * 1920 * 4)) ]
  mt-probe codec encode -m "$A" -c 1 "$JFK" | mt-probe codec decode -m "$A" -o one.wav
  refused 1 "8 codebooks" "1..7" -- encode -m "$A" -c 8 "$JFK"
}

@test "codec: a directory of the codec alone, its file, transformers' layout" {
  mt-probe codec encode -m "$B" "$JFK" | head -n 3 >want
  [ "$(jq -s 'map(.codes | length) | unique' -c want)" = '[8]' ]
  mt-probe codec encode -m "$B"/tokenizer*.safetensors "$JFK" | head -n 3 | cmp - want
  mkdir only
  cp "$B"/tokenizer*.safetensors only/mine.safetensors
  mt-probe codec encode -m only "$JFK" | head -n 3 | cmp - want
  cp "$B"/tokenizer*.safetensors only/model.safetensors
  rm only/mine.safetensors
  mt-probe codec encode -m only "$JFK" | head -n 3 | cmp - want
  # transformers' codec speaks all that it has.
  mt-probe codec encode -m "$C" "$JFK" | head -n 1 | jq -e '.codes | length == 5'
}

@test "codec: wrong calls" {
  refused 2 "encode or decode" -- -m "$A"
  refused 2 "'record'" -- record -m "$A"
  MT_MODEL='' refused 2 --model -- encode "$JFK"
  MT_MODEL=synth:qwen2.5-omni-tiny refused 2 moshi-7b -- encode "$JFK"
  refused 2 --codebooks "1..64" -- encode -m "$A" -c 0 "$JFK"
  refused 2 --output -- encode -m "$A" -o x "$JFK"
  refused 2 b.wav -- encode -m "$A" "$JFK" b.wav
  refused 2 moshi-7b -- encode -m synth:qwen2.5-omni-tiny "$JFK"
  refused 2 seed=x -- encode -m synth:moshi-7b-tiny,seed=x "$JFK"
  run -0 mt-probe codec --help
  [[ "$output" == *--whole* ]]
}

@test "codec: what can't be read is named in one line" {
  refused 1 /nonexistent "No such file" -- encode -m /nonexistent "$JFK"
  refused 1 nope.wav "No such file" -- encode -m "$A" nope.wav
  refused 1 nope.json "No such file" -- decode -m "$A" -o x.wav nope.json
  refused 1 "$DATA" directory -- encode -m "$A" "$DATA"
  : >empty
  refused 1 empty -- encode -m "$A" empty
  refused 1 empty "no codes" -- decode -m "$A" -o x.wav empty
  refused 1 "encoder.model.0.conv.conv.weight" -- encode -m "$MT_TESTS/golden/omni-a" "$JFK"
  mkdir none
  refused 1 none safetensors -- encode -m none "$JFK"
  refused 1 out/x.wav "No such file" -- decode -m "$A" -o out/x.wav <(echo '{"codes":[1]}')
}

@test "codec decode: lines that are no codes" {
  # Lines of other types are somebody else's.
  printf '%s\n' '{"metronome":1}' '{"type":"codes","frame":0,"codes":[1,2,3,4,5,6]}' '{"type":"frame","codes":"x"}' |
    mt-probe codec decode -m "$A" -o one.wav
  [ "$(stat -c %s one.wav)" = $((58 + 7680)) ]
  for bad in '{"codes":[1,2,40]}' '{"codes":[1,2,-1]}' '{"codes":[1,2,1.5]}' '{"codes":[1,2,99999999999]}' '{"codes":[]}' '{"codes":7}' \
    '[1,2,3]' 'hello' '{"codes":[1,2,3,4,5,6,7,8]}'; do
    printf '%s\n' "$bad" >bad
    run -1 --separate-stderr mt-probe codec decode -m "$A" -o bad.wav bad
    [ "$(wc -l <<<"$stderr")" = 1 ]
  done
  printf '%s\n' '{"codes":[1,2,3]}' '{"codes":[1,2]}' >bad
  refused 1 "frame 1" "2 codes" -- decode -m "$A" -o bad.wav bad
}

@test "codec: a full disk is exit 1, a reader that left is quiet" {
  mt-probe codec encode -m "$A" "$JFK" >codes
  run -1 --separate-stderr bash -c 'mt-probe codec encode -m "$1" "$2" >/dev/full' - "$A" "$JFK"
  [[ "$stderr" == *"No space left"* ]]
  run -1 --separate-stderr bash -c 'mt-probe codec decode -m "$1" codes >/dev/full' - "$A"
  [[ "$stderr" == *"No space left"* ]]
  run -1 --separate-stderr mt-probe codec decode -m "$A" -o /dev/full codes
  [[ "$stderr" == *"No space left"* ]]
  mt-probe codec encode -m "$A" "$JFK" 2>err | head -n 1 >/dev/null
  mt-probe codec decode -m "$A" codes 2>>err | head -c 1 >/dev/null
  [ ! -s err ]
}

@test "moshi without its codec: a call says what is missing, the language model alone answers" {
  mkdir alone
  cp "$MT_TESTS"/golden/moshi-a/* alone
  rm alone/tokenizer-e351c8d8-checkpoint125.safetensors
  for tool in "mt-serve --dry-run" "mt-probe logits --audio $DATA/jfk.flac"; do
    # shellcheck disable=SC2086  # a program and its options
    run ! --separate-stderr $tool -m alone
    [[ "$stderr" == *"alone/config.json: there is no codec beside the model (mimi_name, or tokenizer-e351c8d8-"* ]]
  done
  echo '{"codes":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}' >codes
  run -0 --separate-stderr mt-probe logits --codes codes -m alone
  [ "${#lines[@]}" = 9 ]
}
