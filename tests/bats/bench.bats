#!/usr/bin/env bats
# tests/bench/compare: what is wrong with a call in one line, and the ratios of programs whose figures are known.

# shellcheck disable=SC2154 # what run sets
load helper

COMPARE=$MT_TESTS/bench/compare

# A program in DIR that answers every call with the lines on its stdin: fake DIR NAME
fake() {
  mkdir -p "$1"
  { echo "#!/bin/sh"; echo "cat <<'EOF'"; cat; echo EOF; } >"$1/$2"
  chmod +x "$1/$2"
}
rival() {
  fake rival llama-bench <<<'[{"n_gen": 0, "avg_ts": 200.0}, {"n_gen": 24, "avg_ts": 25.0}]'
  cat >rival/llama-batched-bench <<'EOF'
#!/bin/sh
echo '|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |' >&2
case $* in
*"-npp 50"*)
  echo '|    50 |     25 |    1 |     75 |    0.200 |   250.00 |    0.600 |    41.67 |    0.800 |    93.75 |'
  echo '|    50 |     25 |    2 |    150 |    0.400 |   250.00 |    0.800 |    62.50 |    1.200 |   125.00 |'
  echo '|    50 |     25 |    4 |    300 |    0.800 |   250.00 |    1.200 |    83.33 |    2.000 |   150.00 |' ;;
*)
  echo '|   128 |     24 |    1 |    152 |    0.512 |   250.00 |    1.200 |    20.00 |    1.712 |    88.79 |'
  echo '|   128 |     24 |    8 |   1216 |    4.096 |   250.00 |    1.920 |   100.00 |    6.016 |   202.13 |' ;;
esac
EOF
  chmod +x rival/llama-batched-bench
  fake . ours <<'EOF'
{"bench": "open", "seconds": 1}
{"bench": "prefill", "sessions": 1, "tok_per_s": 1000}
{"bench": "decode", "sessions": 1, "tok_per_s": 50}
{"bench": "decode", "sessions": 2, "tok_per_s": 90}
{"bench": "decode", "sessions": 8, "tok_per_s": 400}
{"bench": "beat", "sessions": 1, "seconds": 0.1}
{"bench": "beat", "sessions": 16, "seconds": 1.1}
{"bench": "beat", "sessions": 32, "seconds": 2.1}
EOF
  : >model.gguf
}

@test "compare: a wrong call is one line and exit 2" {
  local want
  rival
  while IFS='|' read -r want args; do
    # shellcheck disable=SC2086 # words
    run -2 --separate-stderr env -u MT_WEIGHTS $args
    [ -z "$output" ] && [ "$(wc -l <<<"$stderr")" = 1 ]
    [[ "$stderr" == compare:*$want* ]]
  done <<EOF
usage|$COMPARE
usage|$COMPARE --help
no such folder|$COMPARE nowhere
llama-bench: no such program|$COMPARE .
no such file|$COMPARE rival nowhere.gguf
MT_WEIGHTS|$COMPARE rival
THREADS|THREADS=0 $COMPARE rival model.gguf
ROUNDS|ROUNDS=some $COMPARE rival model.gguf
not built|BENCH_PROGRAM=nowhere $COMPARE rival model.gguf
EOF
}

@test "compare: ratios, and sessions on the beat by its formula" {
  rival
  ROUNDS=3 THREADS=2 BENCH_PROGRAM=ours OUT=lines run -0 --separate-stderr "$COMPARE" rival model.gguf
  [ "$(jq -s -c 'map({(.what): [.ours, .theirs, .ratio]}) | add' lines)" = \
    '{"beat":[24,3,8],"decode-1":[50,25,2],"decode-8":[400,100,4],"prefill":[1000,250,4]}' ]
  [[ "$output" == *"decode-8"*400.0*100.0*4.00* ]]
}

@test "compare: a rival that fails, or that says something else, is named" {
  rival
  printf '#!/bin/sh\necho some >&2\necho out of cores >&2\nexit 3\n' >rival/llama-batched-bench
  ROUNDS=1 BENCH_PROGRAM=ours run -2 --separate-stderr "$COMPARE" rival model.gguf
  [[ "$(tail -n 1 <<<"$stderr")" == *"llama-batched-bench failed: out of cores" ]]
  printf '#!/bin/sh\necho fine\n' >rival/llama-batched-bench
  ROUNDS=1 BENCH_PROGRAM=ours run -2 --separate-stderr "$COMPARE" rival model.gguf
  [[ "$(tail -n 1 <<<"$stderr")" == *"was not understood" ]]
}
