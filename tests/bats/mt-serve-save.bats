#!/usr/bin/env bats
# Saved calls: mt-serve --save-dir, mt-probe save, mt-feed --load, as a user meets them.

# shellcheck disable=SC2030,SC2031,SC2154,SC2317  # each test is a subshell; run and serve set variables; within calls
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--frame 200ms --deadline 100s --answer-tokens 3 --kv window=40,sinks=4 --pool 4MiB)
RATE=16000

# 4 s of sound that is not silence.
sound() {
  [ -e call.raw ] || openssl enc -aes-128-ctr -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c 128000 >call.raw
  [ -s call.raw ] || seq 1 40000 | head -c 128000 >call.raw
}
# The whole call, undisturbed, its records in order.
whole() {
  sound
  mt-feed -q --no-pace --tokens -s mt.sock --rate "$RATE" --raw s16le:"$RATE":1 call.raw | answers >whole
  [ "$(wc -l <whole)" -ge "${1:-20}" ]
}
answers() {
  jq -c 'select(.type == "frame") | [.frame, .status, .text, .tokens, .tokens_in, .kv_tokens]'
}
# A call that has sent so many bytes of the sound and waits; its records go to part.
half() {
  rm -f part to
  mkfifo to
  socat -t 100 - UNIX-CONNECT:mt.sock <to >part 3>&- &
  SERVERS+=("$!")
  exec {caller}>to
  printf '{"metronome":1,"type":"open","rate":%d,"tokens":true,"seed":1}\n{"type":"audio","bytes":%d}\n' "$RATE" "$1" >&"$caller"
  head -c "$1" call.raw >&"$caller"
  within 20 heard "$2"
}
heard() {
  [ "$(grep -c '"type":"frame"' part)" -ge "$1" ]
}
goes_on() {
  mt-feed -q --no-pace --tokens -s mt.sock --load "$1" --rate "$RATE" --raw s16le:"$RATE":1 call.raw >rest
  answers <rest >again
  [ -s again ]
  diff <(tail -n "$(wc -l <again)" whole) again
}

@test "save: a call goes on bit for bit after kill -9, on other threads, pool and block table" {
  serve "${QUICK[@]}" --save-dir . --threads 1
  whole
  half 41001 5
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" one >saved
  jq -e '.type == "save" and .name == "one" and .samples == 20500 and .frame >= 5' saved
  [ "$(stat -c '%a %s' one.call)" = "600 $(jq .size saved)" ]
  kill -9 "$server"
  serve "${QUICK[@]}" --save-dir . --threads 3 --pool 3MiB --step-tokens 40
  goes_on one
  jq -se '.[] | select(.type == "opened") | .samples == 20500' rest
  [ "$(head -n1 again | jq '.[0]')" = "$(jq .frame saved)" ]
  # Again, as often as anybody likes; and the one that was saved went on, too.
  goes_on one
}

@test "save: a call that goes on is not disturbed by it" {
  serve "${QUICK[@]}" --save-dir .
  whole
  for i in 1 2 3; do
    half $((i * 30000)) 1
    mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" "n$i"
    goes_on "n$i"
  done
}

# The call, when the server has heard so many samples of it.
saves_all() {
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" "$1" >saved
  jq -e --argjson n "$2" '.samples == $n' saved
}

@test "save: a call whose rate is converted goes on bit for bit, too" {
  serve "${QUICK[@]}" --save-dir .
  for RATE in 8000 48000; do
    whole 6
    for bytes in 24001 50000 $((RATE * 2)); do
      half "$bytes" 1
      within 20 saves_all "r$RATE.$bytes" "$((bytes / 2))"
      goes_on "r$RATE.$bytes"
      [ "$(head -n1 again | jq '.[0]')" = "$(jq .frame saved)" ]
    done
  done
}

@test "save: a smaller window is asked for, or refused with both numbers" {
  serve "${QUICK[@]}" --save-dir .
  sound
  half 41000 5
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
  stop
  serve "${QUICK[@]}" --save-dir . --kv window=30,sinks=4
  run -1 --separate-stderr mt-feed -q --no-pace -s mt.sock --load x --raw s16le:16000:1 call.raw
  [[ "$stderr" == *"window of 40 tokens, this server's is 30"* ]]
  mt-feed -q --no-pace -s mt.sock --load x --window 30 --raw s16le:16000:1 call.raw >rest
  jq -se 'map(select(.type == "frame")) | length >= 10 and all(.status == "ok" and .kv_tokens <= 34)' rest
  jq -se '.[] | select(.type == "opened") | .kv == "window=30,sinks=4"' rest
}

@test "save: what can't be is one line, and touches no other call" {
  serve "${QUICK[@]}" --save-dir . -m synth:qwen2.5-omni-tiny
  whole
  half 41000 5
  s=$(jq -r 'select(.type == "opened").session' part)
  mt-probe save -s mt.sock "$s" x
  fails() {
    run -1 --separate-stderr mt-probe save -s mt.sock "$1" "$2"
    [[ "$stderr" == *"$3"* ]] || { echo "$stderr"; return 1; }
    [ "$(wc -l <<<"$stderr")" = 1 ]
  }
  fails 99 y "no session 99"
  fails zero y "name of a session"
  fails "$s" ../y "letters, digits"
  fails "$s" .y "letters, digits"
  refused() {
    run -1 --separate-stderr mt-feed -q --no-pace -s mt.sock --load "$1" --raw s16le:16000:1 call.raw
    [[ "$stderr" == *"$2"* ]] || { echo "$stderr"; return 1; }
  }
  refused none "No such file"
  refused ../x "letters, digits"
  head -c 3000 x.call >cut.call
  refused cut "cut: 3000 of $(stat -c %s x.call) bytes"
  : >empty.call
  refused empty "not a saved call"
  cp x.call bad.call
  printf x | dd of=bad.call bs=1 seek=5000 conv=notrunc status=none
  refused bad checksum
  truncate -s 1T huge.call
  refused huge "at most"
  mkdir dir.call
  refused dir "not a file"
  mkfifo pipe.call
  refused pipe "not a file"
  kill -0 "$server"
  stop
  serve "${QUICK[@]}" --save-dir . -m synth:qwen2.5-omni-tiny,seed=2
  refused x "another model"
  stop
  serve "${QUICK[@]}" --save-dir . --mode free
  refused x --mode
  stop
  serve "${QUICK[@]}"
  refused x "--save-dir"
}

