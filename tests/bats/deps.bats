#!/usr/bin/env bats
# make deps, on a machine made of stand-ins: which packages are there, who asks, what apt answers.

# shellcheck disable=SC2016  # the stand-ins expand their own variables
load helper

# A bin/ with the few real programs that the script needs, and stand-ins. `calls` is what apt-get was told.
machine() {
  mkdir bin
  for p in bash env grep; do ln -s "$(command -v $p)" bin/; done
  stub dpkg-query 'case "${!#}" in here*) echo installed;; removed*) echo config-files;; *) exit 1;; esac'
  stub apt-cache '[ -e lists ]'
  stub apt-get 'echo "$*" >>calls; case "$*" in *update*) : >lists;; *) [ -e lists ];; esac'
  stub id 'echo 0'
  touch lists
}
stub() {
  printf '#!/bin/bash\n%s\n' "$2" >"bin/$1"
  chmod +x "bin/$1"
}
deps() {
  PATH=$PWD/bin "$MT_TESTS/../.ci/apt" "$@"
}

@test "deps: all there: nothing is run" {
  machine
  run -0 deps here1 here2
  [ "$output" = "deps: all there" ]
  [ ! -e calls ]
}

@test "deps: as root: installs only what is missing, and says so" {
  machine
  run -0 deps here1 new1 removed1
  [ "$output" = "deps: installing new1 removed1" ]
  [ "$(cat calls)" = "-qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends new1 removed1" ]
}

@test "deps: package lists that know nothing are fetched first" {
  machine
  rm lists
  run -0 deps new1
  [ "$(grep -c update calls)" = 1 ]
  [[ "$(tail -n 1 calls)" == *install*new1 ]]
}

@test "deps: an install that fails is tried once more with fresh lists, then fails" {
  machine
  stub apt-get 'echo "$*" >>calls; [[ "$*" == *update* ]]'
  run ! deps new1
  [ "$(grep -c update calls)" = 1 ]
  [ "$(grep -c install calls)" = 2 ]
}

@test "deps: through sudo when not root" {
  machine
  stub id 'echo 1000'
  stub sudo ': >by-sudo; exec "$@"'
  run -0 deps new1
  [ -e by-sudo ]
  [[ "$(cat calls)" == *install*new1 ]]
}

@test "deps: neither root nor sudo: says what to have installed, and fails" {
  machine
  stub id 'echo 1000'
  run -1 deps here1 new1 new2
  [[ "$output" == *"neither root nor sudo"*"apt-get install new1 new2"* ]]
  [ ! -e calls ]
}

@test "deps: no apt-get: says what is missing, and fails" {
  machine
  rm bin/apt-get
  run -1 deps new1
  [[ "$output" == *"no apt-get"*new1* ]]
}
