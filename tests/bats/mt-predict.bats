#!/usr/bin/env bats
# mt-predict as a user meets it: from a shape, from records, and wrongly.

load helper

# One member of the object on stdout.
get() {
  jq -e -r ".$1" <<<"$output"
}

# A run of 8 sessions in step, 50 tokens every 2 s, in 1024 blocks of 16 tokens: 128 blocks each, so the 41st frame finds none.
# What the frames without memory call themselves is $1.
collapse() {
  awk -v wall="$1" 'BEGIN {
    print "{\"type\":\"ready\",\"pool_blocks\":1024,\"block\":16}"
    for (f = 1; f <= 45; f++)
      for (s = 0; s < 8; s++) {
        good = f < 41
        n = good ? 50 * f : 2000
        printf "{\"type\":\"frame\",\"session\":\"%d\",\"frame\":%d,\"status\":\"%s\",\"t\":%.3f,\"latency_ms\":9,", \
          s, f, good ? "ok" : wall, 2 * f + 0.25
        printf "\"tokens_in\":50,\"tokens_out\":%d,\"kv_tokens\":%d,\"pool\":%.6f,\"sessions\":8}\n", \
          good ? 1 : 0, n, 8 * int((n + 15) / 16) / 1024
      }
  }'
}

@test "mt-predict: an unbounded cache, to the block" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 30
  [ -z "$stderr" ]
  [ "${#lines[@]}" -eq 1 ]
  [ "$(get type)" = predict ]
  [ "$(get pool_blocks)" = 3072 ]
  [ "$(get token_bytes)" = 524288 ]
  [ "$(get t_sat_s)" = 131.072 ]
  [ "$(get t_sat_locked_s)" = 130.64 ]
  [ "$(get last_tokens)" = 1632 ]
  [ "$(get t_sat_spread_s)" = 130.472 ]
  [ "$(get t_stall_s)" = 130.64 ]
  [ "$(get binding)" = memory ]
}

@test "mt-predict: a pool that is partly used, and prompts, bring the wall nearer" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 3072b -n 30 --rho0 0.25
  [ "$(get t_sat_s)" = 98.304 ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 3072b -n 30 --prompt-tokens 100
  [ "$(get t_sat_s)" = 123.072 ]
  [ "$(get t_sat_locked_s)" = 122.64 ]
}

@test "mt-predict: rate and frame are the user's or the model's" {
  run -0 --separate-stderr mt-predict -m qwen3-omni-30b --pool 24GiB -n 32 --rate 12.5
  [ "$(get t_sat_s)" = 655.36 ]
  run -0 --separate-stderr mt-predict -m qwen3-omni-30b --pool 24GiB -n 32
  [ "$(get rate_tokens_s)" = 13 ]
  run -0 --separate-stderr mt-predict -m qwen3-omni-30b --pool 24GiB -n 32 --frame 400ms
  [ "$(get rate_tokens_s)" = 12.5 ]
  [ "$(get step_tokens)" = 5 ]
  run -0 --separate-stderr mt-predict -m qwen2.5-omni-7b --pool 24GiB -n 32
  [ "$(get step_tokens)" = 50 ]
}

