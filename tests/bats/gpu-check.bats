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
  holds tests 'length == 1 and .[0].passed > 5 and .[0].failed == 0 and .[0].rc == 0'
}

@test "gpu-check: what was measured is there, and positive" {
  holds check 'map(select(.type == "copy")) | length == 1 and .[0].gb_s > 0'
  holds attention 'length == 2 and all(.[]; .type == "attention" and .us > 0 and .us_best <= .us and .us <= .us_worst and .gb_s > 0)'
  holds gemm 'length == 4 and (map(.type) | unique) == ["experts", "gemm"] and all(.[]; .us > 0 and .tflop_s > 0)'
  holds step 'map(select(.type == "open")) | length == 2'
  holds step 'map(select(.type == "step")) | length == 4 and all(.[]; .us > 0 and .kv_bytes_token > 0 and .context == 32)'
}

@test "gpu-check: calls ran under the controller, without a bound and with one" {
  holds nstar 'any(.[]; .type == "cap" and .cap > 0) and any(.[]; .type == "frame" and .status == "ok") and all(.[]; .text == null)'
  holds cliff 'map(select(.type == "case") | .case) == ["unbounded", "windowed"]'
  # shellcheck disable=SC2016  # they are jq's
  holds cliff '[foreach .[] as $r (""; if $r.type == "case" then $r.case else . end; [., $r])] | any(.[]; .[0] == "unbounded" and .[1].status == "stalled")
    and any(.[]; .[0] == "windowed" and .[1].status == "ok") and all(.[]; .[0] != "windowed" or .[1].status != "stalled")'
  holds runs 'map(select(.type == "frame" and .tokens_out > 0)) | length > 5'
}

@test "gpu-check: the renderer takes its files, anywhere" {
  "$MT_TESTS/../tools/experiments/gpu" --files "$BATS_FILE_TMPDIR/out" --out "$PWD/page" >log 2>&1 || { cat log >&2; return 1; }
  cd page/gpu
  jq -es '(map(.measure) | unique) == ["attention", "calls", "experts", "gemm", "step", "suite"] and (map(select(.measure == "calls") | .case) == ["nstar", "unbounded", "windowed", "steady"])
    and all(.[] | select(.measure == "calls"); .frames > 0 and .p95_ms >= .p50_ms)' live.ndjson >/dev/null
  [ "$(head -c 8 live.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
  grep -q "the figures mean nothing" live.txt
  run ! grep -Eiw 'nan|inf' live.txt live.md
}

@test "gpu-check: the renderer takes what a cut run left, and refuses a folder without any" {
  mkdir part
  cp "$BATS_FILE_TMPDIR/out/check.ndjson" part/
  "$MT_TESTS/../tools/experiments/gpu" --files "$PWD/part" --out "$PWD/page" >log 2>&1 || { cat log >&2; return 1; }
  [ -s page/gpu/live.png ]
  cp "$BATS_FILE_TMPDIR/out/attention.ndjson" part/
  "$MT_TESTS/../tools/experiments/gpu" --files "$PWD/part" --out "$PWD/page" >log 2>&1 || { cat log >&2; return 1; }
  run -1 --separate-stderr "$MT_TESTS/../tools/experiments/gpu" --files "$PWD/none" --out "$PWD/page"
  [[ $stderr == *"check.ndjson is not there"* ]]
  run -2 --separate-stderr "$MT_TESTS/../tools/experiments/gpu" --paper
}

@test "gpu-check: a run without time says what it left out; a phase that fails does not end it" {
  run -1 --separate-stderr "$CHECK" --tiny --limit 5 --only attention,gemm cut
  jq -es 'map(select(.type == "phase")) | length == 2 and all(.[]; .ok == false and .why == "no time was left")' cut/check.ndjson >/dev/null
  jq -es 'last | .type == "done" and .ok == false' cut/check.ndjson >/dev/null
  MT_CUDA_PLUGIN=/no/such/plugin.so run -1 --separate-stderr "$CHECK" --tiny --backend cuda --only attention,gemm bad
  jq -es 'map(select(.type == "phase")) | length == 2 and all(.[]; .ok == false and (.why | contains("/no/such/plugin.so")))' bad/check.ndjson >/dev/null
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
