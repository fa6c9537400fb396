#!/usr/bin/env bats
# What mt-serve and mt-admit have to do with a service manager: sockets that are handed over, and news for it, with stand-ins
# for it and, where there is one, with systemd's own tools.

# shellcheck disable=SC2030,SC2031,SC2154,SC2317  # each test is a subshell; run and serve set variables; within calls
load helper

# shellcheck disable=SC2054  # the commas are the options' own
QUICK=(--backend cost:a=5ms,b=1ms --frame 200ms --answer-tokens 1)
UNITS=$MT_TESTS/../contrib/systemd

# Run a command with sockets as systemd hands them over: activated NAMES WHERE… -- CMD…; WHERE is a path or a TCP port.
activated() {
  exec perl -MIO::Socket::UNIX -MIO::Socket::INET -MPOSIX=dup2 -MFcntl -e '
    $^F = 100; # descriptors are inherited
    my $names = shift; my @socks;
    while ((my $w = shift) ne "--") {
      push @socks, $w =~ /^\d+$/ ? IO::Socket::INET->new(Listen => 9, LocalAddr => "127.0.0.1:$w") : IO::Socket::UNIX->new(Listen => 9, Local => $w);
    }
    my @high = map { fcntl($_, F_DUPFD, 50) } @socks;
    dup2($high[$_], 3 + $_) for 0 .. $#high;
    POSIX::close($_) for @high;
    @ENV{qw(LISTEN_PID LISTEN_FDS LISTEN_FDNAMES)} = ($$, scalar @socks, $names);
    exec @ARGV or die' "$@"
}
# News for the manager go to `news`, a line each.
manager() {
  perl -MIO::Socket::UNIX -e '
    my $path = shift; $path =~ s/^@/\0/; $| = 1;
    my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $path) or die;
    open my $bound, ">", "bound";
    while (defined $s->recv(my $m, 4096)) { print "$m\n" }' "${1:-notify.sock}" >news 3>&- &
  SERVERS+=("$!")
  within 10 test -e bound
}
news() {
  grep -q "^$1" news
}
silence() {
  head -c "$1" /dev/zero >silence.raw
}

@test "systemd: a server that takes over is the main process from then on" {
  manager
  export NOTIFY_SOCKET=$PWD/notify.sock
  serve "${QUICK[@]}" --handoff hand.sock
  old=$server
  within 20 news READY=1
  serve "${QUICK[@]}" --handoff hand.sock
  within 20 news "MAINPID=$server"
  wait "$old"
  ! news STOPPING=1 || false
  stop
  within 10 news STOPPING=1
}