@test "mt-predict: no sessions or no tokens never fill a pool" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 0
  [ "$(jq -r '.t_sat_s, .t_sat_locked_s, .t_sat_spread_s' <<<"$output")" = $'null\nnull\nnull' ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 3 --rate 0
  [ "$(jq -r .t_sat_s <<<"$output")" = null ]
  [ "$(get binding)" = none ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 3 --rho0 1
  [ "$(get t_sat_s)" = 0 ]
}

@test "mt-predict: a window never saturates, and says how many fit and what binds" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --kv window=1500,sinks=4 \
    --cost a=20ms,b=1.5ms
  [ "$(jq -r 'has("t_sat_s"), .t_sat_s' <<<"$output")" = $'true\nnull' ]
  [ "$(get session_blocks)" = 95 ]
  [ "$(get session_bytes)" = $((95 * 16 * 524288)) ]
  [ "$(get n_mem)" = 32 ]
  [ "$(get fits)" = true ]
  [ "$(get n_star)" = 29 ]
  [ "$(get n_star_unaligned)" = 16 ]
  [ "$(get n_sustainable)" = 29 ]
  [ "$(get binding)" = latency ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=3000,sinks=4 \
    --cost a=20ms,b=1.5ms --target .95
  [ "$(get n_star)" = 37 ]
  [ "$(get n_sustainable)" = 16 ]
  [ "$(get binding)" = memory ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=3000,sinks=4 --max-sessions 9
  [ "$(get n_sustainable)" = 9 ]
  [ "$(get binding)" = limit ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=4096,sinks=4 --step-tokens 50
  [ "$(get session_blocks)" = 261 ]
}

@test "mt-predict: the window it proposes fits, one token more does not" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29
  w=$(get fit_window_tokens)
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --kv "window=$w,sinks=4"
  [ "$(get fits)" = true ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --kv "window=$((w + 1)),sinks=4"
  [ "$(jq .fits <<<"$output")" = false ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 8b -n 29
  [ "$(jq -r 'has("fit_window_tokens"), .fit_window_tokens' <<<"$output")" = $'true\nnull' ]
}

@test "mt-predict: the prompt as sinks, one copy a session or one for all" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --prompt-tokens 640 --kv window=1600,sinks=prompt
  [ "$(get kv)" = window=1600,sinks=640 ]
  [ "$(get n_mem)" = 21 ]
  [ "$(get t_full_s)" = 128 ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --prompt-tokens 640 --kv window=1600,sinks=prompt \
    --shared-sinks
  [ "$(get n_mem)" = 30 ]
}

@test "mt-predict: KV types" {
  for t in f32:1048576 f16:524288 bf16:524288 int8:270336; do
    run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 1 --kv-type "${t%:*}"
    [ "$(get token_bytes)" = "${t#*:}" ]
    [ "$(get kv_type)" = "${t%:*}" ]
  done
}

@test "mt-predict: a table has labels and units, and says never" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 30 --format table
  [[ $output == *"saturation "*" 131.1 s after the start (130.6 s with locked phases, 130.5 s with random ones)"* ]]
  [[ $output =~ cache\ +unbounded,\ bf16,\ 512\ KiB\ a\ token ]]
  [[ $output != *[][{}]* ]]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=100 --format table
  [[ $output =~ saturation\ +never ]]
  [[ $output != *"they fit"* ]] # no number of sessions was given
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 8b -n 29 --format table
  [[ $output =~ window\ that\ fits\ +none ]]
}

@test "mt-predict: models from files" {
  mkdir dir
  echo '{"model_type":"qwen2_5_omni","thinker_config":{"text_config":{"hidden_size":192,"num_attention_heads":6,
    "num_hidden_layers":4,"num_key_value_heads":2}}}' >dir/config.json
  for m in dir dir/config.json synth:qwen2.5-omni-tiny synth:qwen2.5-omni-tiny,seed=3; do
    run -0 --separate-stderr mt-predict -m "$m" --pool 512b -n 4
    [ "$(get token_bytes)" = 1024 ]
    [ "$(get rate_tokens_s)" = 25 ]
  done
  sed -i 's/"num_hidden_layers":4/"num_hidden_layers":-4/' dir/config.json
  run -1 --separate-stderr mt-predict -m dir --pool 512b -n 4
  [ -z "$output" ]
  [[ $stderr == "mt-predict: dir/config.json: thinker_config.text_config.num_hidden_layers"* ]]
}

@test "mt-predict: a model that tells no rate needs --rate" {
  echo '{"model_type":"qwen3","hidden_size":1024,"num_attention_heads":16,"num_hidden_layers":28,
    "num_key_value_heads":8,"head_dim":128}' >config.json
  run -2 --separate-stderr mt-predict -m ./config.json --pool 1GiB -n 4
  [[ $stderr == *--rate* ]]
  run -2 --separate-stderr mt-predict -m ./config.json --pool 1GiB -n 4 --rate 10 --cost a=1ms,b=1ms
  [[ $stderr == *--deadline* ]]
  run -0 --separate-stderr mt-predict -m ./config.json --pool 1GiB -n 4 --rate 10 --cost a=1ms,b=1ms --deadline 80ms
  [ "$(get n_star)" = 63 ]
  [ "$(jq 'has("t_stall_s")' <<<"$output")" = false ]
}

