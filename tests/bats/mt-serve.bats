#!/usr/bin/env bats
# mt-serve as a user meets it: options, one call through a pipe, a server on a socket. The wire is written by hand here,
# with printf, head and socat.

# shellcheck disable=SC2016,SC2030,SC2031,SC2154  # jq's own variables; each test is a subshell; what run sets
load helper

# A model and frames small enough to answer in milliseconds; a session's whole bound is a few blocks.
# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(-m synth:qwen2.5-omni-tiny,layers=1 --frame 200ms --answer-tokens 2 --kv window=128,sinks=4 --pool 4MiB)

# One call of N bytes of noise, always the same: call N [MEMBERS]
call() {
  printf '{"metronome":1,"type":"open"%s}\n' "${2:+,$2}"
  piece "$1"
  echo '{"type":"end"}'
}
piece() {
  printf '{"type":"audio","bytes":%d}\n' "$1"
  yes 'metronome' | head -c "$1"
}
control() {
  printf '{"metronome":1,"type":"%s"%s}\n' "$1" "${2:+,$2}"
}
# A server, for tests that speak to it.
up() {
  command -v socat >/dev/null || skip "no socat"
  serve "$@"
}
# A client: the wire in on stdin, out on stdout, until the server ends the connection.
dial() {
  socat -t 30 - UNIX-CONNECT:mt.sock
}
stat_of() {
  control stats | dial | jq -r ".$1"
}
stat_is() {
  [ "$(stat_of "$1")" = "$2" ]
}
# A client that stays as long as the test: its process is the last of CLIENTS, its lines are in NAME.
CLIENTS=()
stay() {
  local name=$1
  shift
  open_ended "$@" | socat - UNIX-CONNECT:mt.sock >"$name" 2>/dev/null 3>&- &
  keep "$!"
}
open_ended() {
  "$@"
  exec tail -f --pid=$$ /dev/null 3>&-
}
keep() {
  CLIENTS+=("$1")
  SERVERS+=("$1") # teardown ends them too
}
has() {
  grep -q "$1" "$2" 2>/dev/null
}

# ---- options ----

@test "mt-serve: --help and --version are data, on stdout" {
  run -0 --separate-stderr mt-serve --help
  [[ "$output" == *"--kv=POLICY"*"default window=2048,sinks=4"* ]]
  [ -z "$stderr" ]
  run -0 --separate-stderr mt-serve --version
  [[ "$output" == "mt-serve (metronome) "* ]]
}

@test "mt-serve: every option is in the man page and in the completion" {
  local root=$MT_TESTS/.. option n=0
  for option in $(mt-serve --help | grep -o -- '--[a-z][a-z-]*' | sort -u); do
    grep -q "Fl \\\\${option#-}" "$root/man/mt-serve.1" || { echo "man: $option"; return 1; }
    grep -q -- "$option" "$root/completions/mt-serve" || { echo "completion: $option"; return 1; }
    n=$((n + 1))
  done
  [ $n -gt 20 ]
}

@test "mt-serve: the completion completes" {
  run -0 bash -c 'source "$0"; COMP_WORDS=(mt-serve --kv-type i); COMP_CWORD=2; _mt_serve; echo "${COMPREPLY[*]}"
    COMP_WORDS=(mt-serve --dry); COMP_CWORD=1; _mt_serve; echo "${COMPREPLY[*]}"' "$MT_TESTS/../completions/mt-serve"
  [ "$output" = "int8"$'\n'"--dry-run" ]
}

