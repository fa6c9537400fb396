#!/usr/bin/env bats
# contrib/systemd under a real systemd, the first process of a machine that tests/systemd makes out of namespaces.

# shellcheck disable=SC2154,SC2317  # run sets variables; within calls
load helper

UNITS=$MT_TESTS/../contrib/systemd
SYSTEM=/usr/lib/systemd/system
QUICK='--backend cost:a=5ms,b=1ms --frame 200ms --answer-tokens 1'

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  [ "$(id -u)" = 0 ] || skip "not root: no namespaces with a systemd in them"
  [ -x /lib/systemd/systemd ] || skip "no systemd here (Debian package systemd)"
  [ -z "${MT_SAN-}" ] || skip "what a sanitizer does, the units do not let a server do"
  for c in unshare nsenter ip curl socat; do
    command -v "$c" >/dev/null || skip "no $c here"
  done
  mkdir bin units units/mt-serve.service.d
  for t in mt-serve mt-probe mt-admit mt-feed; do
    cp "$(command -v "$t")" bin
  done
  cp "$UNITS"/* units
  sed -i 's,/usr/bin/mt-,/usr/local/bin/mt-,' units/*.service
  for t in basic sysinit shutdown sockets slices paths timers local-fs umount; do
    cp "$SYSTEM/$t.target" units
  done
  printf '[Unit]\nDescription=nothing but metronome\nDefaultDependencies=no\n' >units/metronome.target
  printf '[Service]\nEnvironment="MT_SERVE_OPTIONS=%s"\nStandardError=append:/run/mt-serve.err\n' "$QUICK" >units/mt-serve.service.d/test.conf
  head -c 320000 /dev/zero >silence.raw
}
teardown() {
  [ -z "${manager-}" ] || { kill -TERM "$manager"; wait "$manager" || true; }
}

boot() {
  "$MT_TESTS/systemd" "$PWD" >boot.log 2>&1 3>&- &
  manager=$!
  within 60 up_or_gone || true
  up || skip "no systemd can be started here: $(tail -n 1 boot.log)"
  inside systemctl start mt-serve.socket mt-serve-metrics.socket mt-admit.socket
}
inside() {
  "$MT_TESTS/systemd" "$PWD" "$@"
}
up() {
  [[ "$(inside systemctl is-system-running 2>/dev/null)" =~ running|degraded ]]
}
up_or_gone() {
  up || ! kill -0 "$manager" 2>/dev/null
}
property() { # of the server
  inside systemctl show --value -p "$1" mt-serve.service
}
is() { # PROPERTY VALUE
  [ "$(property "$1")" = "$2" ]
}
feed() {
  inside mt-feed -q -s /run/metronome/mt.sock "$@" --raw s16le:16000:1 "$PWD/silence.raw"
}
answered() { # FILE FRAMES
  [ "$(grep -c '"status":"\(ok\|late\)"' "$1")" = "$2" ]
}

@test "systemd boots: the first caller starts the server, which says when it is ready and how it is" {
  boot
  is ActiveState inactive
  feed --no-pace >frames
  answered frames 50
  is ActiveState active
  within 20 status '^ok 0/256, rho 0.00$'
  [ "$(inside curl -s http://127.0.0.1:9464/readyz)" = ok ]
  [ "$(inside curl -s http://127.0.0.1:9464/metrics | awk '/^metronome_frames_total/ { n += $2 } END { print n }')" = 50 ]
  [ "$(inside stat -c '%U:%G %a' /run/metronome/mt.sock)" = "metronome:metronome 660" ]
  [ "$(inside stat -c %U "/proc/$(property MainPID)")" = metronome ]
  # Admission, which HAProxy's first check starts.
  inside socat -t 5 - TCP:127.0.0.1:9101 </dev/null >check
  grep -q '^\(up ready\|down # warming\)' check
  inside systemctl is-active mt-admit.service
  # As protected as the manual says.
  for u in mt-serve mt-admit; do
    inside systemd-analyze security --no-pager "$u.service" >"$u.security"
    grep 'Overall exposure' "$u.security"
  done
  # Others may count otherwise.
  [[ "$(systemctl --version)" != "systemd 252 "* ]] || grep -q "mt-serve.service: $(man_says) " mt-serve.security
}
status() {
  property StatusText | grep -q "$1"
}
man_says() {
  grep -A1 'systemd-analyze security' "$MT_TESTS/../man/mt-serve.1" | sed -n 's/^gives it //p'
}

@test "systemd boots: a server that stands still is restarted, and callers only wait" {
  printf 'WatchdogSec=2s\n' >>units/mt-serve.service.d/test.conf
  boot
  feed --no-pace >frames
  pid=$(property MainPID)
  inside kill -STOP "$pid"
  within 60 is NRestarts 1
  feed --no-pace >frames
  answered frames 50
  [ "$(property MainPID)" != "$pid" ]
}

@test "systemd boots: stopping lets the calls that are there end, and the next caller starts it again" {
  boot
  feed >frames 3>&- &
  caller=$!
  within 20 grep -q '"frame":2,' frames
  inside systemctl stop mt-serve.service
  wait "$caller"
  answered frames 50
  is Result success
  is ActiveState inactive
  feed --no-pace >frames
  answered frames 50
}