@test "systemd: sockets that are handed over are served, and stay" {
  command -v curl >/dev/null || skip "no curl"
  silence 32000
  activated audio:metrics:audio mt.sock 0 0 -- mt-serve "${QUICK[@]}" --pool 4MiB >ready.json 2>err 3>&- &
  server=$!
  SERVERS+=("$server")
  within 60 ready_or_gone
  [ "$(jq -r .socket ready.json)" = mt.sock ]
  tcp=$(jq -r '.sockets[1]' ready.json)
  [[ "$tcp" == tcp:127.0.0.1:* ]]
  mt-feed -q -s mt.sock --raw s16le:16000:1 silence.raw >frames
  mt-feed -q -s "$tcp" --raw s16le:16000:1 silence.raw >frames
  at=$(jq -r .metrics ready.json)
  [ "$(curl -s "http://$at/readyz")" = ok ]
  stop
  [ -S mt.sock ] # its file is the manager's
}

@test "systemd: what can't be served is told in one line" {
  run -2 activated metrics:metrics a.sock b.sock -- mt-serve
  [[ "$output" == *LISTEN_FDNAMES*metrics* ]]
  run -2 activated metrics c.sock -- mt-serve </dev/null
  [[ "$output" == *--metrics*"-s SOCKET"* ]]
  run -2 activated audio:metrics d.sock e.sock -- mt-serve --metrics 0
  [[ "$output" == *--metrics*"service manager"* ]]
  run -2 bash -c 'LISTEN_PID=$$ LISTEN_FDS=1 exec mt-serve -s f.sock 3</dev/null'
  [[ "$output" == *LISTEN_FDS*"descriptor 3"* ]]
  run -2 bash -c 'LISTEN_PID=$$ LISTEN_FDS=99 exec mt-serve -s f.sock'
  [[ "$output" == *LISTEN_FDS*99* ]]
  # Another process's are left alone.
  LISTEN_PID=1 LISTEN_FDS=1 mt-serve --dry-run "${QUICK[@]}" 3</dev/null | grep -q ready
}

@test "systemd: ready after a warm frame, what it is doing, and stopping" {
  silence 320000
  manager
  NOTIFY_SOCKET=$PWD/notify.sock serve "${QUICK[@]}"
  within 20 news READY=1
  [ "$(head -n 1 news)" = EXTEND_TIMEOUT_USEC=60000000 ]
  within 20 news "STATUS=ok 0/256, rho 0.00"
  mt-feed -q -s mt.sock --raw s16le:16000:1 silence.raw >frames 3>&- &
  mt-admit -s mt.sock --cap0 7 >caps 3>&- &
  SERVERS+=("$!")
  within 20 news "STATUS=\(warmup\|grow\|hold\) 1/7, rho 0.0"
  mt-probe drain -s mt.sock
  within 20 news STOPPING=1
  within 20 news "STATUS=draining"
  stop
  [ "$(grep -c READY=1 news)" = 1 ]
  [ "$(grep -c STOPPING=1 news)" = 1 ]
  run ! news WATCHDOG
}

@test "systemd: a server whose frames are late is not ready, and says so" {
  manager
  NOTIFY_SOCKET=$PWD/notify.sock serve "${QUICK[@]}" --deadline 1us
  within 20 news "STATUS=late"
  run ! news READY=1
  stop
  news STOPPING=1
}

@test "systemd: the watchdog is fed while the engine lives, and only then" {
  manager @mt-news-$$
  NOTIFY_SOCKET=@mt-news-$$ WATCHDOG_USEC=400000 serve "${QUICK[@]}" --fault stop-compute=3s
  fed() { [ "$(grep -c WATCHDOG=1 news)" -ge "$1" ]; }
  within 20 fed 3
  within 20 news "STATUS=stalled"
  n=$(grep -c WATCHDOG=1 news)
  sleep 1.5
  [ "$(grep -c WATCHDOG=1 news)" = "$n" ]
}

@test "systemd: a watchdog that is another process's is not fed" {
  manager
  NOTIFY_SOCKET=$PWD/notify.sock WATCHDOG_USEC=100000 WATCHDOG_PID=1 serve "${QUICK[@]}"
  within 20 news READY=1
  within 20 news STATUS
  run ! news WATCHDOG
}

@test "systemd: mt-admit answers on the socket that it was handed" {
  activated check 0 -- mt-admit -s mt.sock >out 2>err 3>&- &
  SERVERS+=("$!")
  within 20 grep -q agent_check out
  at=$(jq -r 'select(.type == "ready").agent_check' out)
  [ "$(socat -t 5 - "TCP:$at" </dev/null)" = "down # warming" ]
  run -2 activated check 0 -- mt-admit -s mt.sock --agent-check 0
  [[ "$output" == *--agent-check*"service manager"* ]]
}

@test "systemd: with its own activation" {
  command -v systemd-socket-activate >/dev/null || skip "no systemd here (Debian package systemd)"
  silence 32000
  systemd-socket-activate -l "$PWD/mt.sock" --fdname=audio mt-serve "${QUICK[@]}" >ready.json 2>err 3>&- &
  server=$!
  SERVERS+=("$server")
  within 10 test -S mt.sock
  mt-feed -q -s mt.sock --raw s16le:16000:1 silence.raw >frames # its first caller starts it
  [ "$(grep -c '"ok"\|"late"' frames)" = 5 ]
  stop
}

@test "systemd: the units are well made" {
  command -v systemd-analyze >/dev/null || skip "no systemd here (Debian package systemd)"
  for u in "$UNITS"/*.service "$UNITS"/*.socket; do
    sed "s,/usr/bin/mt-,$(dirname "$(command -v mt-serve)")/mt-,; /^Documentation/d" "$u" >"$(basename "$u")"
  done
  run -0 systemd-analyze verify ./*.service ./*.socket
  [ -z "$output" ]
  for u in *.service; do
    run -0 systemd-analyze security --offline=true --threshold=10 "$u"
  done
}