@test "mt-serve: a wrong call is exit 2, names the option, and leaves stdout empty" {
  local bad
  for bad in --kv=rubbish --kv=window=0 --kv=window=4,sinks=4 --kv=window=16,sinks=99 --kv=window=-1 --rope=up --block=0 \
    --block=16x --pool=0 --pool=12Q --pool=-1 --pool=0b --pool=b --kv-type=q4 --frame=0 --frame=1x --deadline=0 --mode=chat \
    --answer-tokens=0 --step-tokens=1.5 --max-sessions=0 --idle-timeout=-1 --seed=-1 --threads=9999 --backend=tpu \
    --socket= --frame=37us --fault=fire --fault=slow --fault=slow=0 --fault=stop-compute=x --fault=drop-client=0 --fault= \
    --fault=slow=2; do
    run -2 --separate-stderr mt-serve --dry-run "$bad"
    [ -z "$output" ]
    [[ "$stderr" == "mt-serve: "*"${bad%%=*}"* ]] || { echo "$bad: $stderr"; return 1; }
  done
  for bad in "--gpu-memory 0 --pool auto" "--gpu-memory 1.1 --pool auto" "--gpu-memory 90% --pool auto" "--gpu-memory 0.5" \
    "--pool auto --gpu-memory 0.5 --pool 1GiB"; do
    # shellcheck disable=SC2086  # options and values
    run -2 --separate-stderr mt-serve --dry-run $bad
    [ -z "$output" ]
    [[ "$stderr" == "mt-serve: --gpu-memory: "* ]] || { echo "$bad: $stderr"; return 1; }
  done
  run -2 --separate-stderr mt-serve --dry-run --pool auto
  [[ "$stderr" == "mt-serve: --pool: 'auto' is for a card's memory; 'cpu-"*": give a size" ]]
  [ "${#stderr_lines[@]}" = 1 ]
  run -2 --separate-stderr mt-serve --dry-run --pool auto --backend cost:a=1ms,b=1ms
  [[ "$stderr" == "mt-serve: --pool: 'auto'"* ]]
  run -0 mt-serve --dry-run --pool auto --pool 200b # the last one counts
  [ "$(jq .pool_blocks <<<"$output")" = 200 ]
  run -2 --separate-stderr mt-serve --dry-run --nonsense
  run -2 --separate-stderr mt-serve --dry-run call.wav
  [[ "$stderr" == *call.wav*mt-feed* ]]
  run -2 --separate-stderr mt-serve --dry-run --frame=12345us
  run -2 --separate-stderr mt-serve --dry-run --frame=33ms
  [[ "$stderr" == *--frame:*multiple* ]]
  run -2 --separate-stderr mt-serve --dry-run -m synth:nothing
  [[ "$stderr" == *nothing* ]]
  run -1 --separate-stderr mt-serve --dry-run -m ./no/such/model
  [[ "$stderr" == *no/such/model* ]]
}

@test "mt-serve: a backend that can't be had is told in one line" {
  local here
  here=$(command -v mt-serve)
  cp "$here" "$BATS_TEST_TMPDIR/alone"
  run -2 --separate-stderr "$BATS_TEST_TMPDIR/alone" --dry-run --backend cuda
  [[ "$stderr" == "alone: --backend: 'cuda' is not in this build: no libmetronome-cuda.so in $BATS_TEST_TMPDIR/"* ]]
  MT_CUDA_PLUGIN=/no/such/plugin.so run -1 --separate-stderr mt-serve --dry-run --backend cuda
  [[ "$stderr" == "mt-serve: --backend cuda: /no/such/plugin.so: "* ]]
  [ "${#stderr_lines[@]}" = 1 ]
  MT_CUDA_PLUGIN=$(ldd "$here" | awk '/libjansson/ { print $3 }') run -1 --separate-stderr mt-serve --dry-run --backend cuda
  [[ "$stderr" == *"not metronome's plugin"* ]]
}

@test "mt-serve: --deterministic is said to a card, and the CPU takes it in silence" {
  run -0 --separate-stderr mt-serve --dry-run --deterministic
  [ -z "$stderr" ]
  run -0 --separate-stderr mt-serve --dry-run --deterministic --backend cost:a=1ms,b=1ms
  [ -z "$stderr" ]
  run -2 --separate-stderr mt-serve --dry-run --deterministic=yes
  run -2 --separate-stderr mt-serve --dry-run --deterministic --backend cuda2
  [[ "$stderr" == "mt-serve: --backend: 'cuda2' is not cpu, cpu:exact or cuda" ]]
  run -2 --separate-stderr mt-serve --dry-run --deterministic --backend "cuda:$(printf 'x%.0s' {1..300})"
  [[ "$stderr" == "mt-serve: --backend cuda: its options are longer than 256 bytes" ]]
}

