#!/usr/bin/env bats
# gpu-check runs as on a machine with a card, but on the CPU and with tiny shapes: that its script works, its files are what the renderer
# takes, and a run that is cut short says so. Nothing is said of times.

load helper

CHECK=$MT_TESTS/card/gpu-check
FILES="attention.ndjson check.ndjson cliff.ndjson gemm.ndjson nstar.ndjson runs.ndjson step.ndjson tests.ndjson"

setup_file() {
  "$MT_TESTS/card/gpu-check" --tiny --only ceiling,shapes,attention,gemm,step,nstar,cliff,runs,sanitizer "$BATS_FILE_TMPDIR/out" 2>"$BATS_FILE_TMPDIR/log" ||
    { cat "$BATS_FILE_TMPDIR/log" "$BATS_FILE_TMPDIR"/out/{check,tests}.ndjson >&2; return 1; }
}

# A condition that must hold for the objects of one file.
holds() {
  jq -es "$2" "$BATS_FILE_TMPDIR/out/$1.ndjson" >/dev/null || { echo "$1: not so: $2"; head -c 4000 "$BATS_FILE_TMPDIR/out/$1.ndjson"; return 1; } >&2
}

@test "gpu-check: eight small files of whole lines, each phase with its verdict, in order" {
  [ "$(cd "$BATS_FILE_TMPDIR/out" && echo *)" = "$FILES" ]
  [ "$(du -sk "$BATS_FILE_TMPDIR/out" | cut -f 1)" -lt 4096 ]
  holds check '.[0].type == "check" and .[0].tiny and .[0].backend == "cpu" and (last | .type == "done" and .ok)
    and (map(select(.type == "phase")) | map(.phase) == ["ceiling", "shapes", "attention", "gemm", "step", "nstar", "cliff", "runs", "sanitizer"] and all(.[]; .ok))'
  holds check 'map(select(.skipped)) | map(.phase) == ["sanitizer"] and .[0].why == "there is no device to watch"'
  holds tests 'length == 1 and .[0].passed > 5 and .[0].failed == 0 and .[0].rc == 0'
}

@test "gpu-check: what was measured is there, and positive" {
  holds check 'map(select(.type == "copy")) | length == 1 and .[0].gb_s > 0'
  holds attention 'length == 2 and all(.[]; .type == "attention" and .us > 0 and .us_best <= .us and .us <= .us_worst and .gb_s > 0)'
  holds gemm 'length == 4 and (map(.type) | unique) == ["experts", "gemm"] and all(.[]; .us > 0 and .tflop_s > 0)'
  holds step 'map(select(.type == "open")) | length == 2'
  holds step 'map(select(.type == "step")) | length == 4 and all(.[]; .us > 0 and .kv_bytes_token > 0 and .context == 32)'
}

@test "gpu-check: a step of a model that speaks in codes has its depth transformer, and a frame the codec" {
  holds step 'map(select(.model == "moshi-7b-tiny" and .type == "step")) | length == 2 and all(.[]; .main_us > 0 and .depth_us > 0)'
  holds step 'map(select(.type == "frame")) | map(.model) == ["moshi-7b-tiny", "moshi-7b-tiny"] and all(.[]; .us > 0 and .hear_us > 0 and .main_us > 0 and .speak_us > 0)'
  holds step 'map(select(.model != "moshi-7b-tiny")) | all(.[]; has("depth_us") | not)'
}

@test "gpu-check: calls ran under the controller, without a bound and with one" {
  holds nstar 'any(.[]; .type == "cap" and .cap > 0) and any(.[]; .type == "frame" and .status == "ok") and all(.[]; .text == null)'
  # Four calls of twenty beats; a frame needs what is behind it, and the last ones may be cut off.
  holds cliff 'map(select(.type == "run")) | length == 1 and .[0].kv == "unbounded" and .[0].whole and .[0].frames <= 72 and .[0].stalled > 0 and .[0].first_stall_s > 1'
  holds runs 'map(select(.type == "run")) | map(.seed) == [1, 2, 3, 4, 5] and all(.[]; .whole and .frames > 0 and .frames <= 72 and .stalled == 0 and .refused == 0 and .kv == "window=64,sinks=4" and .max_ms >= .p50_ms)'
  # What the beats say adds up to what the run says.
  holds runs '(map(select(.type == "beat").frames) | add) == (map(select(.type == "run").frames) | add)'
}

