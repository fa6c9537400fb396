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
  run -0 --separate-stderr mt-predict --pool 3072b --rate 12.5 -n 5 --rho0 1.2
  [ "$(jq .t_sat_s <<<"$output")" = 0 ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 3 --rho0 1
  [ "$(get t_sat_s)" = 0 ]
}

@test "mt-predict: a window never saturates, and says how many fit and what binds" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --kv window=1500,sinks=4 \
    --cost a=20ms,b=1.5ms
  [ "$(jq -r 'has("t_sat_s"), .t_sat_s' <<<"$output")" = $'true\nnull' ]
  [ "$(get session_blocks)" = 96 ]
  [ "$(get session_bytes)" = $((96 * 16 * 524288)) ]
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
  for k in 1:258:257 13:259:258 50:261:261; do
    IFS=: read -r step whole in_place <<<"$k"
    run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=4096,sinks=4 --step-tokens "$step"
    [ "$(get session_blocks)" = "$whole" ]
    run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=4096,sinks=4 --step-tokens "$step" --retire in-place
    [ "$(get session_blocks)" = "$in_place" ]
  done
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=1000,sinks=4
  [ "$(get n_mem)" = 47 ]
}

@test "mt-predict: the window it proposes fits, one token more does not" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --retire in-place
  w=$(get fit_window_tokens)
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --retire in-place --kv "window=$w,sinks=4"
  [ "$(get fits)" = true ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --retire in-place --kv "window=$((w + 1)),sinks=4"
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
  for t in f32:1048576 f16:524288 bf16:524288 int8:270336 fp8:270336; do
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
  wrong --rho0 "${m[@]}" --rho0 -0.1
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
  local r=(--rate 12.5 --pool 3072b)
  wrong --duration "${r[@]}" --arrivals 1
  wrong --arrivals "${r[@]}" --arrivals 1/day --duration 1
  wrong --arrivals "${r[@]}" --arrivals x --duration 1
  wrong --arrivals "${r[@]}" --arrivals -1 --duration 1
  wrong --arrivals "${r[@]}" --arrivals "$(printf '1%.0s' {1..70})" --duration 1
  wrong --risk "${r[@]}" --duration 1 --risk "$(printf '0%.0s' {1..70})1%"
  wrong --arrivals "${r[@]}" --arrivals 1 --duration 1 -n 3
  wrong ramp "${r[@]}" --arrivals ramp:1
  wrong ramp "${r[@]}" --arrivals ramp:1 -n 1 --duration 1
  wrong --duration "${r[@]}" -n 1 --duration weibull:3
  wrong --duration "${r[@]}" -n 1 --duration pareto:3,alpha=1
  wrong --cap "${r[@]}" -n 1 --cap 3
  wrong --horizon "${r[@]}" -n 1 --horizon 1h
  wrong --risk "${r[@]}" --duration 1 --risk 0
  wrong --risk "${r[@]}" --duration 1 --risk 100%
  wrong --risk "${r[@]}" --duration fixed:1 --risk 1%
  wrong --risk "${r[@]}" --duration 1 --risk 1% --kv window=9
  wrong --monte-carlo "${r[@]}" -n 1 --monte-carlo
  wrong --seed "${r[@]}" -n 1 --duration 1 --seed 3
  wrong --from "${r[@]}" -n 1 --duration 1 --monte-carlo --from here
  wrong --runs "${r[@]}" -n 1 --duration 1 --monte-carlo --runs 0
  wrong --precision "${r[@]}" -n 1 --duration 1 --monte-carlo --precision 1
  wrong --prompt-tokens "${r[@]}" -n 1 --duration 1 --prompt-tokens 3
  wrong --recompute "${r[@]}" -n 1 --recompute 1ms
  wrong --evict "${r[@]}" -n 1 --evict 3
  wrong --retried "${r[@]}" -n 1 --retried 1
  wrong --refused "${r[@]}" -n 1 --refused 1.1 --retried 1
  wrong --retire "${r[@]}" -n 1 --retire half
  wrong --live "${r[@]}" -n 1 --live
  wrong --fit --fit --live frames.ndjson
  wrong --batch --live --window 0.0005s --batch 0.0001s frames.ndjson
  wrong --window --live --window 30s frames.ndjson
  wrong --window --fit --window 70s frames.ndjson
  wrong --target --target .9 frames.ndjson
  wrong --frame --frame 80ms frames.ndjson
  wrong --deadline --live --deadline 80ms frames.ndjson
  wrong --memory -m moshi-7b -n 3 --memory 80GiB
  wrong --memory -m moshi-7b -n 3 --memory total=4GiB,weights=4GiB
  wrong --memory -m moshi-7b -n 3 --memory total=4GiB,use=2
  wrong --tower -m moshi-7b -n 3 --pool 1GiB --tower token=1
  wrong --tower "${r[@]}" -n 3 --tower token=1,rate=1
  wrong --mixed --mixed period=80ms
  wrong --mixed --mixed period=80ms,cost=10ms,piece=20ms
  wrong --mixed --mixed period=80ms,cost=10ms frames.ndjson
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
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
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
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ "$output" = "$one" ]
  run -0 --separate-stderr mt-predict - < <(shuf --random-source=frames.ndjson frames.ndjson)
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ "$output" = "$one" ]
}