@test "mt-serve: the CUDA plugin, where it is built, loads and says what is missing" {
  [ -e "$(dirname "$(readlink -f "$(command -v mt-serve)")")/libmetronome-cuda.so" ] || skip "built without CUDA=1"
  ! nvidia-smi -L 2>/dev/null || skip "there is a card"
  run -1 --separate-stderr mt-serve --dry-run --backend cuda
  [[ "$stderr" == "mt-serve: --backend cuda: no NVIDIA driver"* ]]
  [ "${#stderr_lines[@]}" = 1 ]
  run -2 --separate-stderr mt-serve --dry-run --backend cuda:fast
  [[ "$stderr" == *"'fast'"*exact* ]]
}

@test "mt-serve: without -s, and with a terminal as input, it says what to do" {
  command -v script >/dev/null || skip "no script"
  run -2 script -qec "mt-serve" /dev/null
  [[ "$output" == *terminal*mt-feed*-s\ SOCKET* ]]
}

@test "mt-serve --fault drop-client: a connection ends without a word, its session is gone, the others go on" {
  up "${QUICK[@]}" --fault drop-client=3
  head -c 64000 /dev/zero >silence.raw # ten frames, on the beat: nothing is on its way when the connection ends
  run -1 --separate-stderr mt-feed -q -s mt.sock --raw s16le:16000:1 silence.raw
  echo "$output" >one
  [ "$(grep -c '"status":"ok"' one)" = 2 ]
  run -1 grep -q closed one
  within 5 stat_is sessions 0
  call 12800 | dial >two # two frames, records 4 and 5
  [ "$(jq -r 'select(.type == "closed").reason' two)" = end ]
}

# ---- the plan ----

@test "mt-serve --dry-run: makes no weights, so that the largest model is planned on a small machine" {
  for m in qwen2.5-omni-3b:8069552128 qwen2.5-omni-7b:16510513152 qwen3-omni-30b:62361148160 minicpm-o-4.5:17034782720 \
    moshi-7b:15542496898; do
    run -0 --separate-stderr timeout 60 mt-serve --dry-run --step-tokens 64 -m "synth:${m%:*}"
    jq -e ".weight_bytes == ${m#*:} and .step_bytes > 1e6 and .n_mem > 0" <<<"$output"
  done
}

@test "mt-serve --dry-run: says what the server says" {
  for m in qwen2.5-omni-tiny qwen3-omni-30b-tiny minicpm-o-4.5-tiny moshi-7b-tiny; do
    for q in "" --quantize=q8_0; do
      mt-serve --dry-run -m synth:$m ${q:+"$q"} | jq . >plan
      serve -m synth:$m ${q:+"$q"}
      jq 'del(.socket)' ready.json | diff plan -
      stop
    done
  done
}

@test "mt-serve --dry-run: the ready line says what a session costs and how many fit" {
  run -0 --separate-stderr mt-serve --dry-run --pool 512b --kv window=256,sinks=4 --block 8 --kv-type f32
  [ "${#lines[@]}" = 1 ]
  jq -e '.metronome == 1 and .type == "ready" and .tool == "mt-serve" and .pool_blocks == 512 and .block == 8
    and .kv == "window=256,sinks=4" and .kv_type == "f32" and .rope == "cache" and .pool_bytes == 512 * .block_bytes
    and .bytes_session.kv == .blocks_session * .block_bytes and .bytes_session.audio > 0 and .bytes_session.state > 0
    and .n_mem >= 1 and .n_mem <= 512 and .frame_s > 0 and .deadline_ms == .frame_s * 1000' <<<"$output"
  run -0 --separate-stderr mt-serve --dry-run --kv unbounded --rope absolute --deadline 150ms --mode free
  jq -e '.kv == "unbounded" and .rope == "absolute" and .deadline_ms == 150 and .mode == "free"
    and .pool_bytes <= 2147483648 and .pool_bytes > 2147483648 - .block_bytes' <<<"$output"
}