@test "mt-predict: what does not exist is exit 1 and named" {
  run -1 --separate-stderr mt-predict -m gpt-9 --pool 1GiB -n 4
  [[ $stderr == *gpt-9*qwen3-omni-30b* ]]
  run -1 --separate-stderr mt-predict -m ./nowhere --pool 1GiB -n 4
  [[ $stderr == *./nowhere* ]]
  run -1 --separate-stderr mt-predict -m moshi-7b --pool 1MiB -n 4
  [[ $stderr == *"no block"* ]]
  run -1 --separate-stderr mt-predict no-such-file
  [[ $stderr == *no-such-file* ]]
  run -1 --separate-stderr mt-predict .
  [[ $stderr == *directory* ]]
}

@test "mt-predict: a wrong call is exit 2, names the option and leaves stdout empty" {
  wrong() {
    local says=$1
    shift
    run -2 --separate-stderr mt-predict "$@"
    [ -z "$output" ]
    [[ $stderr == *"$says"* ]]
  }
  local m=(-m moshi-7b --pool 1GiB -n 4)
  wrong --pool -m moshi-7b -n 4
  wrong -n -m moshi-7b --pool 1GiB
  wrong --pool "${m[@]}" --pool 40GB
  wrong --pool "${m[@]}" --pool 0
  wrong --pool "${m[@]}" --pool -1b
  wrong --sessions "${m[@]}" -n 4x
  wrong --sessions "${m[@]}" -n -1
  wrong --kv "${m[@]}" --kv bounded
  wrong --kv "${m[@]}" --kv window=0
  wrong --kv "${m[@]}" --kv sinks=4
  wrong --kv "${m[@]}" --kv window=9,sinks=-1
  wrong --kv "${m[@]}" --kv window
  wrong --prompt-tokens "${m[@]}" --kv window=9,sinks=prompt
  wrong --kv-type "${m[@]}" --kv-type int4
  wrong --block "${m[@]}" --block 0
  wrong --rate "${m[@]}" --rate nan
  wrong --rate "${m[@]}" --rate -1
  wrong --rho0 "${m[@]}" --rho0 1.5
  wrong --frame "${m[@]}" --frame 0
  wrong --frame "${m[@]}" --frame 80msec
  wrong --cost "${m[@]}" --cost 20ms
  wrong --cost "${m[@]}" --cost a=20ms
  wrong --cost "${m[@]}" --cost a=20ms,b=1.5ms,c=3
  wrong --cost "${m[@]}" --target .9
  wrong --cost "${m[@]}" --deadline 1s
  wrong --target "${m[@]}" --cost a=1ms,b=1ms --target 0
  wrong --max-sessions "${m[@]}" --max-sessions 5
  wrong --shared-sinks "${m[@]}" --shared-sinks
  wrong --format "${m[@]}" --format xml
  wrong frames.ndjson "${m[@]}" frames.ndjson
  wrong layers -m synth:moshi-7b,layers=0 --pool 1GiB -n 4
  wrong --pool --pool 1GiB
  wrong --kv --kv unbounded frames.ndjson
  wrong second one two
  wrong --nonsense --nonsense
}

@test "mt-predict: a terminal holds no records" {
  run -2 --separate-stderr script -qec 'mt-predict' /dev/null
  [[ $output == *"nothing to predict from"* ]]
}

@test "mt-predict: a table on a terminal" {
  run -0 --separate-stderr script -qec 'mt-predict -m moshi-7b --pool 24GiB -n 30' /dev/null
  [[ $output =~ saturation\ +131.1\ s ]]
}

