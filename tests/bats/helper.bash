# What the bats files share: `load helper`. Every test runs in a folder of its own; servers it starts end with it.
# shellcheck shell=bash disable=SC2034  # the variables set here are read by the tests
bats_require_minimum_version 1.5.0

: "${MT_TESTS:?run the tests by make check, or set MT_TESTS to the tests folder and PATH to the build}"
DATA=$MT_TESTS/data
# Most tests ask for time and order, not for words: random weights, whose answers have the length they are asked for.
export MT_MODEL=synth:qwen2.5-omni-tiny
SERVERS=()

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
  local pid
  for pid in "${SERVERS[@]}"; do
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

# Wait until a command succeeds: within SECONDS CMD…
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "not within the time: $*" >&2; return 1; }
    sleep 0.02
  done
}

# Start `mt-serve -s mt.sock ARGS…` and wait until it is ready. $server is its pid, ready.json its stdout, serve.err its stderr.
# The sanitizers make the start slow, hence the long wait.
serve() {
  rm -f ready.json
  mt-serve -s mt.sock "$@" >ready.json 2>serve.err 3>&- &
  server=$!
  SERVERS+=("$server")
  within 60 ready_or_gone
  grep -q '"ready"' ready.json || { cat serve.err >&2; return 1; }
}
ready_or_gone() {
  grep -q '"ready"' ready.json 2>/dev/null || ! kill -0 "$server" 2>/dev/null
}

# SIGTERM the server; its exit status is stop's.
stop() {
  kill -TERM "$server"
  wait "$server"
}