@test "mt-serve: a pool for not one session fails with the arithmetic" {
  run -1 --separate-stderr mt-serve --dry-run --pool 3b
  [ -z "$output" ]
  [[ "$stderr" == *"not one session fits"*"3 blocks"* ]]
  run -1 --separate-stderr mt-serve --dry-run --pool 100
  [[ "$stderr" == *"--pool: not one block fits"* ]]
}

@test "mt-serve: a full disk behind stdout is exit 1 with a message" {
  run -1 bash -c 'mt-serve --dry-run >/dev/full'
  [[ "$output" == *"standard output: No space left"* ]]
  run -1 bash -c 'mt-serve -s mt.sock >/dev/full'
  [[ "$output" == *"standard output: No space left"* ]]
  [ ! -e mt.sock ]
  run -1 bash -c '"$@" >/dev/full' - mt-serve "${QUICK[@]}" < <(call 64000)
  [[ "$output" == *"standard output: No space left"* ]]
}

# ---- one call through a pipe ----

@test "mt-serve: one call through a pipe: each frame one record, all of it NDJSON" {
  run -0 --separate-stderr mt-serve "${QUICK[@]}" < <(call 24000 '"tokens":true,"unknown":{"a":[1]}')
  [ -z "$stderr" ]
  [ "$(jq -r .type <<<"$output" | paste -sd' ')" = "opened frame frame frame frame closed" ]
  jq -se '.[0].metronome == 1 and .[0].frame_samples == 3200 and .[0].rate == 16000 and .[0].text == ""
    and ([.[1:5][] | select(.status == "ok" or .status == "late")] | length) == 4
    and ([.[1:5][].frame] == [0,1,2,3])
    and all(.[1:5][]; .session == "1" and (.tokens | length) == .tokens_out and .tokens_out >= 1
      and ((.wait_ms + .encode_ms + .prefill_ms + .decode_ms - .latency_ms) | fabs) < 0.001)
    and .[5].reason == "end" and .[5].frames == 4 and .[5].text == ""' <<<"$output"
}

@test "mt-serve: the same call has the same answer, in one piece or in many" {
  call 24000 >one
  {
    printf '\n{"metronome":1,"type":"open"}\r\n'
    yes metronome | head -c 24000 >pcm
    for i in $(seq 0 7); do
      printf '{"type":"audio","bytes":1}\n'
      tail -c +$((3000 * i + 1)) pcm | head -c 1
      printf '{"type":"audio","bytes":2999}\n'
      tail -c +$((3000 * i + 2)) pcm | head -c 2999
    done
    echo '{"type":"end"}'
  } >many
  mt-serve "${QUICK[@]}" <one | jq -r 'select(.type == "frame") | .text' >a
  mt-serve "${QUICK[@]}" <many | jq -r 'select(.type == "frame") | .text' >b
  [ "$(wc -l <a)" -ge 4 ]
  cmp a b
}

@test "mt-serve: other rates and f32 come in too, and count in the client's samples" {
  run -0 --separate-stderr mt-serve "${QUICK[@]}" < <(
    printf '{"metronome":1,"type":"open","rate":44100,"format":"f32le"}\n{"type":"audio","bytes":141120}\n'
    head -c 141120 /dev/zero
    echo '{"type":"end"}'
  )
  jq -se '.[0].frame_samples == 8820 and .[0].lookahead_samples > 110 and .[-1].frames == 4' <<<"$output"
}

