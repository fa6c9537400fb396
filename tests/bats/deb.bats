#!/usr/bin/env bats
# make deb: what is in the package, and what lintian says of it. packaging/chroot installs it on a fresh Debian.

load helper

ROOT=$MT_TESTS/..

@test "deb: the package has the tools, what they need, and no errors" {
  for t in dpkg-deb dpkg-shlibdeps strip; do
    command -v $t >/dev/null || skip "no $t here (Debian package dpkg-dev)"
  done
  [ -z "${MT_SAN:-}" ] || skip "nobody packages a build with sanitizers"
  cd "$ROOT"
  packaging/deb "$BATS_TEST_TMPDIR/deb" # and lintian, where it is there
  cd "$BATS_TEST_TMPDIR"
  deb=$(echo deb/*.deb)
  dpkg-deb --field "$deb" Depends | grep -q 'libc6.*libuv1'
  dpkg-deb -x "$deb" there
  for t in "$ROOT"/tools/mt-*.c; do
    t=$(basename "$t" .c)
    run -0 there/usr/bin/"$t" --version
    [ -f "there/usr/share/man/man1/$t.1.gz" ]
  done
  MT_MODEL='' run -0 there/usr/bin/mt-serve --dry-run
  [ -f there/lib/systemd/system/mt-serve.service ]
  [ -x there/usr/share/metronome/tools/experiments/demo ]
  grep -q '^License: Expat' there/usr/share/doc/metronome/copyright
  dpkg-deb -e "$deb" there/DEBIAN
  (cd there && md5sum --quiet -c DEBIAN/md5sums)
}