@test "mt-predict: empty frames on time are the wall too, and are called untruthful" {
  collapse ok >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ "$(get untruthful)" = 40 ]
  [ "$(get stalled)" = 0 ]
  [ "$(get t_collapse_s)" = 82.25 ]
  [[ $stderr == *untruthful* ]]
  run -0 --separate-stderr mt-predict -q frames.ndjson
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ -z "$stderr" ]
}

@test "mt-predict: other lines are left out, broken ones are counted" {
  { collapse stalled; echo '{"type":"status","t":3}'; echo; echo 'no json'; printf '{"type":"fra'; } >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ "$(get broken)" = 2 ]
  [ "$(get frames)" = 360 ]
  [[ $stderr == *"2 broken lines"* ]]
}

@test "mt-predict: a pool that does not grow is never full" {
  for i in $(seq 20); do
    echo "{\"type\":\"frame\",\"session\":\"1\",\"status\":\"ok\",\"t\":$i,\"tokens_in\":5,\"tokens_out\":5,\"kv_tokens\":2052,\"pool\":0.41,\"sessions\":1}"
  done >frames.ndjson
  run -0 --separate-stderr mt-predict frames.ndjson
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
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
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  [ "$(get frames)" = 1 ]
  [ "$(jq 'has("t_sat_s")' <<<"$output")" = false ]
  [[ $stderr == *"no stretch"* ]]
}

# $1 is within $3 (default 0.0005, as a share) of $2.
near() {
  jq -ne --argjson got "$1" --argjson want "$2" --argjson part "${3:-0.0005}" \
    '($got - $want | fabs) <= ($want | fabs) * $part' || { echo "$1 is not near $2"; return 1; }
}

# Calls of one token a frame of 80 ms in a pool of so many tokens.
calls() {
  local pool=$1
  shift
  run -0 --separate-stderr mt-predict --rate 12.5 --block 1 --pool "${pool}b" "$@"
  [ -z "$stderr" ]
}

@test "mt-predict: a pool in blocks and a rate need no model" {
  run -0 --separate-stderr mt-predict --rate 12.5 --pool 3072b -n 30
  [ "$(get t_sat_s)" = 131.072 ]
  [ "$(get t_sat_locked_s)" = 130.64 ]
  [ "$(jq 'has("model"), has("token_bytes")' <<<"$output")" = $'false\nfalse' ]
  run -2 --separate-stderr mt-predict --rate 12.5 --pool 1GiB -n 30
  [[ $stderr == *"needs a model"* ]]
}