@test "mt-serve: what is not the wire is told in one line, with where the wire comes from" {
  local in
  for in in 'RIFF$...WAVEfmt ' '' 'hello' '[1]' $'\x00\x01' '{"type":"open"}
' '{"metronome":9,"type":"open"}
' '{"metronome":1,"type":"stats"}
'; do
    run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(printf '%s' "$in")
    [ "${#stderr_lines[@]}" = 1 ]
    [ "$(jq -r .type <<<"$output")" = error ]
  done
  run -1 --separate-stderr mt-serve "${QUICK[@]}" <"$DATA/jfk.flac"
  [[ "$stderr" == *"not the wire"*mt-feed* ]]
}

@test "mt-serve: a call that breaks off has what came answered, and is exit 1" {
  run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(call 14000 | head -n -1)
  [[ "$stderr" == *"without \"end\""* ]]
  [ "$(jq -r 'if .type == "closed" then .type + " " + .reason else .type end' <<<"$output" | paste -sd' ')" = \
    "opened frame frame error closed error" ]
  run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(call 14000 | head -c 10000)
  [[ "$stderr" == *"before the end of a payload"* ]]
}

@test "mt-serve: what can't be honoured is refused: window, prompt, sound that is no sound" {
  run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(call 100 '"window":4096')
  [[ "$stderr" == *window*128* ]]
  run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(call 100 '"prompt":7')
  [[ "$stderr" == *'"prompt"'* ]]
  run -1 --separate-stderr mt-serve "${QUICK[@]}" < <(
    printf '{"metronome":1,"type":"open","format":"f32le"}\n{"type":"audio","bytes":4}\n\xff\xff\xff\x7f'
  )
  [[ "$stderr" == *"sample 0 is nan"* ]]
}

@test "mt-serve: a reader that leaves is no cause for noise" {
  call 640000 >long
  run -0 --separate-stderr bash -c '"$@" <long | head -n 1; exit ${PIPESTATUS[0]}' - mt-serve "${QUICK[@]}"
  [ -z "$stderr" ]
  [ "${#lines[@]}" = 1 ]
}

@test "mt-serve: SIGTERM ends a call in a pipe in order" {
  mkfifo in
  exec 4<>in
  mt-serve "${QUICK[@]}" <in >out 2>err 4>&- 3>&- &
  keep "$!"
  call 14000 | head -n -1 >&4
  within 20 has '"frame":1' out
  kill -TERM "${CLIENTS[-1]}"
  wait "${CLIENTS[-1]}"
  exec 4>&-
  [ "$(tail -n 1 out | jq -r '.type + " " + .reason')" = "closed shutdown" ]
  [ ! -s err ]
}

# ---- a server ----

@test "mt-serve -s: a call over the socket, and the socket's life" {
  up "${QUICK[@]}"
  [ "$(stat -c %a mt.sock)" = 600 ]
  [ "$(jq -r '.type + " " + .socket' ready.json)" = "ready mt.sock" ]
  call 24000 | dial >out
  [ "$(jq -r .type out | paste -sd' ')" = "opened frame frame frame frame closed" ]
  [ "$(jq -r 'select(.type == "closed").reason' out)" = end ]
  call 24000 | mt-serve "${QUICK[@]}" | jq -r .text >pipe
  jq -r .text out | cmp - pipe
  kill -HUP "$server"
  stat_is sessions 0
  stop
  [ ! -e mt.sock ]
  [ ! -s serve.err ]
}

@test "mt-serve -s: stats, cap, drain, watch" {
  up "${QUICK[@]}"
  stay watched control watch '"period_ms":20'
  call 14000 | dial >/dev/null
  within 10 eval '[ "$(grep -c "\"status\":\"" watched)" -ge 3 ]'
  within 10 eval '[ "$(grep -c "\"type\":\"status\"" watched)" -ge 3 ]'
  head -n 1 watched | jq -e '.metronome == 1 and .type == "status" and .cap == 256'
  jq -se '[.[] | select(.type == "status")] | length >= 2 and all(.[]; .t > 0 and .pending >= 0 and .oldest_ms >= 0)' \
    <(head -n -1 watched)
  { control stats; control cap '"cap":0'; } | dial | jq -se '.[0].type == "stats" and .[0].frames.ok + .[0].frames.late == 3
    and .[0].latency.count == 3 and .[0].latency.p50_ms <= .[0].latency.max_ms and .[1] == {type: "cap", cap: 0}'
  call 100 | dial | jq -e '.type == "refused" and .reason == "limit" and .retry_s > 0'
  control cap '"cap":9' | dial | jq -e '.metronome == 1 and .cap == 9'
  control drain | dial | jq -e '.type == "drain"'
  call 100 | dial | jq -e '.reason == "drain"'
  [ "$(stat_of draining)" = true ]
}

