#!/usr/bin/env bats
# The experiments run, small and in the simulator: exit codes, files and numbers. Nothing is said of times.

load helper

EXPERIMENTS=$MT_TESTS/../tools/experiments
NAMES="cliff runs admit predict capacity"

setup_file() {
  "$MT_TESTS/../tools/experiments/all" --paper --quick --runs 2 --seed 7 --out "$BATS_FILE_TMPDIR/out" >"$BATS_FILE_TMPDIR/log" 2>&1 ||
    { cat "$BATS_FILE_TMPDIR/log" >&2; return 1; }
}

# The results of one experiment for which a jq condition must hold.
holds() {
  jq -es "$2" "$BATS_FILE_TMPDIR/out/$1/paper.ndjson" >/dev/null || { echo "$1: not so: $2"; cat "$BATS_FILE_TMPDIR/out/$1/paper.ndjson"; return 1; } >&2
}

@test "experiments: each leaves table, results, picture, paragraph and what ran" {
  cd "$BATS_FILE_TMPDIR/out"
  for n in $NAMES; do
    [ -s "$n/paper.txt" ]
    [ -s "$n/paper.md" ]
    [ "$(head -c 8 "$n/paper.png" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
    jq -es 'length > 0 and all(.[]; type == "object")' "$n/paper.ndjson" >/dev/null
    jq -e --arg n "$n" '.experiment == $n and .mode == "paper" and .seed == 7 and (.commands | length) > 1 and (.version | startswith("mt-predict"))
      and .machine.processors > 0' "$n/paper.json" >/dev/null
    run ! grep -Eiw 'nan|inf' "$n/paper.txt" "$n/paper.md"
  done
}

@test "experiments: the figures are numbers, and hang together" {
  holds cliff 'group_by(.model) | length == 4 and all(.[]; length == 3 and .[0].stalled > 0 and (.[0].wall_s - .[0].foretold_s | fabs) <= 1.01 * .[0].frame_s
    and .[1].stalled == 0 and .[1].ok == .[1].frames and .[2].stalled == 0 and .[2].ok_but_empty == .[0].stalled)'
  holds runs 'map(select(.batch == "open")) | length == 12 and all(.[] | select(.summary); .collapse_p > 0 and .collapse_p < 1 and .low <= .high and .hits <= .runs)'
  holds runs 'map(select(.batch != "open")) | length == 16 and all(.[]; (.hit | type) == "boolean" and .demand > 0 and .fill_s > 0) and all(.[] | select(.kv != "unbounded"); .stalled == 0 and (.hit | not))
    and all(.[] | select(.kv == "unbounded"); .hit == (.demand > 1))'
  holds admit 'length == 6 and all(.[]; .cap_max >= 4 and .frames.ok > 0) and all(.[] | select(.case != "unbounded"); .frames.stalled == 0 and .cap_max <= .n_mem)
    and any(.[] | select(.case == "unbounded"); .frames.stalled > 0)'
  holds predict 'length == 8 and all(.[]; (.full_error | fabs) < 10 and (.half_error | type) == "number" and .t_collapse_s > 0)'
  holds capacity 'map(select(.calls)) | length == 12 and all(.[]; .p95_ms >= .p50_ms and .p50_ms > 0)'
  holds capacity 'map(select(.summary)) | length == 2 and all(.[]; .b_ms > 0 and .n_mem > 0 and .n_sustainable <= .n_mem and (.binding == "memory" or .binding == "latency"))'
}

@test "experiments: one page holds them all and needs no network" {
  page=$BATS_FILE_TMPDIR/out/index.html
  [ "$(grep -c '<img ' "$page")" = 5 ]
  [ "$(grep -c 'src="data:image/png;base64,' "$page")" = 5 ]
  run ! grep -Eo '(src|href)="?(https?:)?//[^"]*' "$page"
  for n in $NAMES; do grep -q "id=\"$n\"" "$page"; done
}

@test "experiments: a loop over models takes those that are named, and only known ones" {
  "$EXPERIMENTS/predict" --paper --quick --runs 1 --models moshi-7b,minicpm-o-4.5 --out "$PWD/two" >/dev/null 2>&1
  [ "$(jq -r .model two/predict/paper.ndjson | paste -sd ' ')" = "moshi-7b minicpm-o-4.5" ]
  for n in cliff runs predict; do
    run -2 --separate-stderr "$EXPERIMENTS/$n" --paper --models moshi-7b,gpt --out "$PWD/none"
    [[ $stderr == *"'gpt' is none of qwen2.5-omni-7b, qwen3-omni-30b, minicpm-o-4.5, moshi-7b"* ]]
    run -0 "$EXPERIMENTS/$n" --help
    [[ $output == *--models* ]]
  done
  run -2 "$EXPERIMENTS/admit" --models moshi-7b
  [ ! -e none ]
}

@test "experiments: the same seed gives the same results" {
  "$EXPERIMENTS/admit" --paper --quick --runs 2 --seed 7 --out "$PWD/again" >/dev/null 2>&1
  cmp again/admit/paper.ndjson "$BATS_FILE_TMPDIR/out/admit/paper.ndjson"
}

@test "experiments: two runs in one place at a time are refused" {
  mkdir -p one/admit
  exec {lock}>one/admit/.paper.lock
  flock "$lock"
  run -1 --separate-stderr "$EXPERIMENTS/admit" --paper --quick --runs 1 --out "$PWD/one"
  exec {lock}>&-
  [[ $stderr == *"another run is writing"* ]]
}

@test "experiments: help is exit 0, a wrong call exit 2 with nothing on stdout" {
  for n in $NAMES loop quality all; do
    run -0 "$EXPERIMENTS/$n" --help
    [[ $output == *--paper* && $output == *--seed* ]]
    for wrong in --nonsense "--seed" "--seed x" "--out a'b"; do
      # shellcheck disable=SC2086  # an option and its value
      run -2 --separate-stderr "$EXPERIMENTS/$n" $wrong
      [ -z "$output" ]
      [ -n "$stderr" ]
    done
  done
}

@test "experiments: quality runs live, and without real weights it claims nothing" {
  "$EXPERIMENTS/quality" --quick --runs 6 --model synth:qwen2.5-omni-tiny --text README.md --out "$PWD/q" >log 2>&1 || { cat log >&2; return 1; }
  cd q/quality
  [ -s live.txt ]
  [ "$(head -c 8 live.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
  jq -es '(map(.measure) | unique) == ["attention", "banned", "forced", "free", "fresh", "heard", "moved", "needle", "one", "rounded", "speech", "trade", "turns", "types"] and all(.claim == null)' live.ndjson >/dev/null
  jq -es 'map(select(.measure == "forced" and .window)) | length == 6 and all(.after.low <= .after.diff and .after.diff <= .after.high)' live.ndjson >/dev/null
  # What the window has lost does not come back; what is nearer, or among the sinks, does.
  jq -es 'map(select(.measure == "heard")) | map(select(.silent == 4 and .kv == "window=128,sinks=4")) + map(select(.silent == 4 and .asked == "first")) | map(.share) | .[0] < .[1]' live.ndjson >/dev/null
  grep -q "mean nothing" live.md
  run ! grep -Eiw 'nan|inf' live.txt live.md
  run -2 --separate-stderr "$EXPERIMENTS/quality" --paper
  run -2 --separate-stderr "$EXPERIMENTS/quality" --windows x
}
