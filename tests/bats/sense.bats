#!/usr/bin/env bats
# What the model that is installed with metronome understands: clips of one frame each in voices it was never trained on.
# shellcheck disable=SC2154  # run and serve set variables
load helper

SENSE=$DATA/sense
NAMED=("$SENSE"/[0-9]*.flac) OTHERS=("$SENSE"/other-*.flac) QUIET=$SENSE/quiet.flac
export MT_MODEL=$MT_TESTS/../share/metronome/tiny

# answers FILE…: what they are to be answered, a line a frame
answers() {
  local f
  for f; do jq -r --arg f "$(basename "$f" .flac)" '.[$f]' "$SENSE/answers.json"; done
}
# hear POLICY FILE…: what a call of them is answered
hear() {
  mt-feed "${@:2}" | mt-serve --deadline 10min --kv "$1" | jq -r 'select(.type == "frame") | .text'
}
# last POLICY FILE…: the answer to the last of them
last() {
  hear "$@" | tail -n 1
}

@test "sense: it is what stands for no -m; MT_MODEL names another one, and where there is none that is said" {
  unset MT_MODEL
  hear unbounded "${NAMED[0]}" >said
  answers "${NAMED[0]}" | diff - said
  MT_MODEL=synth:no run -2 --separate-stderr mt-serve --dry-run
  [[ $stderr == *"synth:no"* ]]
  [ "$(MT_MODEL=moshi-7b mt-serve --backend cost:a=1ms --dry-run | jq -r .model)" = moshi-7b ]
  cp "$(command -v mt-serve)" alone
  run -1 --separate-stderr ./alone --dry-run
  [[ $stderr == *"share/metronome/tiny"*"-m synth:"* ]]
}

@test "sense: words, digits and other speech are understood, each clip a call of its own" {
  [ ${#NAMED[@]} = 16 ]
  for f in "${NAMED[@]}" "${OTHERS[@]}"; do hear window=2048,sinks=4 "$f"; done >said
  answers "${NAMED[@]}" "${OTHERS[@]}" | diff - said
}

@test "sense: silence and noise stay unanswered" {
  hear window=2048,sinks=4 "$QUIET" "$SENSE/noise.flac" "$QUIET" "$QUIET" "$SENSE/noise.flac" "$QUIET" >said
  [ "$(grep -c '^$' said)" = 6 ]
}

@test "sense: thirty turns under a window of two are understood" {
  local call=()
  for f in "${NAMED[@]:0:15}"; do call+=("$f" "$QUIET"); done
  hear window=128,sinks=4 "${call[@]}" >said
  answers "${call[@]}" | diff - said
  [ "$(wc -l <said)" = 30 ]
}

@test "sense: what has left the window is forgotten, what the sinks hold is kept" {
  local word told=("${NAMED[0]}" "$QUIET" "$QUIET")
  word=$(answers "${NAMED[0]}")
  [ "$(last unbounded "${told[@]}" "$SENSE/repeat.flac")" = "$word" ]
  [ "$(last window=96,sinks=4 "${told[@]}" "$SENSE/repeat.flac")" = '?' ]
  told=("${NAMED[@]:0:4}")
  [ "$(last window=128,sinks=80 "${told[@]}" "$SENSE/first.flac")" = "$word" ]
  [ "$(last window=128,sinks=4 "${told[@]}" "$SENSE/first.flac")" != "$word" ]
}

@test "sense: sixteen calls at once, each with other speech: no answer in another's call" {
  local id all=("${NAMED[@]}" "${OTHERS[@]}")
  serve --kv window=128,sinks=4 --deadline 10min
  mt-feed -q -s mt.sock -n 16 --no-pace "${all[@]}" "$QUIET" >frames.ndjson
  for i in {0..15}; do
    # Feed i begins with file i.
    id=$(jq -r --argjson i "$i" 'select(.type == "opened" and .feed == $i) | .session' frames.ndjson)
    answers "${all[@]:i}" "$QUIET" "${all[@]:0:i}" >wanted
    jq -r --arg id "$id" 'select(.type == "frame" and .session == $id) | .text' frames.ndjson | diff wanted -
  done
}