@test "mt-serve -s: wrong words get one error line, and the others go on" {
  up "${QUICK[@]}"
  local text
  for text in 'GET / HTTP/1.1' '{"metronome":1,"type":"sing"}' '{"metronome":1,"type":"save"}' '{"metronome":1}' \
    '{"metronome":1,"type":"cap"}' '{"metronome":1,"type":"open","rate":-3}' $'{"metronome":1,"type":"\xff"}' \
    '{"metronome":1,"type":"open"' "{\"metronome\":1,\"type\":\"x\",\"a\":$(printf '[%.0s' {1..5000})"; do
    printf '%s\n' "$text" | dial >out
    [ "$(wc -l <out)" = 1 ]
    jq -e '.metronome == 1 and .type == "error" and (.error | length) > 5 and (.error | test("\n") | not)' out
  done
  stat_is sessions 0
}

@test "mt-serve -s: a gigabyte without a newline is cut off, and costs nothing" {
  up "${QUICK[@]}"
  stat_is sessions 0
  local before
  before=$(awk '/VmHWM/ { print $2 }' "/proc/$server/status")
  { printf '{"a":"'; head -c 1G /dev/zero | tr '\0' x; } 2>/dev/null | dial >out 2>/dev/null || true
  [ "$(wc -l <out)" = 1 ]
  [[ "$(jq -r .error out)" == *"longer than 65536 bytes"* ]]
  [ $(($(awk '/VmHWM/ { print $2 }' "/proc/$server/status") - before)) -lt 4096 ]
  stat_is sessions 0
}

# Hundredths of a second of CPU time that the server took.
ticks() {
  sed 's/.*) //' "/proc/$server/stat" | awk '{ print $12 + $13 }'
}
spoken() {
  printf '{"metronome":1,"type":"open"}\n'
  piece "$1"
}

# A thread that waits by spinning would take two hundred of them; a call between two frames is the rule, not the exception.
@test "mt-serve -s: no core burns between frames" {
  up "${QUICK[@]}" --threads 4
  stay one spoken 12800 # two frames, and more to come
  within 10 stat_is 'frames.ok + .frames.late' 1
  local before
  sleep 0.5
  before=$(ticks)
  sleep 2
  stat_is sessions 1
  [ $(($(ticks) - before)) -lt 30 ]
}

@test "mt-serve -s: who doesn't read holds up nobody" {
  up "${QUICK[@]}"
  open_ended call 24000 | socat -u - UNIX-CONNECT:mt.sock 3>&- &
  keep "$!"
  open_ended control watch '"period_ms":10' | socat -u - UNIX-CONNECT:mt.sock 3>&- &
  keep "$!"
  call 24000 | dial | tail -n 1 | jq -e '.type == "closed" and .frames == 4'
}

@test "mt-serve -s: a limit on open files that --max-sessions can't be kept with is said" {
  ulimit -n 100
  serve --max-sessions 90
  [[ "$(<serve.err)" == *"ulimit -n"*"--max-sessions 90"* ]]
  call 100 | dial | jq -se '.[0].type == "opened"'
}

@test "mt-serve -s: a session that doesn't fit is refused, and admitted when another has left" {
  local n
  n=$(mt-serve --dry-run "${QUICK[@]}" | jq .blocks_session)
  up "${QUICK[@]}" --pool "$((n + 1))b"
  stay first printf '{"metronome":1,"type":"open"}\n'
  within 10 has opened first
  call 100 | dial | jq -e '.type == "refused" and .reason == "memory"'
  kill -9 "${CLIENTS[0]}"
  within 10 stat_is sessions 0
  [ "$(stat_of blocks_used)" = 0 ]
  call 100 | dial | tail -n 1 | jq -e '.reason == "end"'
}

