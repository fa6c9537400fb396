#!/usr/bin/env bats
# mt-probe quality: what a bound costs, and what one gets who asks wrongly. On models without training: shapes of answers, equality
# where it must be, and that they say so.

# shellcheck disable=SC2154,SC2016,SC2094  # run sets variables; bash -c has its own $1; @ids is read only
load helper

A=$MT_TESTS/golden/omni-a
BOOK=$MT_TESTS/../README.md

# quality ARGS…: lines to out, messages to err.
quality() {
  mt-probe quality --text "$BOOK" --format json "$@" >out 2>err
}
# A wrong call: exit 2, nothing on stdout, one line of a reason: wrong WORD -- ARGS…
wrong() {
  refused 2 "$@"
}
failed() {
  refused 1 "$@"
}
refused() {
  local status=$1 word=$2
  shift 3
  run "-$status" --separate-stderr mt-probe quality "$@" </dev/null
  [ -z "$output" ]
  [ "$(grep -vc "^Try \`\|^information.$" <<<"$stderr")" = 1 ]
  [[ "$stderr" == mt-probe*"$word"* ]] || { echo "'$word' is not in: $stderr" >&2; return 1; }
}

@test "quality: a line of the run, a line a setting, the unbounded first" {
  quality --windows 32,64 --sinks 0,4 --tokens 300 --resample 16
  jq -se '.[0].type == "quality_run" and .[0].length == 300 and .[0].text_tokens > 300 and .[0].metronome == 1' out
  [ "$(jq -r 'select(.type == "quality").kv' out | tr '\n' ' ')" = "unbounded window=32,sinks=0 window=32,sinks=4 window=64,sinks=0 window=64,sinks=4 " ]
  jq -se '.[1] | .tokens == 299 and .diff == 0 and .kl == 0 and .agree == 1 and .nll == .nll_unbounded' out
  jq -se '.[2:] | all(.nll_unbounded > 5 and .kl > 0 and .low <= .diff and .diff <= .high and (.nll - .nll_unbounded - .diff | fabs < 2e-6))' out
}

@test "quality: weights without training say that their figures mean nothing, and choose nothing" {
  quality --windows 32 --sinks 0 --tokens 100
  grep -q "figures mean nothing" err
  jq -se '.[0].meaningful == false and (.[0].remark | test("mean nothing")) and all(.type != "quality_choice")' out
  quality -m "$A" --windows 32 --sinks 0 --tokens 100
  grep -q "no better than by guessing" err
  jq -se '.[0].meaningful == false' out
  mv out named
  MT_MODEL=$A quality --windows 32 --sinks 0 --tokens 100
  cmp named out
}

@test "quality: until the first token is masked nothing changes, there it does" {
  quality --windows 32,64 --sinks 0,1,4 --tokens 200 --each
  jq -se 'map(select(.type == "quality" and .window)) | length == 6 and all(.first_change == .window + .sinks
    and .before.to == .first_change and .before.diff == 0 and .before.kl == 0 and .before.agree == 1
    and .near.from == .first_change and .near.to == ([.first_change + .window, 199] | min)
    and .before.tokens + .after.tokens == .tokens and (.far.tokens // 0) + .near.tokens == .after.tokens)' out
  # The same numbers as token lines.
  jq -se 'map(select(.type == "quality_token")) as $t | map(select(.type == "quality" and .kv == "window=64,sinks=4"))[0] as $q
    | [$t[] | select(.kv == "window=64,sinks=4")] as $w | ($w | length) == 199 and ([range(199)] == [$w[].pos])
    and (($w | map(.nll) | add / 199) - $q.nll | fabs < 1e-5)' out
}

@test "quality: what logits says, setting by setting" {
  local kv want
  quality -m "$A" --windows 24 --sinks 0,5 --rope cache,absolute --tokens 80 --each
  head -c 4000 "$BOOK" | mt-probe tokens -m "$A" -s | tr ' ' '\n' | head -n 80 >ids
  for kv in "--kv unbounded" "--kv window=24,sinks=0" "--kv window=24,sinks=5" "--kv window=24,sinks=5 --rope absolute"; do
    # shellcheck disable=SC2086
    mt-probe logits -m "$A" --tokens @ids --at all --top 0 $kv >logits
    want=$(jq -s --slurpfile ids ids '[range(79) as $i | -.[$i].top[$ids[$i + 1]][1]] | add / length' logits)
    jq -se --argjson want "$want" --arg kv "${kv% --rope*}" --arg rope "$([[ $kv == *rope* ]] && echo absolute || echo cache)" \
      'map(select(.type == "quality" and "--kv " + .kv == $kv and (.rope // "cache") == $rope))[0].nll - $want | fabs < 1e-4' out
  done
}

@test "quality: moved positions cost nothing, in both ropes, and no more than moving by one" {
  quality --windows 32 --sinks 4 --rope cache,absolute --tokens 150 --offset 0,10000,10000000
  jq -se 'map(select(.type == "quality")) | map(.moved) == [range(3) | 0, 0, 0, 0][0:3] + [range(3) | 1] + [range(3) | 10000] + [range(3) | 10000000]' out
  jq -se 'map(select(.type == "quality" and .moved > 0)) | length == 9 and all((.moved_diff | fabs < 1e-5) and .moved_worst < 1e-4
    and .moved_rms > 0 and .moved_rms <= .moved_worst and .moved_rms < 10 * .floor_rms and .moved_within)' out
  # The floor is the same setting moved by one.
  jq -se 'map(select(.type == "quality" and .moved > 0)) | group_by([.kv, .rope]) | length == 3 and all((map(.floor_rms) | unique | length == 1)
    and (.[0] | .moved == 1 and .moved_rms == .floor_rms and .moved_diff == .floor_diff and .moved_worst == .floor_worst))' out
  jq -se 'map(select(.type == "quality" and .moved == 0)) | all(has("moved_rms") or has("floor_rms") | not)' out
  # A move stands beside where it was, asked for or not; one that is asked for twice over stands there once.
  quality --windows 32 --sinks 4 --tokens 100 --offset 1,5
  jq -se 'map(select(.type == "quality")) | map(.moved) == [0, 0, 1, 1, 5, 5]' out
  quality --windows 32 --sinks 4 --tokens 100 --offset 0
  jq -se '(.[0].backend | test("exact") | not) and (map(select(.type == "quality")) | map(.moved) == [0, 0])' out
  quality --windows 32 --sinks 4 --tokens 40 --offset "$(seq -s, 2 17)"
  jq -se 'map(select(.kv == "unbounded").moved) == [range(18)]' out
  mt-probe quality --text "$BOOK" --windows 32 --sinks 4 --tokens 100 --offset 0,1000 --format table >out 2>/dev/null
  grep -q '^moved positions.*exact' out
  [ "$(grep -c 'e-[0-9]* yes$' out)" = 4 ]
}

@test "quality: with weights in blocks, moved positions are measured in floats, and rounding says that it decides nothing" {
  quality --quantize q8_0 --windows 32 --sinks 4 --rope cache,absolute --tokens 100 --offset 0,1000000
  jq -se '(.[0].backend | test("exact")) and (map(select(.moved > 0)) | length == 6 and all(.moved_within and .moved_worst < 1e-4))' out
  mv out exact
  # Activations of 8 bits, where this processor has them: the same settings, a noise that any change makes.
  quality --quantize q8_0 --windows 32 --sinks 4 --rope cache,absolute --tokens 100 --offset 0,1000000 --backend cpu
  jq -se '(.[0].backend | test("exact") | not) and (map(select(.moved > 0)) | length == 6)' out
  if jq -se '.[0].backend | test("avx")' out; then
    jq -se '[.[0], .[1]] | map(map(select(.moved > 0).floor_rms) | max) | .[1] > 10 * .[0]' <(jq -s . exact) <(jq -s . out)
  fi
  # Six blocks of 32 have no interval that lies within the bound, and no token of them may pass for the mean.
  jq -se 'map(select(.moved > 0)) | all(if .moved_worst < 1e-3 then .moved_within elif has("moved_low") then true else .moved_within == null end)' out
}

@test "quality: every type of cache has its price beside it" {
  quality --windows 32 --sinks 4 --kv-type f32,int8,bf16 --tokens 150
  jq -se 'map(select(.kv == "unbounded")) | map(.kv_type) == ["f32", "int8", "bf16"] and .[0].kl == 0 and (.[1:] | all(.kl > 0 and .kl < 0.1))' out
}

@test "quality: passages are spread over the text, prompts do not count" {
  quality --windows 64 --sinks prompt,2 --tokens 200 --passages 3
  jq -se '.[0].passages == 3 and .[0].prompt > 10 and .[0].prompt < 64 and .[0].prompt as $p
    | .[1].tokens == 600 and .[1].from == $p - 1 and .[2].sinks == $p and .[2].first_change == 64 + $p' out
  wrong "the prompt" -- --text "$BOOK" --windows 16 --sinks prompt --tokens 40
  quality --windows 64 --sinks 2 --tokens 200 --system "Be brief."
  jq -se '.[0].prompt > 2' out
}

@test "quality: an interval is never narrower than that over whole passages" {
  quality --windows 32 --sinks 0,4 --tokens 200 --passages 6 --resample 200
  jq -se '.[2:] | all(.blocks == 6 and .after.blocks == 6)' out
  mv out whole
  quality --windows 32 --sinks 0,4 --tokens 200 --passages 6 --resample 8
  jq -se '.[2:] | all(.blocks == 6 or .blocks == 6 * 25)' out
  jq -se 'def width: .high - .low; . as $all | [range(2; 4) | $all[.] as $w | $all[. + 4] as $b
    | ($b | width) >= ($w | width) - 1e-9 and ($b.far | width) >= ($w.far | width) - 1e-9] | all' whole out
}

@test "quality: goes on from what is there, torn lines and all" {
  quality --windows 32,64 --sinks 4 --tokens 150 --passages 2 --state s
  mv out want
  [ "$(wc -l <s)" = 6 ]
  quality --windows 32,64 --sinks 4 --tokens 150 --passages 2 --state s
  cmp want out
  [ "$(wc -l <s)" = 6 ]
  # Cut in the middle of a line: what is whole is kept, the rest is computed again.
  head -c "$(($(wc -c <s) / 2))" s >torn
  quality --windows 32,64 --sinks 4 --tokens 150 --passages 2 --state torn
  cmp want out
  grep -q "torn: 1 lines are broken" err
  [ "$(grep -c '"}$' torn)" = 6 ]
  # A further setting costs only itself; another text has nothing of it.
  quality --windows 32,64,48 --sinks 4 --tokens 150 --passages 2 --state s
  [ "$(wc -l <s)" = 8 ]
  cmp <(jq -c . want) <(jq -c 'select(.kv != "window=48,sinks=4")' out)
  quality --windows 32,64 --sinks 4 --tokens 149 --passages 2 --state s
  [ "$(wc -l <s)" = 14 ]
  # What another tier computes is another thing: half of a difference must not come from each.
  MT_CPU=base quality --windows 32 --sinks 4 --tokens 149 --passages 2 --state s
  [ "$(wc -l <s)" = 18 ]
  # So is what another model computes, however it was named.
  MT_MODEL=synth:qwen2.5-omni-tiny,seed=2 quality --windows 32 --sinks 4 --tokens 149 --passages 2 --state s
  [ "$(wc -l <s)" = 22 ]
  failed "No such file" -- --text "$BOOK" --state /nonexistent/s --tokens 40 --windows 8
}

@test "quality: goes on after kill -9, and says what an uninterrupted run says" {
  quality --windows 32,64 --sinks 0,4 --tokens 400 --passages 6 --state whole
  mv out want
  mt-probe quality --text "$BOOK" --windows 32,64 --sinks 0,4 --tokens 400 --passages 6 --state s >out 2>/dev/null 3>&- &
  SERVERS+=($!)
  within 60 test -s s
  kill -9 "${SERVERS[0]}"
  wait "${SERVERS[0]}" || true
  SERVERS=()
  quality --windows 32,64 --sinks 0,4 --tokens 400 --passages 6 --state s
  cmp want out
  cmp <(grep '"}$' whole | sort) <(grep '"}$' s | sort)
}

@test "quality: threads, blocks and company do not show" {
  quality --windows 32,64 --sinks 0,4 --tokens 200 --threads 1
  mv out want
  quality --windows 32,64 --sinks 0,4 --tokens 200 --threads 3
  cmp want out
  quality --windows 64 --sinks 4 --tokens 200
  jq -c 'select(.kv == "window=64,sinks=4")' want >one
  jq -c 'select(.kv == "window=64,sinks=4")' out | cmp - one
}

@test "quality: a table for people" {
  mt-probe quality --text "$BOOK" --windows 32,64 --sinks 0,4 --tokens 200 --format table >out 2>/dev/null
  [ "$(grep -c '^window=' out)" = 4 ]
  grep -q '^unbounded' out
  grep -q 'mean nothing' out
}

@test "quality: wrong calls" {
  wrong "--text is missing" -- --windows 32
  wrong "'book'" -- --text "$BOOK" book
  wrong "--windows" -- --text "$BOOK" --windows 0
  wrong "--windows" -- --text "$BOOK" --windows 32,x
  wrong "twice" -- --text "$BOOK" --windows 32,32
  wrong "nothing" -- --text "$BOOK" --windows ,
  wrong "--sinks" -- --text "$BOOK" --sinks 1,some
  wrong "window=4 is not above sinks=4" -- --text "$BOOK" --windows 4 --sinks 4
  wrong "--rope" -- --text "$BOOK" --rope fast
  wrong "--kv-type" -- --text "$BOOK" --kv-type f64
  wrong "--offset" -- --text "$BOOK" --offset -1
  wrong "3 passages of 100000" -- --text "$BOOK" --passages 3 --tokens 100000
  wrong "frames of codes" -- -m synth:moshi-tiny --text "$BOOK"
  failed "No such file" -- --text nope.txt
  : >empty
  failed "no text" -- --text empty
  printf 'a\377b' >latin
  failed "latin" -- --text latin
}

@test "quality: an option that says nothing in this way of measuring is a wrong call" {
  local o
  # shellcheck disable=SC2086  # an option and its value
  for o in "--prompt-tokens 9" "--answer-tokens 9" "--seeds 2" "--temperature 0" "--top-p 0.5" "--ban 4"; do
    wrong "${o% *}: not with a text that is only read" -- --text "$BOOK" $o
  done
  # shellcheck disable=SC2086
  for o in "--windows 8" "--rope cache" "--offset 7" "--bound 1" "--resample 8" "--state s" --each "--seeds 2"; do
    wrong "${o% *}: not with --attention" -- --text "$BOOK" --attention $o
  done
  # shellcheck disable=SC2086
  for o in "--offset 7" "--bound 1" "--resample 8" "--state s"; do
    wrong "${o% *}: not with --free" -- --text "$BOOK" --free $o
    wrong "${o% *}: not with --turns" -- --text "$BOOK" --turns one $o
  done
  wrong "--answer-tokens: not with --free" -- --text "$BOOK" --free --answer-tokens 8
  # shellcheck disable=SC2086
  for o in "--offset 7" "--tokens 100" --each "--ban 4"; do
    wrong "${o% *}: not with --needle" -- --text "$BOOK" --needle $o
  done
  [ ! -e s ]
}

@test "quality: a full disk is exit 1, a reader that left is quiet" {
  run -1 --separate-stderr bash -c 'mt-probe quality --text "$1" --tokens 60 --windows 16 >/dev/full 2>err; s=$?; cat err >&2; exit $s' - "$BOOK"
  [[ "$stderr" == *"No space left"* ]]
}

@test "quality --attention: shares by layer and distance, with a control and no advice where there is no meaning" {
  quality --attention --tokens 300
  jq -se '.[0].type == "quality_run" and .[0].passages == 8 and map(.type) == ["quality_run"] +
    [range(4 * 3) | "quality_attention"] + [range(8) | "quality_first"]' out
  jq -se 'map(select(.type == "quality_attention")) | map([.layer, .from]) == [range(4) as $l | 64, 128, 256 | [$l, .]]
    and all(.share > 0 and .share < 1 and .low <= .share and .share <= .high and (.tokens | length) == 8
    and ((.tokens | add) - .share | fabs < 1e-5))' out
  # Random weights know no first tokens: they get what their neighbours get.
  jq -se 'map(select(.type == "quality_first")) | all(.share / .neighbours | . > 0.5 and . < 2)' out
  quality --attention --tokens 300 --passages 2 --threads 3
  jq -se 'map(select(.type == "quality_first")) | all(has("low") | not)' out
  mt-probe quality --attention --text "$BOOK" --tokens 100 --format table >out 2>/dev/null
  grep -q "mean nothing" out
  wrong "too short" -- --text "$BOOK" --attention --tokens 60
}

@test "quality --free: beside the control, and only what was written after something was lost" {
  quality --free --windows 24,48,96 --sinks 0,4 --tokens 90 --prompt-tokens 20
  jq -se '.[0] | .turns == "none" and .control_sound and .passages == 8 and (.meaningful | not)' out
  jq -se '.[1:] | length == 7 and all(.type == "quality_free") and map(.drawn) == [8 * 70, 8 * 65, 8 * 61, 8 * 41, 8 * 37, 8 * 70, 8 * 70]
    and map(.masked) == [false, true, true, true, true, false, false]' out
  # Nothing masked is nothing changed.
  jq -se 'map(select(.masked == false)) | all(.distinct4.diff == 0 and .nll.diff == 0 and .nll.value == .nll.control)' out
  jq -se 'map(select(.masked)) | all(.nll.low <= .nll.diff and .nll.diff <= .nll.high and (.nll.value - .nll.control - .nll.diff | fabs < 1e-5))' out
  mv out want
  quality --free --windows 24,48,96 --sinks 0,4 --tokens 90 --prompt-tokens 20 --threads 1
  cmp want out
  quality --free --windows 24,48,96 --sinks 0,4 --tokens 90 --prompt-tokens 20 --seed 2
  run ! cmp -s want out
}

@test "quality --free: the measures, counted again from the tokens" {
  local kv
  quality --free -m "$A" --windows 24 --sinks 0,4 --tokens 120 --prompt-tokens 10 --seeds 2 --temperature 0.4 --top-p 0.9 --each
  jq -se 'map(select(.type == "quality_written")) | length == 3 * 16 and (map(.passage) | unique) == [range(8)]' out
  for kv in window=24,sinks=0 window=24,sinks=4; do
    jq -se --arg kv $kv 'def distinct: [range(length - 3) as $i | [.[$i, $i + 1, $i + 2, $i + 3]]] | (unique | length) / length;
      def loop: . as $t | [range(1; 65) as $p | reduce range($p; $t | length) as $i ([0, 0]; if $t[$i] == $t[$i - $p] then [.[0] + 1, ([.[0] + 1, .[1]] | max)] else [0, .[1]] end) | .[1]] | max / ($t | length);
      def mean: add / length;
      map(select(.type == "quality_free" and .kv == $kv))[0] as $q | map(select(.type == "quality_written")) as $w
      | [$w[] | select(.kv == $kv)] as $a | [$w[] | select(.kv == "unbounded")] as $c
      | [range(16) as $i | ($a[$i].pos[0]) as $from | $c[$i] | . as $u | [range(.pos | length) | select($u.pos[.] >= $from)] as $k | {tokens: [$u.tokens[$k[]]], nll: [$u.nll[$k[]]]}] as $c
      | ($a | map(.pos[0]) | unique) == [$q.window + $q.sinks + 1] and ($a | map(.tokens | length) | add) == $q.drawn
      and ([($a | map(.tokens | distinct) | mean) - $q.distinct4.value, ($c | map(.tokens | distinct) | mean) - $q.distinct4.control,
        ($a | map(.tokens | loop) | mean) - $q.loop.value, ($c | map(.tokens | loop) | mean) - $q.loop.control,
        ($a | map(.nll | mean) | mean) - $q.nll.value, ($c | map(.nll | mean) | mean) - $q.nll.control] | all(fabs < 1e-5))
      and $q.distinct4.value < 1 and $q.loop.value > 0' out
  done
}

@test "quality --free: a decoder that the control does not survive is told" {
  quality --free --windows 24 --sinks 4 --tokens 200 --prompt-tokens 10 --temperature 0 -m "$A"
  jq -se '.[0].temperature == 0' out
  quality --free --windows 24 --sinks 4 --tokens 200 --prompt-tokens 10 --temperature 0 --ban 2 -m "$A"
  jq -se '.[0].control_sound and .[0].ban == 2 and all(.[1:][]; .distinct4.value == 1)' out
}

@test "quality --turns: fresh caches hide what one cache shows" {
  quality --turns fresh --windows 64 --sinks 0 --tokens 300 --prompt-tokens 20 --answer-tokens 20 --seeds 2
  jq -se '.[0].turns == "fresh" and .[0].turn_count >= 4 and .[2].masked == false and .[2].nll.diff == 0' out
  quality --turns one --windows 64 --sinks 0 --tokens 300 --prompt-tokens 20 --answer-tokens 20 --seeds 2
  jq -se '.[0].turns == "one" and .[2].masked and .[2].nll.diff != 0 and .[1].drawn == .[0].turn_count * 20 * 16' out
  mt-probe quality --turns one --text "$BOOK" --windows 48 --sinks 0 --tokens 200 --format table >out 2>/dev/null
  grep -q '^window=48,sinks=0' out
}

@test "quality --free: wrong calls" {
  wrong "one of them" -- --text "$BOOK" --free --attention
  wrong "--state" -- --text "$BOOK" --free --state s
  wrong "--turns" -- --text "$BOOK" --turns two
  wrong "one --kv-type" -- --text "$BOOK" --free --kv-type f32,int8
  wrong "one --kv-type" -- --text "$BOOK" --attention --kv-type f32,int8
  wrong "--offset" -- --text "$BOOK" --free --offset 7
  wrong "--offset" -- --text "$BOOK" --needle --offset 0,7
  wrong "--offset" -- --text "$BOOK" --attention --offset 7
  wrong "no turn" -- --text "$BOOK" --turns one --tokens 100
  wrong "leave nothing to write behind 100" -- --text "$BOOK" --free --tokens 100 --prompt-tokens 100
  wrong "all the same" -- --text "$BOOK" --free --temperature 0 --seeds 2
  wrong "less than 8 passages" -- --text "$BOOK" --free --prompt-tokens 2000 --tokens 3000
  wrong "frames of codes" -- -m synth:moshi-tiny --text "$BOOK" --free
}

@test "quality --needle: inside and outside, beside a text that told something else" {
  quality --needle --windows 64,128 --sinks 4 --distances 60,200 --passages 6
  jq -se '.[1:] | length == 6 and map([.kv, .distance, .inside]) == [["unbounded", 60, true], ["unbounded", 200, true],
    ["window=64,sinks=4", 60, false], ["window=64,sinks=4", 200, false], ["window=128,sinks=4", 60, true], ["window=128,sinks=4", 200, false]]
    and all(.type == "quality_needle" and (.control - .told - .known | fabs < 2e-6) and .recalled >= 0 and .recalled_control >= 0 and .low <= .known and .known <= .high)' out
  # A window within which all lies is the unbounded cache; far outside it nothing is known.
  quality --needle --windows 16,400 --sinks 0 --distances 60,200 --passages 6
  jq -se '.[1].known == .[5].known and .[2].known == .[6].known and (.[4].known | fabs < 0.05)' out
  wrong "less than the question" -- --text "$BOOK" --needle --windows 32 --sinks 0
  wrong "one of them" -- --text "$BOOK" --needle --free
}

@test "quality --quantize: smaller weights have their price beside them" {
  quality --windows 32 --sinks 4 --tokens 200
  mv out plain
  quality --windows 32 --sinks 4 --tokens 200 --quantize q8_0
  jq -se '.[0].quantize == "q8_0"' out
  jq -se '(.[1].nll == .[4].nll_unbounded) and .[4].diff != 0 and (.[4].nll - .[4].nll_unbounded - .[4].diff | fabs < 2e-6)
    and .[4].kl == 0 and .[5].nll_unbounded == .[1].nll and .[5].kl > 0' <(jq -c 'select(.type == "quality" or .type == "quality_run")' plain) <(jq -c 'select(.type == "quality" or .type == "quality_run")' out)
}

# Clips with more than a frame each, for every family.
clips() {
  CLIPS=(-a "$DATA/jfk.flac@0s:4s" -a "$DATA/jfk.flac@4s:5s" -a "$DATA/night30.flac@0s:6s")
}

@test "quality --audio: every family, beside answers with other draws" {
  local m wide
  clips
  for m in qwen2.5-omni-tiny qwen3-omni-30b-tiny minicpm-o-4.5-tiny moshi-tiny; do
    wide=$([ $m = moshi-tiny ] && echo 240 || echo 900)
    mt-probe quality -m synth:$m "${CLIPS[@]}" --windows "24,$wide" --sinks 0,4 --answer-tokens 6 --format json >out 2>err
    grep -q "figures mean nothing" err
    jq -se '.[0] | .type == "quality_run" and .clips == 3 and .transcripts == 0 and .seeds == 2 and .turns == "none" and .control_sound and (.meaningful | not) and (has("text") | not)' out
    jq -se '.[1:] | map(.type) | length == 5 and all(. == "quality_speech")' out
    jq -se '.[1] | .answers == 6 and .same == 6 and .distance.diff == 0 and .distance.value == .distance.control and .characters.diff == 0' out
    # What lost something is not what it was, and how far from it has its control; three clips are too few for an interval.
    jq -se '.[2:4] | all(.window == 24 and .answers > 0 and .same < .answers and (.distance.value - .distance.control - .distance.diff | fabs < 1e-5)
      and .distance.blocks <= 3 and (.distance | has("low") | not) and (has("error") | not))' out
    jq -se '.[4:] | all(.window > 200 and .answers == 0 and .same == 0 and (has("distance") | not))' out
  done
}

@test "quality --audio: transcripts, turns, and an interval over clips" {
  local k args=()
  for k in 0 1 2 3 4 5 6; do
    args+=(-a "$DATA/jfk.flac@${k}s:3s")
    if [ $k != 3 ]; then args+=(--transcript said); fi
  done
  echo "And so, my fellow Americans" >said
  quality_of() { mt-probe quality "${args[@]}" --windows 48 --sinks 4 --answer-tokens 4 --format json "$@" >out 2>err; }
  quality_of --turns one --each
  jq -se '.[0] | .turns == "one" and .transcripts == 6 and .clips == 7' out
  jq -se '.[2] | .error.blocks == ([.distance.blocks, 6] | min) and .error.value > 0 and .distance.low <= .distance.diff and .distance.diff <= .distance.high' out
  jq -se 'map(select(.type == "quality_answer")) | length == 28 and (map(.seed) | unique) == [1, 2] and (map(select(.kv == "unbounded").counts) | all)' out
  # same and answers are those of the lines.
  jq -se '.[2] as $q | map(select(.type == "quality_answer")) | (map(select(.window and .counts)) | length == $q.answers)
    and ([.[0:14], .[14:]] | transpose | map(select(.[1].counts and .[0].text == .[1].text)) | length == $q.same)
    and ([.[0:14], .[14:]] | transpose | all(.[1].counts or .[0].text == .[1].text))' out
  mv out want
  quality_of --turns one --each --threads 1
  cmp want out
  # A call for each clip forgets the clips before it: too short to lose anything from a wide window.
  quality_of --turns fresh
  jq -se '.[0].turns == "fresh" and .[1].answers == 14' out
  quality_of --turns fresh --windows 400
  jq -se '.[2].answers == 0' out
  mt-probe quality "${args[@]}" --windows 48 --sinks 4 --answer-tokens 4 --format table >out 2>/dev/null
  grep -q '^window=48,sinks=4' out
}

@test "quality --audio: greedy answers have no control, and say so" {
  clips
  mt-probe quality -m synth:moshi-tiny,seed=3 "${CLIPS[@]}" --windows 24 --sinks 4 --temperature 0 --format json >out 2>err
  grep -q "figures mean nothing" err
  jq -se '.[0].seeds == 1 and .[0].control_sound == false and .[2].distance.control == 0 and .[2].distance.value == .[2].distance.diff' out
}

@test "quality --audio: wrong calls" {
  clips
  wrong "one of them" -- --text "$BOOK" "${CLIPS[@]}"
  wrong "one of them" -- --needle "${CLIPS[@]}"
  wrong "no --audio before it" -- --transcript said --audio "$DATA/jfk.flac"
  wrong "no --audio before it" -- "${CLIPS[@]}" --transcript a --transcript b
  wrong "--tokens: not with --audio" -- "${CLIPS[@]}" --tokens 100
  wrong "--ban: not with --audio" -- "${CLIPS[@]}" --ban 4
  wrong "all the same" -- "${CLIPS[@]}" --temperature 0 --seeds 2
  wrong "2 at least" -- "${CLIPS[@]}" --seeds 1
  wrong "one --kv-type" -- "${CLIPS[@]}" --kv-type f32,int8
  wrong "is not above sinks" -- "${CLIPS[@]}" --windows 4 --sinks 4
  wrong "--answer-tokens" -- "${CLIPS[@]}" --answer-tokens 100000
  wrong "window=900 is above the model's context of 250" -- -m synth:moshi-tiny "${CLIPS[@]}" --windows 900
  wrong "--each" -- --text "$BOOK" --needle --each
  failed "No such file" -- -a nope.wav
  failed "No such file" -- "${CLIPS[@]}" --transcript nope.txt
  echo "... ?" >said
  failed "no word" -- "${CLIPS[@]}" --transcript said
}