@test "save: audio before the answer to load is refused, and so is a second save before the first one's" {
  serve "${QUICK[@]}" --save-dir .
  printf '{"metronome":1,"type":"load","name":"x"}\n{"type":"end"}\n' | socat -t 5 - UNIX-CONNECT:mt.sock >out
  grep -q 'wait for \\"opened\\"' out
  printf '{"metronome":1,"type":"save","session":"1","name":"x"}\n{"type":"save","session":"1","name":"x"}\n' |
    socat -t 5 - UNIX-CONNECT:mt.sock >out
  grep -q 'one at a time' out
}

@test "save: who asks for a call and leaves before the answer leaves nobody behind" {
  serve "${QUICK[@]}" --save-dir . -s tcp:127.0.0.1:0 --tcp control,opens=0
  sound
  half 41000 5
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
  exec {caller}>&-
  port=$(jq -r '.sockets[1]' ready.json)
  port=${port##*:}
  for ((i = 0; i < 2000; i++)); do
    exec {left}<>"/dev/tcp/127.0.0.1/$port"
    printf '{"metronome":1,"type":"load","name":"x"}\n' >&"$left"
    exec {left}>&-
  done
  within 20 nobody
}
nobody() {
  [ "$(mt-probe stats -s mt.sock | jq .sessions)" = 0 ]
}

@test "save: on a full disk the call goes on, one line says so, and what was there is left alone" {
  serve "${QUICK[@]}" --save-dir .
  whole
  half 41000 5
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
  stop
  cp x.call before
  serve "${QUICK[@]}" --save-dir . --fault full-disk
  half 41000 5
  run -1 --separate-stderr mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
  [[ "$stderr" == *"x.call: can't be written: No space left"* ]]
  [ "$(grep -c 'No space left' serve.err)" = 1 ]
  cmp x.call before
  [ -z "$(find . -name '.x*')" ]
  goes_on x
  stop
  run -2 mt-serve -s mt.sock --fault full-disk
  run -2 mt-serve --save-dir .
}

@test "save: a limit on the size of files is no room, and not the end of the server" {
  command -v prlimit >/dev/null || skip "no prlimit here (Debian package util-linux)"
  serve "${QUICK[@]}" --save-dir .
  sound
  half 41000 5
  prlimit --pid "$server" --fsize=4096: # a limit that may be raised again
  run -1 --separate-stderr mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
  [[ "$stderr" == *"x.call: can't be written: File too large"* ]]
  [ -z "$(find . -name 'x.call*' -o -name '.x*')" ]
  prlimit --pid "$server" --fsize=unlimited:
  mt-probe save -s mt.sock "$(jq -r 'select(.type == "opened").session' part)" x
}

@test "save: what a server that died left half written is removed, and nothing else" {
  command -v flock >/dev/null || skip "no flock here (Debian package util-linux)"
  mkdir calls
  touch calls/.x.4242.0 calls/.a-b.c.1.17 calls/.x.call calls/.hidden calls/x.1.2 calls/y.call calls/.z.1.2
  ln -s ../ready.json calls/.l.1.2
  exec {writer}<>calls/.z.1.2 # one that is at work
  flock -n "$writer"
  serve "${QUICK[@]}" --save-dir calls
  diff <(find calls -mindepth 1 -printf '%f\n' | sort | xargs) - <<<".hidden .l.1.2 .x.call .z.1.2 x.1.2 y.call"
  grep -q "calls: 2 unfinished" serve.err
}

@test "save: a cost model's call, too, though its cache holds nothing" {
  head -c 160000 /dev/zero >silence.raw
  mkdir -p calls
  serve --backend cost:a=2ms,b=0 --frame 100ms --answer-tokens 2 --save-dir calls
  mt-feed -q --tolerate -s mt.sock --loop --seconds 20 --raw s16le:16000:1 silence.raw >frames 3>&- &
  SERVERS+=("$!")
  within 20 grep -q '"frame":3,' frames
  frame=$(mt-probe save -s mt.sock 1 x | jq .frame)
  mt-feed -q --tolerate --no-pace -s mt.sock --load x --raw s16le:16000:1 silence.raw >rest # a live call drops what comes too fast
  jq -es --argjson from "$frame" 'map(select(.type == "frame").frame) | sort | . == [range($from; 50)]' rest >/dev/null || { cat rest; return 1; }
}

@test "save: a call that is moved again and again between two servers, which die meanwhile, says what it would have said" {
  command -v openssl >/dev/null || skip "no openssl"
  run -0 "$MT_TESTS/soak" 5 3
  [[ "$output" == *"5 moves"*"each as it would have been"* ]]
}