@test "mt-predict: the pool as what a device has left, and towers besides the model's own tokens" {
  run -0 --separate-stderr mt-predict -m moshi-7b --memory total=80GiB,use=0.9,weights=22GiB,other=4GiB -n 30
  [ "$(get pool_blocks)" = $((46 * 128)) ]
  # A thinker that hears, speaks half of the time, and a talker that then speaks, too: 1517 KiB a second.
  run -0 --separate-stderr mt-predict -m qwen3-omni-30b --pool 24GiB -n 32 --rate 12.5 \
    --tower token=96KiB,rate=4,share=0.5 --tower token=20KiB,rate=12.5,share=.5
  [ "$(get session_bytes_s)" = $((1517 * 1024)) ]
  near "$(get t_sat_towers_s)" 518.4 1e-4
}

@test "mt-predict: the latency of so many sessions" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 26 --cost a=20ms,b=1.5ms
  [ "$(jq -c '[.latency_ms, .latency_unaligned_ms]' <<<"$output")" = '[59,79]' ] ||
    [ "$(jq -c '[.latency_ms, .latency_unaligned_ms]' <<<"$output")" = '[59.0,79.0]' ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 54 --cost a=20ms,b=1.5ms
  [ "$(jq .latency_unaligned_ms <<<"$output")" = null ]
}