@test "gpu-check: waits are left out of calls, and so is what there is no time for" {
  play=(gpu-measure --tiny play model=synth:qwen2.5-omni-7b-tiny pool=400b calls=2 frame=1 answer=2 "clip=$DATA/jfk.flac" run=unbounded:7)
  run -0 --separate-stderr "${play[@]}" seconds=600 limit=120
  jq -es 'last | .type == "run" and .whole and .seed == 7 and .frames > 600 and .frames <= 1196 and .took_s < .reached_s' <<<"$output" >/dev/null
  run -0 --separate-stderr "${play[@]}" run=unbounded:8 seconds=600 limit=0
  jq -es 'map(select(.type == "run")) | length == 1 and (.[0].whole | not) and .[0].reached_s < 600' <<<"$output" >/dev/null
  for wrong in "" "pool=400b" "fire=1" "calls=0" "pool=x" "run=window=0:1" "run=unbounded:x" "clip=/none"; do
    run ! --separate-stderr gpu-measure --tiny play model=synth:qwen2.5-omni-7b-tiny ${wrong:+"$wrong"}
    [ -n "$stderr" ]
  done
}

@test "gpu-check: the renderer takes its files, anywhere" {
  "$MT_TESTS/../tools/experiments/gpu" --files "$BATS_FILE_TMPDIR/out" --out "$PWD/page" >log 2>&1 || { cat log >&2; return 1; }
  cd page/gpu
  jq -es '(map(.measure) | unique) == ["attention", "cliff", "experts", "frame", "gemm", "nstar", "runs", "step", "suite"] and (map(select(.measure == "runs") | .seed) == [1, 2, 3, 4, 5])
    and all(.[] | select(.measure | IN("cliff", "nstar", "runs")); .frames > 0 and .max_ms >= .p50_ms)' live.ndjson >/dev/null
  [ "$(head -c 8 live.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
  grep -q "the figures mean nothing" live.txt
  grep -Eq '^unbounded +1 +4 +4 ' live.txt
  run ! grep -Eiw 'nan|inf|null' live.txt live.md
}

@test "gpu-check: the renderer takes what a cut run left, and refuses a folder without any" {
  mkdir part
  render() { "$MT_TESTS/../tools/experiments/gpu" --files "$PWD/part" --out "$PWD/page" >log 2>&1 || { cat log >&2; return 1; }; }
  : >part/check.ndjson # cut before the first line
  : >part/step.ndjson
  render
  grep -q "did not come to its end" page/gpu/live.txt
  [ -s page/gpu/live.png ]
  grep -v '"done"' "$BATS_FILE_TMPDIR/out/check.ndjson" >part/check.ndjson
  cp "$BATS_FILE_TMPDIR/out/attention.ndjson" part/
  # A run of calls that was killed in the middle of a line.
  head -n 12 "$BATS_FILE_TMPDIR/out/runs.ndjson" | head -c -20 >part/runs.ndjson
  render
  grep -q "1 broken line" page/gpu/live.txt
  grep -Eq '^window=64,sinks=4 +1 +4 +2 \(cut\)' page/gpu/live.txt
  grep -q "no run of calls was whole" <(tr -s ' \n' ' ' <page/gpu/live.md)
  run -1 --separate-stderr "$MT_TESTS/../tools/experiments/gpu" --files "$PWD/none" --out "$PWD/page"
  [[ $stderr == *"check.ndjson is not there"* ]]
  run -2 --separate-stderr "$MT_TESTS/../tools/experiments/gpu" --paper
}

# The files of a folder are whole lines of JSON, and the phases say so much.
valid() {
  local f
  for f in "$1"/*.ndjson; do jq -es 'all(.[]; type == "object")' "$f" >/dev/null || { echo "$f:"; tail -n 2 "$f"; return 1; } >&2; done
  jq -es "$2" "$1/check.ndjson" >/dev/null || { cat "$1/check.ndjson" >&2; return 1; }
}

@test "gpu-check: a run without time says what it left out; a phase that fails does not end it" {
  run -1 --separate-stderr "$CHECK" --tiny --limit 5 --only attention,gemm cut
  valid cut 'map(select(.type == "phase")) | length == 2 and all(.[]; .ok == false and .why == "no time was left")'
  valid cut 'last | .type == "done" and .ok == false'
  mkdir bin
  # shellcheck disable=SC2016  # for later
  printf '#!/bin/sh\n[ "$1" = --version ] || echo "mt-serve: \\"no\\" \\\\ caf\303\251" >&2\nexit 1\n' >bin/mt-serve
  chmod +x bin/mt-serve
  PATH=$PWD/bin:$PATH run -1 --separate-stderr "$CHECK" --tiny --only nstar,gemm bad
  valid bad 'map(select(.type == "phase")) | map([.phase, .ok]) == [["gemm", true], ["nstar", false]] and (.[1].why | contains("mt-serve:") and contains("no"))'
}

@test "gpu-check: a signal cuts it at once, and says so; what it started is gone, its files are whole" {
  "$CHECK" --tiny --only gemm,nstar,runs out 2>log &
  pid=$!
  wait_for() { for _ in {1..600}; do if grep -qs "$1" "$2"; then return 0; fi; sleep 0.1; done; cat log >&2; return 1; }
  wait_for '"type":"frame"' out/nstar.ndjson
  kids=$(pgrep -P "$pid" | tr '\n' ' ')
  [ -n "$kids" ]
  kill -TERM "$pid"
  wait "$pid" && rc=0 || rc=$?
  [ "$rc" = 143 ]
  valid out '.[-2] == (.[-2] + {type: "phase", phase: "nstar", ok: false, why: "cut by SIGTERM"}) and (.[-1] | .type == "done" and .ok == false)'
  gone() { for _ in {1..100}; do kill -0 "$@" 2>/dev/null || return 0; sleep 0.1; done; return 1; }
  # shellcheck disable=SC2086  # several numbers
  gone $kids
  # Killed without a word: what is there is valid all the same.
  TMPDIR=$PWD "$CHECK" --tiny --only gemm,runs,nstar dead 2>>log &
  pid=$!
  wait_for '"type":"frame"' dead/nstar.ndjson
  kids=$(pgrep -P "$pid" | tr '\n' ' ')
  kill -KILL "$pid"
  # shellcheck disable=SC2086  # several numbers
  kill $kids || true
  # shellcheck disable=SC2086
  gone $kids
  valid dead 'map(select(.type == "phase")) | map(.phase) == ["gemm"]'
}

@test "gpu-check: what a machine lacks is one line, and nothing is measured" {
  MT_CUDA_PLUGIN=/no/such/plugin.so run -1 --separate-stderr "$CHECK" --only attention,gemm bare
  [ -z "$output" ]
  [ "$(wc -l <<<"$stderr")" = 1 ]
  [[ $stderr == "gpu-check: "*"/no/such/plugin.so"* ]]
  valid bare 'map(.type) == ["check", "done"] and (last | .ok == false and (.why | contains("/no/such/plugin.so")))'
  # A plugin that wants a library which is nowhere: which one, and who has it.
  echo 'int mt_nothing;' >no.c
  "${CC:-cc}" -shared -o libcublasLt.so.99 no.c -Wl,-soname,libcublasLt.so.99
  "${CC:-cc}" -shared -o plugin.so no.c -Wl,--no-as-needed ./libcublasLt.so.99
  mkdir away
  mv libcublasLt.so.99 away/libcublasLt.so.98
  MT_CUDA_PLUGIN=$PWD/plugin.so run -1 --separate-stderr "$CHECK" --only gemm bare
  [ "$(wc -l <<<"$stderr")" = 1 ]
  [[ $stderr == "gpu-check: this machine lacks "*"libcublasLt.so.99, which a CUDA toolkit brings"* ]]
  # It is found where a toolkit left it; the plugin is none of ours, but for that it was loaded.
  mkdir -p toolkit/lib64
  mv away/libcublasLt.so.98 toolkit/lib64/libcublasLt.so.99
  CUDA_HOME=$PWD/toolkit MT_CUDA_PLUGIN=$PWD/plugin.so run -1 --separate-stderr "$CHECK" --only gemm bare
  [ "$(wc -l <<<"$stderr")" = 1 ]
  [[ $stderr == *"plugin.so: not metronome's plugin" ]]
}

@test "gpu-check: help is exit 0, a wrong call exit 2 with nothing on stdout" {
  run -0 "$CHECK" --help
  [[ $output == *--tiny* && $output == *--limit* ]]
  for wrong in "" "--nonsense x" "x y" "--limit" "--limit 0 x" "--limit 1h x" "--only fire x"; do
    # shellcheck disable=SC2086  # options and values
    run -2 --separate-stderr "$CHECK" $wrong
    [ -z "$output" ]
    [ -n "$stderr" ]
  done
  run -2 --separate-stderr gpu-measure
  run -2 --separate-stderr gpu-measure --tiny fire
  run -1 --separate-stderr gpu-measure --tiny step synth:nothing 1
}

# ---- the emulated card, as a plugin ----

emulated() {
  MT_CUDA_PLUGIN=$(dirname "$(readlink -f "$(command -v mt-serve)")")/emu/libmetronome-cuda.so
  export MT_CUDA_PLUGIN
  [ -e "$MT_CUDA_PLUGIN" ] || skip "built without the emulated card"
}

@test "emulated card: products and attention are measured there too" {
  emulated
  "$CHECK" --tiny --backend cuda --only attention,gemm emu 2>log || { cat log emu/check.ndjson >&2; return 1; }
  jq -es 'length == 2' emu/attention.ndjson >/dev/null
}

@test "emulated card: a call is answered as on the CPU, and the pool takes what is left" {
  emulated
  local opts=(-m "synth:qwen2.5-omni-7b-tiny,dtype=f32" --kv-type f32 --answer-tokens 4 --deadline 100s)
  mt-feed --seconds 2 --tokens "$DATA/jfk.flac" >wire
  mt-serve "${opts[@]}" <wire | jq -c 'select(.type == "frame") | [.status, .tokens]' >cpu
  mt-serve "${opts[@]}" --backend cuda:exact --pool auto <wire | jq -c 'select(.type == "frame") | [.status, .tokens]' >card
  [ "$(wc -l <cpu)" -ge 1 ]
  cmp cpu card
  mt-serve "${opts[@]}" --deterministic <wire 2>log | jq -c 'select(.type == "frame") | [.status, .tokens]' >cpu2
  cmp cpu cpu2
  [ ! -s log ]
  mt-serve "${opts[@]}" --backend cuda --deterministic <wire | jq -c 'select(.type == "frame") | [.status, .tokens]' >card
  cmp cpu card
  run -0 --separate-stderr mt-serve "${opts[@]}" --backend cuda --pool auto --dry-run
  jq -e '.backend == "cuda" and .pool_bytes > 0' <<<"$output" >/dev/null
  run -1 --separate-stderr mt-serve "${opts[@]}" --backend cuda --pool auto --gpu-memory 0.01 --max-sessions 65536 --dry-run
  [[ "$stderr" == "mt-serve: --pool: nothing is left: of "*" GiB at --gpu-memory 0.01"* ]]
  [ "$(wc -l <<<"$stderr")" = 1 ]
}