@test "mt-serve -s: forty clients killed at once leave nothing behind" {
  up "${QUICK[@]}" --pool 64MiB
  stat_is sessions 0
  local i
  for i in $(seq 40); do
    stay "client$i" cat <(printf '{"metronome":1,"type":"open"}\n') <(piece 6500)
  done
  within 30 stat_is sessions 40
  kill -9 "${CLIENTS[@]}"
  within 10 stat_is sessions 0
  [ "$(stat_of blocks_used)" = 0 ]
  [ "$(stat_of pending)" = 0 ]
  call 24000 | dial | tail -n 1 | jq -e '.reason == "end" and .frames == 4'
}

@test "mt-serve -s: who says nothing for too long is closed" {
  up "${QUICK[@]}" --idle-timeout 100ms
  stay idle printf '{"metronome":1,"type":"open"}\n'
  within 10 has '"reason":"idle"' idle
}

@test "mt-serve -s: SIGTERM: frames in hand are answered, then closed, exit 0" {
  up "${QUICK[@]}"
  stay open cat <(printf '{"metronome":1,"type":"open"}\n') <(piece 14000)
  within 10 has opened open
  stop
  within 10 has closed open
  [ "$(jq -r .type open | paste -sd' ')" = "opened frame frame closed" ]
  [ "$(tail -n 1 open | jq -r .reason)" = shutdown ]
}

@test "mt-serve -s: the second signal ends it now" {
  up -m synth:qwen2.5-omni-tiny --frame 200ms --mode free --answer-tokens 60000 --kv unbounded
  stay long cat <(printf '{"metronome":1,"type":"open"}\n') <(piece 14000)
  within 10 has opened long
  within 10 stat_is pending 2
  kill -INT "$server"
  within 10 [ ! -e mt.sock ]
  kill -0 "$server"
  kill -TERM "$server"
  local rc=0
  wait "$server" || rc=$?
  [ $rc = 143 ]
}

# ---- the path ----

@test "mt-serve -s: a live server's socket is left alone, a dead one's is replaced" {
  up "${QUICK[@]}"
  run -1 --separate-stderr mt-serve "${QUICK[@]}" -s mt.sock
  [ -z "$output" ]
  [[ "$stderr" == *mt.sock*"another server"* ]]
  stat_is sessions 0
  kill -9 "$server"
  wait "$server" || true
  [ -S mt.sock ]
  up "${QUICK[@]}"
  stat_is sessions 0
}

@test "mt-serve -s: no file is ever deleted for a socket, and a path has its limit" {
  echo precious >file
  mkdir dir
  run -1 --separate-stderr mt-serve "${QUICK[@]}" -s file
  [[ "$stderr" == *"not a socket"* ]]
  [ "$(cat file)" = precious ]
  run -1 mt-serve "${QUICK[@]}" -s dir
  run -1 --separate-stderr mt-serve "${QUICK[@]}" -s no/such/dir/s
  [[ "$stderr" == *no/such/dir* ]]
  run -2 --separate-stderr mt-serve "${QUICK[@]}" -s "$(printf 'x%.0s' {1..120})"
  [[ "$stderr" == *"at most 107 bytes"* ]]
}

@test "mt-serve: a client that expects another frame length is told so" {
  run -1 --separate-stderr bash -c 'printf "{\"metronome\":1,\"type\":\"open\",\"frame_ms\":500}\n" | mt-serve'
  [[ $output == *"frame_ms: this server's frames have 2000 ms, not 500"* ]]
  printf '{"metronome":1,"type":"open","frame_ms":2000}\n{"type":"end"}\n' | mt-serve >out
  jq -se '.[0].type == "opened" and .[1].reason == "end"' out
}