@test "mt-predict: a recorded collapse is found and was foretold at half of the way" {
  collapse stalled >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  [ -z "$stderr" ]
  [ "$(get type)" = fit ]
  [ "$(get sessions)" = 8 ]
  [ "$(get frames)" = 360 ]
  [ "$(get stalled)" = 40 ]
  [ "$(get pool_tokens)" = 16384 ]
  [ "$(get rate_tokens_s)" = 25 ]
  [ "$(get t_collapse_s)" = 82.25 ]
  [ "$(get to_s)" = 80.25 ]
  jq -e '.error_percent | fabs < 5' <<<"$output"
  jq -e '(.t_sat_at_s - 82.25 | fabs) < 2 and (.t_sat_at_s - .to_s - .t_sat_s | fabs) < 1e-5' <<<"$output"
  one=$output
  run -0 --separate-stderr mt-predict <frames.ndjson
  [ "$output" = "$one" ]
  run -0 --separate-stderr mt-predict - < <(shuf --random-source=frames.ndjson frames.ndjson)
  [ "$output" = "$one" ]
}

@test "mt-predict: empty frames on time are the wall too, and are called untruthful" {
  collapse ok >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  [ "$(get untruthful)" = 40 ]
  [ "$(get stalled)" = 0 ]
  [ "$(get t_collapse_s)" = 82.25 ]
  [[ $stderr == *untruthful* ]]
  run -0 --separate-stderr mt-predict -q frames.ndjson
  [ -z "$stderr" ]
}

@test "mt-predict: other lines are left out, broken ones are counted" {
  { collapse stalled; echo '{"type":"status","t":3}'; echo; echo 'no json'; printf '{"type":"fra'; } >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  [ "$(get broken)" = 2 ]
  [ "$(get frames)" = 360 ]
  [[ $stderr == *"2 broken lines"* ]]
}

@test "mt-predict: a pool that does not grow is never full" {
  for i in $(seq 20); do
    echo "{\"type\":\"frame\",\"session\":\"1\",\"status\":\"ok\",\"t\":$i,\"tokens_in\":5,\"tokens_out\":5,\"kv_tokens\":2052,\"pool\":0.41,\"sessions\":1}"
  done >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  [ "$(jq -r 'has("t_sat_s"), .t_sat_s' <<<"$output")" = $'true\nnull' ]
  [ "$(get rho)" = 0.41 ]
  [ "$(jq 'has("t_collapse_s")' <<<"$output")" = false ]
  run -0 --separate-stderr mt-predict --format table frames.ndjson
  [[ $output =~ saturation\ +never ]]
}

@test "mt-predict: no records is exit 1, too few are a warning" {
  run -1 --separate-stderr mt-predict </dev/null
  [[ $stderr == *"no frame records"* ]]
  [ -z "$output" ]
  echo '{"type":"frame","session":"1","status":"ok","t":1,"pool":0.5,"sessions":1}' >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  [ "$(get frames)" = 1 ]
  [ "$(jq 'has("t_sat_s")' <<<"$output")" = false ]
  [[ $stderr == *"no stretch"* ]]
}

@test "mt-predict: output that is lost is exit 1, a reader that leaves is not" {
  for f in json table; do
    run -1 --separate-stderr bash -c "mt-predict -m moshi-7b --pool 24GiB -n 30 --format $f >/dev/full"
    [[ $stderr == *"No space left"* ]]
    run -0 --separate-stderr bash -c "set -o pipefail; { sleep 0.2; mt-predict -m moshi-7b --pool 24GiB -n 30 --format $f; } | true"
    [ -z "$stderr" ]
  done
  run -1 --separate-stderr bash -c "mt-predict --help >/dev/full"
}

@test "mt-predict: every option of --help is in the manual and the completion" {
  run -0 --separate-stderr mt-predict --help
  opts=$(grep -o -- '--[a-z][a-z0-9-]*' <<<"$output" | sort -u)
  [ "$(wc -w <<<"$opts")" -ge 18 ]
  # shellcheck source=/dev/null
  source "$MT_TESTS/../completions/mt-predict"
  COMP_WORDS=(mt-predict -) COMP_CWORD=1 COMPREPLY=()
  _mt_predict
  for o in $opts; do
    [[ " ${COMPREPLY[*]} " == *" $o "* ]]
    [ "$o" = --usage ] || grep -q -- "Fl -${o#--}" "$MT_TESTS/../man/mt-predict.1"
  done
}