@test "mt-predict: whole blocks retired" {
  for w in 3000:16 1500:32 1000:47; do
    run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv "window=${w%:*},sinks=4" --retire whole
    [ "$(get n_mem)" = "${w#*:}" ]
  done
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=4096,sinks=4 --step-tokens 13 --retire whole
  [ "$(get session_blocks)" = 259 ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 29 --retire whole
  [ "$(get fit_window_tokens)" = 1648 ]
}

@test "mt-predict: a ramp, with and without a cap" {
  calls 49152 -n 4 --arrivals ramp:0.3125
  near "$(get t_sat_s)" 146.353 1e-5
  calls 49152 -n 4 --arrivals ramp:0.3125 --cap 30
  near "$(get t_sat_s)" 167.125 1e-5
  calls 49152 -n 30 --arrivals ramp:0
  [ "$(get t_sat_s)" = 131.072 ]
  run -2 --separate-stderr mt-predict --rate 12.5 --pool 3072b -n 40 --arrivals ramp:1 --cap 30
  [[ $stderr == *--cap* ]]
}

@test "mt-predict: what calls that come and go hold" {
  calls 225000 --arrivals 0.1 --duration exp:300s
  [ "$(get tokens_mean)" = 112500 ]
  near "$(get tokens_sd)" 29047.4 1e-5
  [ "$(get rho_mean)" = 0.5 ]
  one=$output
  calls 225000 --arrivals poisson:6/min --duration 5min
  [ "$output" = "$one" ]
  calls 225000 --arrivals 360/h --duration fixed:300
  [ "$(get tokens_mean)" = 56250 ]
  near "$(get tokens_sd)" 11858.5 1e-5
  calls 225000 --arrivals 0.1 --duration lognormal:300s,sigma=1
  near "$(get tokens_mean)" "$(jq -n '112500 / 2 * (1 | exp)')" 1e-6
  calls 225000 --arrivals 0.1 --duration pareto:300s,alpha=1.8
  [ "$(jq -r 'has("tokens_mean"), .tokens_mean' <<<"$output")" = $'true\nnull' ]
  calls 225000 --arrivals 0.1 --duration pareto:300s,alpha=1.8 --format table
  [[ $output =~ tokens\ +without\ bound ]]
}

@test "mt-predict: the risk of overrunning the pool" {
  calls 225000 --arrivals 0.1 --duration exp:300s
  [ "$(get pool_sessions)" = 60 ]
  near "$(get over_share)" 5.52e-4
  near "$(get over_chernoff)" 5.82e-3 1e-3
  near "$(get crossings_s)" 2.52247e-5 1e-6
  near "$(get hit_bound)" 0.0914
  calls 225000 --arrivals 0.1 --duration exp:300s --horizon 10min
  near "$(get hit_bound)" "$(jq -n '5.51968e-4 + 600 * 2.52247e-5')" 1e-5
  calls 160000 --arrivals 0.1 --duration exp:300s
  near "$(get over_share)" 0.0605
  calls 160000 --arrivals 0.1 --duration exp:300s --cap 32
  near "$(get over_share)" 0.01099
  near "$(get refused_share)" 0.0962663 1e-5
  calls 160000 --arrivals 0.1 --duration fixed:300s
  [ "$(jq 'has("over_share")' <<<"$output")" = false ]
}

@test "mt-predict: how many sessions a risk allows" {
  for row in 600:1%:1 300:1%:5 120:1%:20 120:0.001:17; do
    IFS=: read -r mean risk n <<<"$row"
    calls 49152 --duration "exp:${mean}s" --risk "$risk"
    [ "$(get risk_sessions)" = "$n" ]
    calls 49152 -n "$n" --duration "exp:${mean}s"
    jq -e --argjson r "${risk/1%/0.01}" '.over_share <= $r' <<<"$output"
    calls 49152 -n $((n + 1)) --duration "exp:${mean}s"
    jq -e --argjson r "${risk/1%/0.01}" '.over_share > $r' <<<"$output"
  done
  calls 225000 --duration exp:300s --risk 1%
  arrivals=$(get risk_arrivals_s)
  calls 225000 --duration exp:300s --arrivals "$arrivals"
  near "$(get over_share)" 0.01 1e-4
}

@test "mt-predict: the race of filling and leaving" {
  calls 49152 -n 30 --duration exp:357s
  [ "$(get fill_s)" = 131.072 ]
  [ "$(jq -c '[.cohort_overruns, .refill_overruns]' <<<"$output")" = '[true,true]' ]
  calls 49152 -n 30 --duration exp:356s
  [ "$(jq -c '[.cohort_overruns, .refill_overruns]' <<<"$output")" = '[false,true]' ]
  calls 49152 -n 30 --duration fixed:262s
  [ "$(jq -c '[.cohort_overruns, .refill_overruns]' <<<"$output")" = '[true,false]' ]
}

@test "mt-predict: Monte Carlo says the seed, the runs and an honest interval" {
  mc() {
    calls "$@" --monte-carlo --precision 0
    jq -e '.mc_hit_low <= .mc_hit and .mc_hit <= .mc_hit_high and .mc_hit == .mc_hits / .mc_runs
      or (.mc_hit * .mc_runs - .mc_hits | fabs) < 1' <<<"$output"
  }
  # Each within four standard errors of what three hundred thousand runs gave.
  mc 225000 --arrivals 0.1 --duration exp:300s --from steady --runs 4000
  jq -e '(.mc_hit - 0.0267 | fabs) < 0.0103' <<<"$output"
  mc 225000 --arrivals 0.1 --duration exp:300s --from 6000s --runs 1500
  jq -e '(.mc_hit - 0.0267 | fabs) < 0.0167' <<<"$output"
  mc 225000 --arrivals 0.1 --duration exp:300s --runs 4000 --seed 7
  jq -e '(.mc_hit - 0.0137 | fabs) < 0.0074 and .mc_seed == 7 and .mc_runs == 4000' <<<"$output"
  mc 160000 --arrivals 0.1 --duration exp:300s --cap 32 --runs 2000
  jq -e '(.mc_hit - 0.2245 | fabs) < 0.0374' <<<"$output"
  mc 112500 --arrivals 0.1 --duration fixed:300s --runs 4000
  jq -e '(.mc_hit - 0.0043 | fabs) < 0.0042' <<<"$output"
  one=$output
  mc 112500 --arrivals 0.1 --duration fixed:300s --runs 4000
  [ "$output" = "$one" ]
  # Calls of one length that start together outlast the filling, always at the same moment.
  mc 49152 -n 30 --duration fixed:140s --runs 10 --horizon 5min
  [ "$(get mc_hit)" = 1 ]
  [ "$(get mc_hit_s)" = 131.072 ]
  calls 160000 --arrivals 0.1 --duration exp:300s --cap 32 --monte-carlo
  jq -e '.mc_runs < 100000 and (.mc_hit_high - .mc_hit_low) / 2 <= 0.1001 * .mc_hit' <<<"$output"
}

@test "mt-predict: behind the wall" {
  local w=(-n 30 --cost 'a=20ms,b=1.5ms' --deadline 80ms)
  calls 49152 "${w[@]}" --recompute 0.2ms
  [ "$(get load)" = 0.8875 ]
  [ "$(get after_wall)" = limps ]
  calls 49152 "${w[@]}" --recompute 0.6ms --evict 1600 --duration exp:120s
  [ "$(get load_serve)" = 0.8125 ]
  [ "$(get load_recompute)" = 0.225 ]
  [ "$(get load)" = 1.0375 ]
  [ "$(get after_wall)" = collapses ]
  [ "$(get stall_frames)" = 12 ]
  near "$(get limp_sessions)" "$(jq -n '0.75 / (1.5 / 80 + 12.5 * 0.0006)')" 1e-6
  [ "$(get drain_s)" = 0 ] # thirty are fewer than the 32.8 with which as much leaves as comes
  calls 49152 "${w[@]}" --recompute 0.6ms --duration exp:600s
  near "$(get drain_s)" "$(jq -n '600 * (30 / 6.5536 | log)')" 1e-6
  calls 160000 --arrivals 0.1 --duration exp:300s --cap 32 --retried 50%
  near "$(get retry_factor)" "$(jq -n '1 / (1 - 0.0962663 / 2)')" 1e-6
  calls 160000 -n 3 --retried 1 --refused 0.2
  [ "$(get retry_factor)" = 1.25 ]
  calls 160000 -n 3 --retried 1 --refused 1
  [ "$(jq .retry_factor <<<"$output")" = null ]
}

@test "mt-predict: the figures that the manual gives for its examples" {
  run -0 --separate-stderr mt-predict --rate 12.5 --pool 14062b --arrivals 6/min --duration exp:300s --monte-carlo --from steady
  near "$(get hit_bound)" 0.091 0.005
  near "$(get mc_hit)" 0.027 0.15
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --duration exp:120s --risk 1%
  [ "$(get risk_sessions)" = 20 ]
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 30 --cost a=20ms,b=1.5ms --recompute 0.6ms
  [ "$(get after_wall)" = collapses ]
  near "$(get load_serve)" 0.81 0.01
  near "$(get load_recompute)" 0.23 0.03
}

@test "mt-predict: a window refuses, and never overruns" {
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --kv window=1500,sinks=4 \
    --arrivals 0.1 --duration exp:300s
  [ "$(get cap)" = 32 ]
  near "$(get refused_share)" 0.0962663 1e-5
  [ "$(jq 'has("over_share")' <<<"$output")" = false ]
}

@test "mt-predict: frames of several lengths on one device" {
  run -0 --separate-stderr mt-predict --mixed period=1s,cost=120ms --mixed period=80ms,cost=45ms
  [ "$(jq -c '[.feasible, .load, .piece_s, .blocker_period_s == 1]' <<<"$output")" = '[false,0.6825,0.035,true]' ]
  run -0 --separate-stderr mt-predict --mixed period=1s,cost=120ms,piece=30ms --mixed period=80ms,cost=45ms
  [ "$(get feasible)" = true ]
  run -0 --separate-stderr mt-predict --format table --mixed period=80ms,cost=45ms
  [[ $output =~ feasible\ +yes ]]
}

@test "mt-predict: the cost of a frame, from pairs and from records" {
  printf '2 28.0\n8 32.6\n16,45\n{"n":32,"x_ms":70.2}\nrubbish\n' >pairs
  run -0 --separate-stderr mt-predict --fit pairs --deadline 80ms
  near "$(get a_ms)" 22.955 1e-5
  near "$(get b_ms)" 1.4479 1e-4
  [ "$(get n_star)" = 28 ]
  [ "$(get broken)" = 1 ]
  [[ $stderr == *"1 broken lines"* ]]
  run -0 --separate-stderr mt-predict --fit --deadline 80ms --target .95 -q <pairs
  [ "$(get n_star)" = 36 ]
  [ -z "$stderr" ]
  awk 'BEGIN {
    for (k = 0; k < 200; k++)
      for (s = 0; s < 4 + int(k / 50) * 6; s++) {
        x = 20 + 1.5 * (4 + int(k / 50) * 6) - (s % 3)
        printf "{\"type\":\"frame\",\"session\":\"%d\",\"status\":\"ok\",\"t\":%.6f,", s, 0.08 * k + x / 1000
        printf "\"latency_ms\":%g,\"deadline_ms\":80,\"tokens_in\":1,\"tokens_out\":1}\n", x
      }
  }' >frames.ndjson
  run -0 --separate-stderr mt-predict --fit frames.ndjson --format table
  [[ $output =~ cost\ of\ a\ frame\ +20\ ms\ \+\ 1.5\ ms ]]
  head -300 frames.ndjson >few.ndjson
  run -1 --separate-stderr mt-predict --fit few.ndjson
  [[ $stderr == *"three different"* ]]
  [ -z "$output" ]
}

