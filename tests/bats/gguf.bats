#!/usr/bin/env bats
# GGUF files in the tools: text model, audio tower, a synthetic one, and what is refused; --quantize.

# shellcheck disable=SC2154  # run sets variables
load helper

G=$MT_TESTS/golden/gguf
JFK=$DATA/jfk.flac

@test "gguf: tokens, logits and embed are those of the safetensors twin" {
  local gguf=(-m "$G/omni-b/model.gguf" --mmproj "$G/omni-b/mmproj.gguf") dir=(-m "$MT_TESTS/golden/omni-b")
  [ "$(echo 'Hi <|im_end|>' | mt-probe tokens "${gguf[@]}")" = "$(echo 'Hi <|im_end|>' | mt-probe tokens "${dir[@]}")" ]
  [ "$(mt-probe logits "${gguf[@]}" --tokens 1,2,3)" = "$(mt-probe logits "${dir[@]}" --tokens 1,2,3)" ]
  [ "$(mt-probe embed "${gguf[@]}" --audio "$JFK@0:16000")" = "$(mt-probe embed "${dir[@]}" --audio "$JFK@0:16000")" ]
}

@test "gguf: a text model alone is deaf, and says how it can hear" {
  run -0 mt-probe logits -m "$G/qwen2/model.gguf" --tokens 5,6,7
  [[ "$output" == *'"pos":2'* ]]
  run -1 --separate-stderr mt-probe embed -m "$G/qwen2/model.gguf" --audio "$JFK"
  [[ "$stderr" == *--mmproj* ]]
  MT_MODEL=$G/qwen2/model.gguf run -2 --separate-stderr mt-serve --dry-run
  [[ "$stderr" == *"'$G/qwen2/model.gguf' has no audio tower"* ]]
  run -2 --separate-stderr mt-serve --dry-run -m "$G/qwen2/model.gguf"
  [ -z "$output" ]
  [[ "$stderr" == *--mmproj* ]]
}

@test "gguf: cpu:exact is the scalar reference on every tier, and says its name" {
  local probe=(mt-probe logits -m "$G/qwen2/model.gguf" --tokens "1,2,3,4" --top 0)
  MT_CPU=scalar "${probe[@]}" >want
  "${probe[@]}" --backend cpu:exact >exact
  "${probe[@]}" >served
  jq -se 'map(.top | map(.[1])) | transpose | all(.[0] - .[1] | fabs < 2e-5)' want exact
  # The vector units round activations to 8 bits, and that shows.
  if mt-serve --dry-run | jq -e '.backend | test("avx")' >/dev/null; then
    jq -se 'map(.top | map(.[1])) | transpose | map(.[0] - .[1] | fabs) | max | . > 1e-3 and . < 1' want served
  fi
  mt-serve --dry-run -m "$G/qwen2/model.gguf" --mmproj synth --backend cpu:exact 2>/dev/null | jq -e '.backend | endswith("-exact")'
}

@test "gguf: a call through a synthetic tower, which is said plainly" {
  mt-feed "$JFK" --seconds 4 | mt-serve -m "$G/qwen2/model.gguf" --mmproj synth --answer-tokens 4 >out 2>err
  [ "$(grep -c '"type":"frame"' out)" = 2 ]
  [[ "$(cat err)" == *synthetic* ]]
  [ "$(echo '<|AUDIO|>' | mt-probe tokens -m "$G/qwen2/model.gguf" --mmproj synth 2>err | wc -w)" = 2 ]
  [[ "$(cat err)" == *synthetic* ]]
}

@test "gguf: wrong files are one line" {
  printf 'GGUF\3\0\0\0' >cut.gguf
  run -1 --separate-stderr mt-probe logits -m cut.gguf --tokens 1
  [[ "$stderr" == mt-probe*cut.gguf*"at byte"* ]]
  [ "$(wc -l <<<"$stderr")" = 1 ]
  run -1 --separate-stderr mt-probe logits -m "$G/omni-b/model.gguf" --mmproj "$G/qwen3-a/mmproj.gguf" --tokens 1
  [[ "$stderr" == *qwen2.5o* ]]
  run -2 --separate-stderr mt-probe logits -m "$MT_TESTS/golden/omni-b" --mmproj synth --tokens 1
  [[ "$stderr" == *--mmproj* ]]
  run -2 --separate-stderr mt-serve --dry-run --mmproj synth
  [[ "$stderr" == *--mmproj* ]]
}

@test "quantize: a smaller model that says nearly the same" {
  local m=synth:qwen2.5-omni-tiny plain small
  plain=$(mt-serve --dry-run -m $m | jq .weight_bytes)
  small=$(mt-serve --dry-run -m $m --quantize q8_0 | jq .weight_bytes)
  [ $((small * 3)) -lt $((plain * 2)) ]
  mt-probe logits -m $m --tokens 1,2,3,4,5,6 | jq '.top[0][1]' >a
  mt-probe logits -m $m --tokens 1,2,3,4,5,6 --quantize q4_k | jq '.top[0][1]' >b
  run ! cmp -s a b
  [ "$(paste a b | awk '{ d = $1 - $2; print (d < 0 ? -d : d) < 0.3 }')" = 1 ]
  run -0 --separate-stderr mt-probe logits -m $m --tokens 1 --quantize q8_0
  [ -z "$stderr" ]
  # Rows of 48.
  run -0 --separate-stderr mt-probe logits -m "$MT_TESTS/golden/omni-a" --tokens 1 --quantize q4_k
  [[ "$stderr" == *"--quantize q4_k changes nothing"* ]]
  run -2 --separate-stderr mt-probe logits --quantize q9 --tokens 1
  [[ "$stderr" == *--quantize* ]]
}
