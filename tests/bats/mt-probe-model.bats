#!/usr/bin/env bats
# mt-probe tokens, logits and embed: what a person gets who checks a checkpoint, and what one gets who calls them wrongly.

# shellcheck disable=SC2154,SC2094,SC2016  # run sets variables; --rope absolute is no file; bash -c has its own $1
load helper

A=$MT_TESTS/golden/omni-a
B=$MT_TESTS/golden/omni-b
Q=$MT_TESTS/golden/qwen3-a
JFK=$DATA/jfk.flac

# A wrong call: exit 2, nothing on stdout, one line of a reason that holds all WORDs (argp adds where help is): wrong WORD… -- ARGS…
wrong() {
  refused 2 "$@"
}
# The work failed: exit 1, the same way.
failed() {
  refused 1 "$@"
}
refused() {
  local status=$1 words=() w
  shift
  while [ "$1" != -- ]; do
    words+=("$1")
    shift
  done
  shift
  run "-$status" --separate-stderr mt-probe "$@" </dev/null
  [ -z "$output" ]
  [ "$(grep -vc "^Try \`\|^information.$" <<<"$stderr")" = 1 ]
  [[ "$stderr" == mt-probe* ]]
  for w in "${words[@]}"; do
    [[ "$stderr" == *"$w"* ]] || { echo "'$w' is not in: $stderr" >&2; return 1; }
  done
}

# A little-endian number of so many bytes, as printf's escapes.
le() {
  local i out=
  for ((i = 0; i < $2; i++)); do
    printf -v out '%s\\x%02x' "$out" $(($1 >> 8 * i & 255))
  done
  printf '%s' "$out"
}
# Silence: wav FILE RATE SAMPLES, 16 bits, mono. The samples are a hole in the file.
wav() {
  # shellcheck disable=SC2059  # the format is made of escapes
  printf "RIFF$(le $((36 + 2 * $3)) 4)WAVEfmt $(le 16 4)$(le 1 2)$(le 1 2)$(le "$2" 4)$(le $((2 * $2)) 4)$(le 2 2)$(le 16 2)data$(le $((2 * $3)) 4)" >"$1"
  truncate -s $((44 + 2 * $3)) "$1"
}

# A jq test of two lines of logits: the same ids, almost the same log-probs.
near='(.[0].top | map(.[0])) == (.[1].top | map(.[0])) and all(range(5) as $i | .[0].top[$i][1] - .[1].top[$i][1]; fabs < 1e-4)'

# ---- tokens ----

@test "tokens: text to ids and back, as the golden cases say" {
  local i n
  n=$(jq length "$A/tokens.json")
  [ "$n" -gt 10 ]
  for ((i = 0; i < n; i += 5)); do
    jq -j ".[$i].text" "$A/tokens.json" >text
    mt-probe tokens -m "$A" <text >ids
    [ "$(cat ids)" = "$(jq -r ".[$i].ids | join(\" \")" "$A/tokens.json")" ]
    # The library composes some characters first: then what comes back is another spelling of the same.
    mt-probe tokens -m "$A" -d <ids >back
    cmp text back || [ "$(mt-probe tokens -m "$A" <back)" = "$(cat ids)" ]
  done
}

@test "tokens: special tokens are found in the text, or left as text" {
  [ "$(printf '<|im_end|>' | mt-probe tokens -m "$A")" = 381 ]
  run -0 mt-probe tokens -m "$A" --no-special <<<'<|im_end|>'
  [[ " $output " != *" 381 "* ]]
  [ "$(echo "$output" | mt-probe tokens -m "$A" -d)" = '<|im_end|>' ]
}

@test "tokens: needs the tokenizer of a directory, not its weights" {
  mkdir m
  cp "$B"/{vocab.json,merges.txt,tokenizer_config.json} m
  [ "$(echo Hello | mt-probe tokens -m m)" = "$(echo Hello | mt-probe tokens -m "$B")" ]
}

@test "tokens: without -m the default model; empty text gives an empty line" {
  [ "$(printf 'a' | mt-probe tokens)" = 64 ]
  [ "$(mt-probe tokens -m "$A" </dev/null)" = "" ]
  [ "$(mt-probe tokens -m "$A" </dev/null | wc -l)" = 1 ]
  [ "$(mt-probe tokens -m "$A" -d </dev/null | wc -c)" = 0 ]
}

@test "tokens: wrong input is one line" {
  mkdir none
  failed "none" tokenizer.json -- tokens -m none
  failed /nonexistent "No such file" -- tokens -m /nonexistent
  wrong "synth:nonsense" -- tokens -m synth:nonsense
  MT_MODEL=synth:nonsense wrong "synth:nonsense" -- tokens
  wrong text -- tokens -m "$A" hello
  run -1 --separate-stderr mt-probe tokens -m "$A" <<<$'\xff\xfe'
  [[ "$stderr" == *stdin*UTF-8* ]]
  run -1 --separate-stderr mt-probe tokens -m "$A" -d <<<'64 400'
  [[ "$stderr" == *"'400'"* ]]
  run -1 --separate-stderr mt-probe tokens -m "$A" -d <<<'64 x'
  [[ "$stderr" == *"'x'"* ]]
  printf '64 \0 65' >nul
  run -1 --separate-stderr mt-probe tokens -m "$A" -d <nul
  [[ "$stderr" == *NUL* ]]
}

# ---- logits ----

@test "logits: one line a position, best first, 9 digits, a probability in all" {
  mt-probe logits -m "$A" --tokens 1,2,3 --at all --top 0 >out
  [ "$(wc -l <out)" = 3 ]
  jq -se 'map(.pos) == [0, 1, 2] and map(.token) == [1, 2, 3] and all(.type == "logits")' out
  jq -e '(.top | map(.[0])) == [range(400)] and (.top | map(.[1] | exp) | add - 1 | fabs) < 1e-4' out
  mt-probe logits -m "$A" --tokens 1,2,3 --at all --top 7 >top
  jq -e '(.top | length) == 7 and (.top | map(-.[1])) == (.top | map(-.[1]) | sort)' top
  jq -se '.[:3] as $top | .[3:] as $all | all(range(3); $top[.].top == ($all[.].top | sort_by(-.[1]) | .[:7]))' top out
  # Every value is printed as the f32 that it is: 9 significant digits at most, and some need them.
  grep -o '\-[0-9.e-]*\]' top | tr -d -- '-.]' | sed 's/e.*//; s/^0*//' >digits
  [ "$(awk '{ if (length > m) m = length } END { print m }' digits)" = 9 ]
  [ "$(mt-probe logits -m "$A" --tokens 1,2,3 | jq '.top | length')" = 5 ]
  [ "$(mt-probe logits -m "$A" --tokens 1,2,3 --top 999999 | jq '.top | length')" = 400 ]
}

@test "logits: ids come from a list, a file or stdin, positions in any order" {
  mt-probe logits -m "$A" --tokens 5,6,7 >want
  mt-probe logits -m "$A" --tokens ' 5 6,	7 ' | cmp - want
  echo '[5, 6,
7]' >ids.json
  mt-probe logits -m "$A" --tokens @ids.json | cmp - want
  mt-probe logits -m "$A" --tokens @- <ids.json | cmp - want
  printf 'Hello world' | mt-probe tokens -m "$A" | mt-probe logits -m "$A" --tokens @- --at all >out
  [ "$(wc -l <out)" -gt 1 ]
  [ "$(mt-probe logits -m "$A" --tokens 5,6,7 --at=-1,0,-3,2 | jq -c .pos | tr '\n' ' ')" = "0 2 " ]
}

@test "logits: wrong ids and positions" {
  wrong --tokens -- logits -m "$A"
  wrong --tokens "no ids" -- logits -m "$A" --tokens ''
  wrong --tokens "'x'" -- logits -m "$A" --tokens 1,x
  wrong --tokens "'-1'" -- logits -m "$A" --tokens=-1
  wrong --tokens "'1.5'" -- logits -m "$A" --tokens 1.5
  wrong --tokens "'4294967297'" -- logits -m "$A" --tokens 4294967297
  wrong "token 400" "position 1" "0..399" -- logits -m "$A" --tokens 1,400
  wrong --tokens -- logits -m "$A" 1 2 3
  wrong --at "'3'" "-3..2" -- logits -m "$A" --tokens 1,2,3 --at 3
  wrong --at "'-4'" -- logits -m "$A" --tokens 1,2,3 --at=-4
  wrong --at -- logits -m "$A" --tokens 1,2,3 --at ''
  wrong --at "'all'" -- logits -m "$A" --tokens 1,2,3 --at all,1
  wrong --top -- logits -m "$A" --tokens 1 --top=-1
  wrong --top -- logits -m "$A" --tokens 1 --top 5x
  failed nope.txt "No such file" -- logits -m "$A" --tokens @nope.txt
  failed "$A" directory -- logits -m "$A" --tokens @"$A"
  printf '1,2\0,3' >nul
  wrong --tokens NUL -- logits -m "$A" --tokens @nul
  : >empty
  wrong --tokens "no ids" -- logits -m "$A" --tokens @empty
}

@test "logits: frames of codes, a line a stream" {
  local m=$MT_TESTS/golden/moshi-a
  jq -c '.[0].frames[] | {codes: .}' "$m/cases.json" >frames
  mt-probe logits -m "$m" --codes frames --at all --top 0 >out
  jq -se 'map([.pos, .stream]) == [range(3) as $t | range(9) | [$t, .]]' out
  jq -se 'map(.top | map(.[1] | exp) | add - 1 | fabs) | max < 1e-4' out
  jq -se 'map(.top | length) == [range(3) | 48, (range(8) | 20)]' out
  mt-probe logits -m "$m" --codes - --at all --top 0 <frames | cmp - out
  [ "$(mt-probe logits -m "$m" --codes frames | jq -c '[.pos, .stream, (.top | length)]' | head -2 | tr '\n' ' ')" = "[2,0,5] [2,1,5] " ]
  # What is above the context isn't heard anyway; a smaller window is another run.
  mt-probe logits -m "$m" --codes frames --at all --top 0 --kv window=24 | cmp - out
  [ "$(mt-probe logits -m "$m" --codes frames --at all --top 0 --kv window=2)" != "$(cat out)" ]
}

@test "logits: wrong frames" {
  local m=$MT_TESTS/golden/moshi-a
  jq -c '.[0].frames[] | {codes: .}' "$m/cases.json" >good
  failed nope "No such file" -- logits -m "$m" --codes nope
  failed directory -- logits -m "$m" --codes "$m"
  : >bad
  failed bad "no frames" -- logits -m "$m" --codes bad
  { head -2 good; echo '{"codes":[1,2,3]}'; } >bad
  failed bad:3 "3 codes" "17 numbers" -- logits -m "$m" --codes bad
  echo '{"text":7}' >bad
  failed bad:1 "no list of codes" -- logits -m "$m" --codes bad
  { head -1 good; echo; echo '{"codes":[1,2'; } >bad
  failed bad:3 JSON -- logits -m "$m" --codes bad
  jq -c '.codes[4] = 1.5' good >bad
  failed bad:1 "code 4" -- logits -m "$m" --codes bad
  jq -c '.codes[4] = -2' good >bad
  failed bad:1 "code 4" -- logits -m "$m" --codes bad
  jq -c '.codes[4] = 21' good >bad
  wrong "code 4 of frame 0" "-1..20" -- logits -m "$m" --codes bad
  jq -c '.codes[0] = 49' good >bad
  wrong "code 0 of frame 0" "-1..48" -- logits -m "$m" --codes bad
  head -c 70000 /dev/zero | tr '\0' ' ' >bad
  failed bad:1 "64 KiB" -- logits -m "$m" --codes bad
  wrong --codes "no codebooks" -- logits -m "$A" --codes good
  wrong --codes -- logits -m "$m" --tokens 1,2
  wrong --tokens --codes -- logits -m "$m" --tokens 1,2 --codes good
  wrong --audio --codes -- logits -m "$m" --audio "$JFK" --codes good
  wrong window=25 context 24 -- logits -m "$m" --codes good --kv window=25
  wrong "no codebooks" -- logits -m "$A" --audio "$JFK" --codes good
}

@test "logits: a model that speaks in codes answers a clip" {
  local m=$MT_TESTS/golden/moshi-a
  mt-probe logits -m "$m" --audio "$JFK@0:1.0" >out
  jq -se 'map(.pos) == [range(1; 13)] and all(.type == "step" and (.codes | length) == 8 and .text >= 0)' out
  mt-probe logits -m "$m" --audio "$JFK@0:1.0" --threads 1 | cmp - out
  wrong --audio -- logits -m "$m" --audio "$JFK" --audio "$JFK"
  mkdir alone
  ln -s "$m"/{config.json,model.safetensors} alone/
  failed codec -- logits -m alone --audio "$JFK"
}

@test "logits: audio goes in where the placeholders are, in order" {
  local ids
  ids=$(printf '382 %.0s' {1..37})
  mt-probe logits -m "$A" --tokens "383 $ids 384" --audio "$JFK@1s:1s" --audio "$JFK@4:0.5" >both
  mt-probe logits -m "$A" --tokens "383 $ids 384" --audio "$JFK@4:0.5" --audio "$JFK@1s:1s" >swapped
  run ! cmp -s both swapped
  failed "37 audio placeholders" "token 382" "25 rows" -- logits -m "$A" --tokens "383 $ids 384" --audio "$JFK@1s:1s"
  failed "0 audio placeholders" "25 rows" -- logits -m "$A" --tokens 1,2 --audio "$JFK@1s:1s"
  failed "1 audio placeholder" "0 rows" -- logits -m "$A" --tokens 1,382
}

@test "logits: a window bounds what is seen, a wide one changes nothing" {
  mt-probe logits -m "$A" --tokens "$(seq -s, 1 60)" >want
  for kv in unbounded window=60 window=60,sinks=4 window=1099511627776,sinks=1099511627775; do
    mt-probe logits -m "$A" --tokens "$(seq -s, 1 60)" --kv $kv >got
    jq -se "$near" want got
  done
  mt-probe logits -m "$A" --tokens "$(seq -s, 1 60)" --kv window=8,sinks=4 >cache
  run ! cmp -s want cache
  mt-probe logits -m "$A" --tokens "$(seq -s, 1 60)" --kv window=8,sinks=4 --rope absolute >absolute
  run ! cmp -s cache absolute
  # Only the last token: what came before is forgotten, layer by layer.
  mt-probe logits -m "$A" --tokens 1,2,3,9 --kv window=1 >one
  mt-probe logits -m "$A" --tokens 9,9,3,9 --kv window=1 | cmp - one
  # How it is paged is nobody's business.
  for block in 1 7 1024; do
    mt-probe logits -m "$A" --tokens "$(seq -s, 1 60)" --kv window=8,sinks=4 --block $block >got
    jq -se "$near" cache got
  done
}

@test "logits: wrong policies and options" {
  local t=(logits -m "$A" --tokens "1,2")
  wrong window=0 -- "${t[@]}" --kv window=0
  wrong window=-1 -- "${t[@]}" --kv window=-1
  wrong "window=4 is not above sinks=4" -- "${t[@]}" --kv window=4,sinks=4
  wrong "window=4 is not above sinks=5" -- "${t[@]}" --kv sinks=5,window=4
  wrong prompt -- "${t[@]}" --kv window=4,sinks=prompt
  wrong window=4x -- "${t[@]}" --kv window=4x
  wrong window -- "${t[@]}" --kv sinks=4
  wrong --kv -- "${t[@]}" --kv ''
  wrong --kv -- "${t[@]}" --kv bounded
  wrong size -- "${t[@]}" --kv window=4,size=3
  wrong --rope "'fast'" -- "${t[@]}" --rope fast
  wrong --block -- "${t[@]}" --block 0
  wrong --block -- "${t[@]}" --block 1025
  wrong --kv-type "'f64'" -- "${t[@]}" --kv-type f64
  wrong --backend "'tpu'" -- "${t[@]}" --backend tpu
  wrong --threads -- "${t[@]}" --threads 257
  wrong --threads -- "${t[@]}" --threads two
  wrong --frobnicate -- "${t[@]}" --frobnicate
}

@test "logits: cache types round, threads and tiers do not show" {
  local ids type
  ids=$(seq -s, 1 40)
  mt-probe logits -m "$A" --tokens "$ids" --threads 1 >f32
  mt-probe logits -m "$A" --tokens "$ids" --threads 3 --kv-type f32 --backend cpu | cmp - f32
  for type in f16 bf16 int8 fp8; do
    mt-probe logits -m "$A" --tokens "$ids" --kv-type $type >narrow
    run ! cmp -s f32 narrow
    jq -se '.[0].top[0][1] - .[1].top[0][1] | fabs < 0.3' f32 narrow
  done
  MT_CPU=scalar mt-probe logits -m "$A" --tokens "$ids" >scalar
  jq -se "$near" f32 scalar
}

@test "logits: a model that is not there, or is none" {
  failed /nonexistent "No such file" -- logits -m /nonexistent --tokens 1
  failed "$JFK" "nor a model directory" -- logits -m "$JFK" --tokens 1
  mkdir m
  failed m/config.json -- logits -m m --tokens 1
  cp "$A/config.json" m
  failed m safetensors -- logits -m m --tokens 1
  mkdir m/model.safetensors
  failed m/model.safetensors -- logits -m m --tokens 1
  rmdir m/model.safetensors
  head -c 1000 "$A/model.safetensors" >m/model.safetensors
  failed m/model.safetensors -- logits -m m --tokens 1
  cp "$A/model.safetensors" m
  jq '.thinker_config.text_config.hidden_size = 49' "$A/config.json" >m/config.json
  failed m/config.json "hidden_size 49" -- logits -m m --tokens 1
  wrong dtype=int8 -- logits -m synth:qwen2.5-omni-tiny,dtype=int8 --tokens 1
  # Without a tokenizer it computes all the same.
  cp "$A/config.json" m
  mt-probe logits -m "$A" --tokens 1,2 >want
  mt-probe logits -m m --tokens 1,2 | cmp - want
}

@test "logits: numbers that are none are null, and stay JSON" {
  local f=m/model.safetensors n at
  mkdir m
  cp "$A/config.json" "$A/model.safetensors" m
  n=$(od -An -t u8 -N 8 $f | tr -d ' ')
  at=$(head -c $((8 + n)) $f | tail -c "$n" | jq '.["thinker.lm_head.weight"].data_offsets[0]')
  printf '\0\0\300\177' | dd of=$f bs=1 seek=$((8 + n + at + 5 * 48 * 4)) conv=notrunc status=none
  run -0 --separate-stderr mt-probe logits -m m --tokens 1,2,3 --top 3
  [ "$(jq -c .top <<<"$output")" = "[[0,null],[1,null],[2,null]]" ]
}

@test "logits: a full disk is exit 1, a reader that left is quiet" {
  run -1 --separate-stderr bash -c 'mt-probe logits -m "$1" --tokens 1,2 >/dev/full' - "$A"
  [[ "$stderr" == *"No space left"* ]]
  run -1 --separate-stderr bash -c 'mt-probe embed -m "$1" --audio "$2" >/dev/full' - "$A" "$JFK"
  [[ "$stderr" == *"No space left"* ]]
  mt-probe logits -m "$A" --tokens "$(seq -s, 0 300)" --at all --top 0 2>err | head -c 1 >/dev/null
  [ ! -s err ]
}

# ---- clips ----

# Mel frames and rows of a clip.
size() {
  mt-probe embed -m "$A" --audio "$@" >out
  jq -sr '"\(.[0].frames) \(.[0].positions)"' out
}

@test "embed: a mel line, then a row a position; every row as wide as the model" {
  [ "$(size "$JFK@1s:2s")" = "200 50" ]
  jq -se '.[0] == {type: "mel", frames: 200, positions: 50} and (.[1:] | map(.pos)) == [range(50)]' out
  jq -se '.[1:] | all(.type == "embed" and (.v | length) == 48 and all(.v[]; type == "number"))' out
}

@test "embed: parts of a file: samples, times, to the end" {
  mt-probe embed -m "$A" --audio "$JFK@1.5:0.25" >want
  for part in 1500ms:250ms 1.5s:0.25 24000:4000; do
    mt-probe embed -m "$A" --audio "$JFK@$part" | cmp - want
  done
  [ "$(size "$JFK")" = "1100 275" ]
  cp out whole
  [ "$(size "$JFK@0:")" = "1100 275" ]
  cmp out whole
  [ "$(size "$JFK@0s:11s")" = "1100 275" ]
  [ "$(size "$JFK@0:176000")" = "1100 275" ]
  [ "$(size "$JFK@10.5:")" = "50 12" ]
  [ "$(size "$JFK@0:80001")" = "501 125" ]
}

@test "embed: samples count at the file's own rate" {
  wav eight.wav 8000 24000
  [ "$(size eight.wav)" = "300 75" ]
  [ "$(size eight.wav@8000:8000)" = "100 25" ]
  [ "$(size eight.wav@1s:1s)" = "100 25" ]
  failed eight.wav "3 s (24000 samples)" -- embed -m "$A" --audio eight.wav@16000:8001
}

@test "embed: a file whose name has an @ and a colon" {
  cp "$JFK" 'a@1:2'
  [ "$(size 'a@1:2')" = "1100 275" ]
  [ "$(size 'a@1:2@1s:2s')" = "200 50" ]
  cp "$JFK" 'me@home.flac'
  [ "$(size me@home.flac)" = "1100 275" ]
  [ "$(size me@home.flac@1s:2s)" = "200 50" ]
}

@test "embed: wrong clips" {
  wrong --audio -- embed -m "$A"
  wrong --audio -- embed -m "$A" --audio "$JFK" --audio "$JFK"
  wrong "@1:x" -- embed -m "$A" --audio "$JFK@1:x"
  wrong "@:" -- embed -m "$A" --audio "$JFK@:"
  wrong "@-1:2" -- embed -m "$A" --audio "$JFK@-1:2"
  wrong "$JFK" -- embed -m "$A" "$JFK"
  failed "11 s (176000 samples)" -- embed -m "$A" --audio "$JFK@10s:2s"
  failed "11 s" -- embed -m "$A" --audio "$JFK@20s:1s"
  failed "no samples" -- embed -m "$A" --audio "$JFK@1s:0s"
  failed "no samples" -- embed -m "$A" --audio "$JFK@11s:"
  failed "320 samples" "at least 321" -- embed -m "$A" --audio "$JFK@0:20ms"
  [ "$(size "$JFK@0:321")" = "3 1" ]
  failed nope.flac "No such file" -- embed -m "$A" --audio nope.flac
  failed "$DATA" directory -- embed -m "$A" --audio "$DATA"
  : >empty.wav
  failed empty.wav -- embed -m "$A" --audio empty.wav
  wav none.wav 16000 0
  failed none.wav "no samples" -- embed -m "$A" --audio none.wav
  head -c 2000 /dev/urandom >noise.wav
  failed noise.wav -- embed -m "$A" --audio noise.wav
  wav long.wav 16000 4800001
  failed long.wav "300 s" -- embed -m "$A" --audio long.wav
  failed long.wav "300 s" -- logits -m "$A" --tokens 382 --audio long.wav
}

@test "embed --stream: the same rows, a little apart, whatever the frame" {
  mt-probe embed -m "$A" --audio "$JFK@2.4:6" >whole
  mt-probe embed -m "$A" --audio "$JFK@2.4:6" --stream >live
  jq -se 'map(select(.type == "mel").frames) == [200, 200, 200]' live
  jq -se 'map(select(.type == "embed").pos) == [range(150)]' live
  # RMS of the difference, relative: the clip begins softly, so it is not nothing, and within what the running maximum costs.
  jq -ne '[inputs | select(.type == "embed") | .v[]] | (length / 2) as $n | .[:$n] as $a | .[$n:] as $b |
    ([range($n) | pow($a[.] - $b[.]; 2)] | add) as $d | ($a | map(. * .) | add) as $s | ($d / $s | sqrt) | . > 1e-3 and . < 0.06' whole live
  # A frame of three blocks hears the same as three of one.
  jq -c 'select(.type == "embed")' live >want
  mt-probe embed -m "$A" --audio "$JFK@2.4:6" --stream --frame 6s >six
  [ "$(jq -c 'select(.type == "mel")' six)" = '{"type":"mel","frames":600,"positions":150}' ]
  jq -c 'select(.type == "embed")' six | cmp - want
  [ "$(mt-probe embed -m "$A" --audio "$JFK@0s:1s" --stream --frame 40ms | jq -c 'select(.type == "embed")' | wc -l)" = 25 ]
}

@test "embed: Qwen3-Omni counts 13 rows a second and the authors' rows of a rest, live, too" {
  mt-probe embed -m "$Q" --audio "$JFK@0s:10.3s" >whole
  [ "$(head -n 1 whole)" = '{"type":"mel","frames":1030,"positions":134}' ]
  mt-probe embed -m "$Q" --audio "$JFK@0s:10.3s" --stream >live
  jq -se 'map(select(.type == "mel").positions) == [range(10) | 13] + [4]' live
  # Seconds are seconds, however many make a frame.
  mt-probe embed -m "$Q" --audio "$JFK@0s:10.3s" --stream --frame 3s | jq -c 'select(.type == "embed")' >three
  jq -c 'select(.type == "embed")' live | cmp - three
  mt-probe embed -m "$Q" --audio "$JFK@1s:2s" --stream --frame 500ms | jq -se 'map(select(.type == "mel").positions) == [7, 7, 7, 7]'
  failed "200 samples is too short (at least 201)" -- embed -m "$Q" --audio "$JFK@1000:200"
  wrong --frame 80 -- embed -m "$Q" --audio "$JFK" --stream --frame 70ms
}

@test "embed --stream: wrong frames" {
  wrong --frame 40 -- embed -m "$A" --audio "$JFK" --stream --frame 30ms
  wrong --frame -- embed -m "$A" --audio "$JFK" --stream --frame 33.3ms
  wrong --frame -- embed -m "$A" --audio "$JFK" --stream --frame 2020ms
  wrong --frame "120 s" -- embed -m "$A" --audio "$JFK" --stream --frame 200s
  wrong --frame -- embed -m "$A" --audio "$JFK" --stream --frame 0
  wrong --stream -- embed -m "$A" --audio "$JFK" --frame 2s
}

# ---- the authors' values ----

# Row I of tensor NAME in DIR/expected.safetensors, as a JSON array: row DIR NAME I
row() {
  local f=$1/expected.safetensors n from cols
  n=$(od -An -t u8 -N 8 "$f" | tr -d ' ')
  head -c $((8 + n)) "$f" | tail -c "$n" | tr -d '\0' >header
  from=$(jq --arg t "$2" '.[$t].data_offsets[0]' header)
  cols=$(jq --arg t "$2" '.[$t].shape[1]' header)
  od -An -v -t f4 -w4 -j $((8 + n + from + 4 * cols * $3)) -N $((4 * cols)) "$f" | jq -sc .
}

# All positions of a case of cases.json within TOL: golden DIR NAME TOL
golden() {
  local i n args=() clip
  jq --arg n "$2" '.[] | select(.name == $n)' "$1/cases.json" >case
  while read -r clip; do
    args+=(--audio "$1/$clip")
  done < <(jq -r '.audio[] | "\(.file)@\(.first):\(.samples)"' case)
  [ "$(jq .kv case)" = null ] || args+=(--kv "$(jq -r '"window=\(.kv.window),sinks=\(.kv.sinks)"' case)" --rope "$(jq -r .kv.rope case)")
  mt-probe logits -m "$1" --tokens "$(jq -c .ids case)" --at "$(jq -r '.at | join(",")' case)" --top 0 "${args[@]}" >got
  n=$(jq '.at | length' case)
  [ "$(wc -l <got)" = "$n" ]
  [ "$n" -gt 3 ]
  for ((i = 0; i < n; i++)); do
    row "$1" "$(jq -r .tensor case)" $i >want
    sed -n $((i + 1))p got | jq -e --slurpfile want want --argjson tol "$3" \
      '.top | length > 300 and ([range(length) as $k | .[$k][1] - $want[0][$k] | fabs] | max < $tol)' >/dev/null
  done
}

@test "golden: text" {
  golden "$A" text-short 2e-4
  golden "$B" text-short 2e-4
}

@test "golden: two clips with text between" {
  golden "$A" audio-two 3e-4
  golden "$B" audio-two 3e-4
}

@test "golden: a window with sinks, both rotations" {
  golden "$A" W16-S4-cache 2e-4
  golden "$A" W16-S4-absolute 2e-4
  golden "$B" audio-W33-S5-cache 3e-4
}

@test "golden: Qwen3-Omni" {
  golden "$Q" audio-two 6e-4
  golden "$Q" W16-S4-cache 2e-4
  golden "$MT_TESTS/golden/qwen3-b" audio-W24-S5-absolute 6e-4
}
