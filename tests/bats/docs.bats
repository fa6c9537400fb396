#!/usr/bin/env bats
# The four files of a program tell one story: what --help lists, its man page, its completion, and what is installed.

load helper

ROOT=$MT_TESTS/..

tools() {
  local f
  for f in "$ROOT"/tools/mt-*.c; do
    basename "$f" .c
  done
}

# Words of mt-probe and the like: "TOOL WORD" is a command of its own, with a help of its own.
commands() {
  sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/^\.Cm \([a-z]*\).*/\1/p' "$ROOT/man/$1.1" | sort -u
}

# Long options in a text, one a line. --usage is argp's own, and not every page bothers with it.
long_options() {
  grep -oE -- '(^|[^[:alnum:]-])--[a-z][a-z0-9-]*' | grep -oE -- '--[a-z0-9-]+' | grep -vx -- --usage | sort -u
}
help_options() {
  { "$1" --help; for c in $(commands "$1"); do "$1" "$c" --help; done; } | long_options
}
# In mdoc an option is "Fl \-name" or "Fl n , \-name". Those that an .It explains are this tool's, others may be somebody
# else's.
page_options() {
  grep -E "$2" "$ROOT/man/$1.1" | grep -oE '(Fl|,) \\?-[a-z][a-z0-9-]*' | sed -E 's/^(Fl|,) \\?-/--/' | grep -vx -- --usage | sort -u
}

# Fails and prints what the first list has and the second lacks.
all_in() {
  local lack
  lack=$(comm -23 "$1" "$2")
  [ -z "$lack" ] || { echo "$3: ${lack//$'\n'/ }"; return 1; }
}

@test "docs: every tool has a man page and a completion, and these have a tool" {
  [ "$(tools | wc -l)" -ge 4 ]
  diff <(tools) <(cd "$ROOT/man" && printf "%s\n" mt-*.1 | sed "s/\.1\$//")
  diff <(tools) <(cd "$ROOT/completions" && ls)
  [ -s "$ROOT/man/metronome.7" ]
}

@test "docs: --help and man page name the same options" {
  for t in $(tools); do
    help_options "$t" >help
    page_options "$t" . >page
    page_options "$t" '^\.It ' >own
    [ "$(wc -l <help)" -ge 2 ]
    all_in help page "man/$t.1 lacks"
    all_in own help "$t --help lacks"
  done
}

@test "docs: --help and completion name the same options" {
  for t in $(tools); do
    help_options "$t" >help
    long_options <"$ROOT/completions/$t" >completion
    all_in help completion "completions/$t lacks"
    all_in completion help "$t --help lacks"
  done
}

@test "docs: the completion offers the options" {
  for t in $(tools); do
    run bash -c '
      source "$1/completions/$2"
      f=$(complete -p "$2" | sed "s/.*-F \([^ ]*\).*/\1/")
      COMP_WORDS=("$2" --) COMP_CWORD=1 COMP_LINE="$2 --" COMP_POINT=$((${#2} + 3))
      "$f" "$2" -- "$2"
      printf "%s\n" "${COMPREPLY[@]}"' - "$ROOT" "$t"
    [ "$status" = 0 ]
    [[ "$output" == *--help* ]] || { echo "$t: $output"; return 1; }
  done
}

@test "docs: --version says the same for every tool, on stdout" {
  version=$(sed -n 's/^#define MT_VERSION "\(.*\)"/\1/p' "$ROOT/lib/base/base.h")
  for t in $(tools); do
    run -0 --separate-stderr "$t" --version
    [[ "$output" == *"$version"* ]] || { echo "$t: $output"; return 1; }
    [ -z "$stderr" ]
  done
}

@test "docs: an option that does not exist is exit 2, one hint on stderr, nothing on stdout" {
  for t in $(tools); do
    run -2 --separate-stderr "$t" --no-such-option
    [ -z "$output" ]
    [[ "$stderr" == *no-such-option* ]]
  done
}

# The examples are run with --help behind each of our commands: options and their values are parsed in earnest, nothing else
# happens. What they redirect from exists; commands that are not ours do nothing.
@test "docs: the examples of the pages and of the README are calls that the tools accept" {
  mkdir bin
  for t in $(tools); do
    printf '#!/bin/bash\n%q "$@" --help >/dev/null 2>&1 || echo %s "$*" >>%q\n' "$(command -v "$t")" "$t" "$PWD/refused" >"bin/$t"
  done
  chmod +x bin/*
  touch call.wav frames.ndjson book.txt
  for page in "$ROOT"/man/*.[17]; do
    sed -n '/^\.Sh EXAMPLES/,/^\.Sh [^E]/p' "$page" | sed -n '/^\.Bd/,/^\.Ed/p' | grep -v '^\.' |
      sed -e 's/\\e/\\/g' -e 's/\\-/-/g' -e 's/\\(dq/"/g' -e 's/\\&//g' -e 's/^\$ //'
  done >examples
  grep -E '^    mt-' "$ROOT/README.md" >>examples
  sed -n 's/.*< *\([a-z.]*\).*/\1/p' examples | xargs -r touch
  [ "$(grep -c 'mt-' examples)" -ge 8 ]
  bash -n examples
  run -0 env PATH="$PWD/bin" /bin/bash -c 'command_not_found_handle() { :; }; source ./examples; wait'
  [ ! -s refused ] || { cat refused; return 1; }
}

@test "docs: install puts everything under DESTDIR, uninstall leaves nothing" {
  # The sanitized or plain build that is being tested is there already; nothing is built here.
  make -s -C "$ROOT" SAN="${MT_SAN:-}" install DESTDIR="$PWD/root" prefix=/usr >/dev/null
  for t in $(tools); do
    [ -x "root/usr/bin/$t" ]
    [ -f "root/usr/share/man/man1/$t.1" ]
    [ -f "root/usr/share/bash-completion/completions/$t" ]
  done
  [ -f root/usr/share/man/man7/metronome.7 ]
  [ -f root/usr/share/doc/metronome/LICENSE ]
  run -0 "root/usr/bin/mt-serve" --version
  # The model for no -m is found from where the program lies.
  MT_MODEL='' run -0 --separate-stderr root/usr/bin/mt-serve --dry-run
  touch root/usr/bin/somebody-elses
  make -s -C "$ROOT" SAN="${MT_SAN:-}" uninstall DESTDIR="$PWD/root" prefix=/usr >/dev/null
  [ "$(find root -type f)" = root/usr/bin/somebody-elses ]
  [ ! -e root/usr/share/doc/metronome ] && [ ! -e root/usr/share/metronome ]
}

@test "docs: help that can't be written is exit 1" {
  for t in $(tools); do
    run -1 --separate-stderr bash -c "$t --help >/dev/full"
    [[ $stderr == "$t: standard output: "* ]]
  done
}