# A run as in collapse(), with frames of 0.4 s, 10 tokens each, 128 blocks for each of 8 sessions: full after 81.6 s.
long_run() {
  awk 'BEGIN {
    for (f = 1; f <= 210; f++)
      for (s = 0; s < 8; s++) {
        good = 10 * f <= 2048
        n = good ? 10 * f : 2040
        printf "{\"type\":\"frame\",\"session\":\"%d\",\"status\":\"%s\",\"t\":%.3f,\"latency_ms\":9,\"deadline_ms\":400,", \
          s, good ? "ok" : "stalled", 0.4 * f + 0.25
        printf "\"tokens_in\":10,\"tokens_out\":%d,\"kv_tokens\":%d,\"pool\":%.6f,\"sessions\":8,\"cap\":9}\n", \
          good, n, 8 * int((n + 15) / 16) / 1024
      }
  }'
}

@test "mt-predict: live, a line a batch, a whole last line, and how good it was" {
  long_run >run.ndjson
  run -0 --separate-stderr mt-predict --live <run.ndjson
  [ -z "$stderr" ]
  jq -e . <<<"$output" >/dev/null
  [ "$(jq -s '[.[] | select(.type == "live")] | length' <<<"$output")" = 9 ] # at 10, 20 … 80 s, and the last
  jq -se '.[5] | .batches == 6 and (.t + .t_sat_s - 82.25 | fabs) < 2 and .t_low_s <= .t_sat_s
    and .t_sat_s <= .t_high_s and .binding == "memory" and .rate_tokens_s == 25 and .cap == 9' <<<"$output"
  jq -se '.[4] | has("t_sat_s") | not' <<<"$output"
  jq -se '.[-2] | .last and .t_collapse_s == 82.25 and .unserved > 0' <<<"$output"
  jq -se '.[-1] | .type == "score" and .points == 1 and .mape < 0.1 and (.error_75 | fabs) == .mape and .late == 0' <<<"$output"
  run -0 --separate-stderr mt-predict run.ndjson
  output=$(tail -n 1 <<<"$output") # the fit of all records, behind a line a batch
  jq -e '.points == 1 and .mape < 0.1 and (.t_live_s < 1)' <<<"$output"
  run -0 --separate-stderr mt-predict --live --window 30s --batch 5s <run.ndjson
  [ "$(jq -s '[.[] | select(.type == "live")] | length' <<<"$output")" = 17 ]
  run -0 --separate-stderr mt-predict --live --format table run.ndjson
  [[ ${lines[0]} == *"full in"*"bound by"* ]]
  [[ ${lines[6]} =~ 60.*\ memory$ ]]
  # Without a collapse there is nothing to score.
  head -1200 run.ndjson >part.ndjson
  run -0 --separate-stderr mt-predict --live <part.ndjson
  jq -se '.[-1] | .last and .type == "live"' <<<"$output"
  run -1 --separate-stderr mt-predict --live </dev/null
  [[ $stderr == *"no frame records"* ]]
}

@test "mt-predict: live, on a server that runs into the wall" {
  [[ ${MT_SAN:-} != *thread* ]] || skip "under ThreadSanitizer the engine is too slow to reach the wall in time"
  serve -m synth:qwen2.5-omni-tiny --kv unbounded --pool 256b --frame 200ms
  mt-probe watch -s mt.sock 3>&- | mt-predict --live --window 1800ms --batch 300ms >live.ndjson 3>&- &
  SERVERS+=("$!")
  run mt-feed -s mt.sock -n 4 --seconds 8 --frame 200ms --loop --tolerate "$DATA/jfk.flac"
  stop
  within 20 grep -q '"score"' live.ndjson
  jq -se 'any(.[]; .batches == 6 and .t_sat_s > 0 and .binding == "memory")' live.ndjson
  jq -se 'any(.[]; .unserved > 0 and .t_sat_s == 0 and .binding == "memory")' live.ndjson
  jq -se '.[-2].last and .[-1].type == "score"' live.ndjson
}

@test "mt-predict: live, an interrupt leaves a whole last line" {
  long_run | head -201 >run.ndjson # up to the record that ends the first batch
  mkfifo pipe
  for signal in INT TERM; do
    mt-predict --live <pipe >out.ndjson 3>&- &
    pid=$!
    exec 5>pipe
    cat run.ndjson >&5
    printf '{"type":"frame","sess' >&5 # and half a record
    within 20 grep -q '"t":10' out.ndjson
    kill -s "$signal" "$pid"
    wait "$pid"
    exec 5>&-
    [ "$(tail -c 1 out.ndjson)" = "" ]
    jq -se '.[-1] | .last and .type == "live" and .t == 10.65' out.ndjson
  done
}

@test "mt-predict: output that is lost is exit 1, a reader that leaves is not" {
  for f in json table; do
    run -1 --separate-stderr bash -c "mt-predict -m moshi-7b --pool 24GiB -n 30 --format $f >/dev/full"
    [[ $stderr == *"No space left"* ]]
    run -0 --separate-stderr bash -c "set -o pipefail; { sleep 0.2; mt-predict -m moshi-7b --pool 24GiB -n 30 --format $f; } | true"
    [ -z "$stderr" ]
  done
  run -1 --separate-stderr bash -c "mt-predict --help >/dev/full"
  long_run >run.ndjson
  for f in json table; do
    run -1 --separate-stderr bash -c "mt-predict --live run.ndjson --format $f >/dev/full"
    [[ $stderr == "mt-predict: standard output: No space left"* ]]
    run -0 --separate-stderr bash -c "set -o pipefail; { sleep 0.2; mt-predict --live run.ndjson --format $f; } | true"
    [ -z "$stderr" ]
  done
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

@test "mt-predict: --quality, what a window costs beside what it holds" {
  cat >q <<'END'
{"type":"quality_run","metronome":1,"model":"qwen2","text":"book.txt","meaningful":true}
{"type":"quality","kv":"unbounded","kv_type":"f32","moved":0,"nll":3}
{"type":"quality","kv":"window=256,sinks=4","window":256,"sinks":4,"rope":"cache","kv_type":"bf16","moved":0,"diff":0.1,"after":{"diff":0.2,"low":0.1,"high":0.3}}
{"type":"quality","kv":"window=256,sinks=4","window":256,"sinks":4,"rope":"cache","kv_type":"bf16","moved":1000,"diff":0.1}
{"type":"quality","kv":"window=1024,sinks=0","window":1024,"sinks":0,"rope":"cache","kv_type":"int8","moved":0,"after":{"diff":0.01}}
{"type":"quality_choice","window":256}
END
  mt-predict -m qwen2.5-omni-7b --pool 40GiB --cost a=20ms,b=1ms --token-cost 1us --quality q >out
  jq -se 'map(.type) == ["trade", "trade"] and map(.kv) == ["window=256,sinks=4", "window=1024,sinks=0"]
    and (.[0] | .diff == 0.2 and .low == 0.1 and .high == 0.3 and .rope == "cache") and (.[1] | .diff == 0.01 and (has("low") | not) and (has("rope") | not))
    and .[0].n_star == (1580 / 1.26 | floor) and .[1].n_star == (1580 / 2.024 | floor)' out
  # The same numbers as for one setting alone.
  mt-predict -m qwen2.5-omni-7b --pool 40GiB --kv window=256,sinks=4 >one
  jq -se '.[0].n_mem == .[1].n_mem and .[0].session_bytes == .[1].session_bytes' <(head -n 1 out) one
  mt-predict -m qwen2.5-omni-7b --pool 40GiB --quality - <q | jq -se 'map(has("n_star")) == [false, false]'
  jq -se 'all(.quality_model == "qwen2" and .quality_text == "book.txt")' out
  # A line a setting, with both ceilings beside the price.
  mt-predict -m qwen2.5-omni-7b --pool 40GiB --cost a=20ms,b=1ms --token-cost 1us --quality q --format table >shown
  [ "$(wc -l <shown)" = 4 ]
  grep -q '^qwen2.5-omni-7b; costs .* on qwen2, book.txt$' shown
  grep -qE "^window=256,sinks=4 +cache +bf16 +0.2000 \[0.1000, 0.3000\] .* $(jq -r .n_mem out | head -n 1) +1253 +1253  latency$" shown
  grep -qE '^window=1024,sinks=0 +- +int8 +0.0100 \[\?\] ' shown
  mt-predict -m qwen2.5-omni-7b --pool 40GiB --quality q --format table | grep -qE '^window=256,.* -  +[0-9]+  memory$'
}

@test "mt-predict: --quality with what is none" {
  run -1 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --quality /nonexistent
  [[ "$stderr" == *"No such file"* ]]
  echo '{"type":"frame"}' >q
  run -1 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --quality q
  [[ "$stderr" == *"q: no setting of mt-probe quality"* ]]
  printf '%s\n' '{"type":"quality","window":4,"sinks":4,"kv_type":"f32"}' '{"type":"quality","window":4,"sinks":1,"kv_type":"f64"}' nonsense \
    '{"type":"quality","window":9,"sinks":4,"kv_type":"f32"}' >q
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --quality q
  [[ "$stderr" == *"3 broken lines"* ]]
  [ "${#lines[@]}" = 1 ]
  echo '{"type":"quality_run","meaningful":false,"remark":"random weights"}' >>q
  run -0 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --quality q
  [[ "$stderr" == *"mean nothing: random weights"* ]]
  for a in "--kv window=64" "--arrivals 1 --duration exp:1h" "--token-cost 1us" "q"; do
    # shellcheck disable=SC2086
    run -2 --separate-stderr mt-predict -m moshi-7b --pool 24GiB --quality q $a
    [ -z "$output" ]
  done
  run -2 --separate-stderr mt-predict --pool 512b --rate 4 --quality q
  [[ "$stderr" == *"-m MODEL"* ]]
  run -2 --separate-stderr mt-predict -m moshi-7b --pool 24GiB -n 1 --token-cost 1us --cost a=1ms,b=1ms
  [[ "$stderr" == *"--token-cost needs"* ]]
}
