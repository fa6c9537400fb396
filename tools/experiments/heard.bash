# What a bounded call still knows of what was said in it: part of quality, sourced by it. The tiny self-test model hears clips of
# one frame each (tests/data/sense) in calls of two kinds: a word, so many silent turns, and "repeat" or "first"; and thirty turns of
# everything. raw/heard.ndjson has what was answered, raw/heard-POLICY.tsv and raw/turns.tsv what the picture needs.
# shellcheck shell=bash disable=SC2154  # quality's and common.bash's variables
sense=tests/data/sense
# A call's first 80 tokens are the prompt and its first frame with the answer.
policies="unbounded window=512,sinks=4 window=128,sinks=4 window=128,sinks=80"

# heard_call KV FILE…: what each frame is answered, as a list.
heard_call() {
    run "mt-feed -q ${*:2} | MT_MODEL= mt-serve -q --deadline 10min --kv $1 | jq -nc '[inputs | select(.type == \"frame\").text]'"
}
# heard_needle KV SILENT COMMAND FILE…: a word each FILE, and what comes back of it after so many silent turns.
heard_needle() {
    local kv=$1 silent=$2 command=$3 file quiet=""
    for ((i = 0; i < silent; i++)); do quiet+=" $sense/quiet.flac"; done
    for file in "${@:4}"; do
        # shellcheck disable=SC2086 # a list of files
        heard_call "$kv" "$file" $quiet "$sense/$command.flac" |
            jq -c --arg kv "$kv" --argjson silent "$silent" --arg asked "$command" \
                '{type: "heard_needle", kv: $kv, silent: $silent, asked: $asked, told: .[0], answered: .[-1]}'
    done >>"$raw/heard.ndjson"
}
# heard_turns KV CALL FILE…: what of a call is answered as it ought to be.
heard_turns() {
    heard_call "$1" "${@:3}" | jq -c --arg kv "$1" --argjson call "$2" --slurpfile want "$sense/answers.json" \
        '{type: "heard_turns", kv: $kv, call: $call, right: ([., ($ARGS.positional | map($want[0][sub(".*/"; "") | rtrimstr(".flac")]))]
            | transpose | map(.[0] == .[1]))}' --args "${@:3}" >>"$raw/heard.ndjson"
}
heard() {
    local kv k call turn silences="0 1 2 4 8 16" named=("$sense"/[0-9]*.flac) all=("$sense"/[0-9]*.flac "$sense"/other-*.flac) files=()
    if [ -n "$quick" ]; then silences="0 1 4" named=("${named[@]:0:3}"); fi
    : >"$raw/heard.ndjson"
    for kv in $policies; do
        for k in $silences; do
            progress "heard, $kv, $k silent turns"
            if [ "${kv%sinks=80}" = "$kv" ]; then heard_needle "$kv" "$k" repeat "${named[@]}"; else heard_needle "$kv" "$k" first "${named[@]}"; fi
        done
    done
    for ((call = 0; call < (${#quick} ? 1 : 4); call++)); do
        files=()
        for ((turn = 0; turn < 30; turn++)); do
            if [ "$(draw "$((seed + 100 * call + turn))" 0 2)" = 0 ]; then files+=("$sense/quiet.flac"); else
                files+=("${all[$(draw "$((seed + 100 * call + turn + 50))" 0 $((${#all[@]} - 1)))]}")
            fi
        done
        for kv in $policies; do heard_turns "$kv" "$call" "${files[@]}"; done
    done
    progress ""
    # Shares, with the interval by Wilson.
    # shellcheck disable=SC2016 # jq's variables, not ours
    jq -src 'def wilson: length as $n | (map(select(.)) | length / $n) as $p | 1.959964 as $z | (1 + $z * $z / $n) as $d
            | (($p + $z * $z / (2 * $n)) / $d) as $m | ($z / $d * (($p * (1 - $p) / $n + $z * $z / (4 * $n * $n)) | sqrt)) as $h
            | {share: $p, low: ([$m - $h, 0] | max), high: ([$m + $h, 1] | min), n: $n};
        (map(select(.type == "heard_needle")) | group_by([.kv, .silent])[] | (map(.told == .answered) | wilson) as $w
            | {experiment: "quality", measure: "heard", kv: .[0].kv, asked: .[0].asked, silent: .[0].silent} + $w),
        (map(select(.type == "heard_turns")) | group_by(.kv)[] | (map(.right[]) | wilson) as $w
            | {experiment: "quality", measure: "turns", kv: .[0].kv} + $w)' "$raw/heard.ndjson" >"$raw/heard-shares.ndjson"
    cat "$raw/heard-shares.ndjson" >>"$results"
    for kv in $policies; do
        jq -r --arg kv "$kv" 'select(.measure == "heard" and .kv == $kv) | [.silent, .share, .low, .high] | @tsv' \
            "$raw/heard-shares.ndjson" >"$raw/heard-${kv//[=,]/-}.tsv"
        jq -r --arg kv "$kv" 'select(.measure == "turns" and .kv == $kv)
            | [(.kv | sub("window="; "W=") | sub(",sinks="; ", S=")), .share, .low, .high] | @tsv' "$raw/heard-shares.ndjson"
    done >"$raw/turns.tsv"
    jq -rs 'def p: . * 1000 | round / 10;
        (map(select(.measure == "heard").silent) | unique) as $silent | . as $all
        | ["heard, % of \(map(select(.measure == "heard"))[0].n)", "asked", ($silent[] | "after \(.)"), "30 turns"],
        (group_by(.kv)[] | . as $some | [.[0].kv, (map(.asked // empty) | first), ($silent[] | . as $k | $some[] | select(.silent == $k).share | p),
            ($some[] | select(.measure == "turns").share | p)]) | @tsv' "$raw/heard-shares.ndjson" | table
    remark "Not of the model above: the self-test model of 5 MB, which is taught, hears a word, so many silent turns of 2 s (62 tokens), and \"repeat\", or" \
        "\"first\" where the sinks hold the first frame: in how many calls the word comes back; and what share of the frames of calls of 30 turns is" \
        "answered as it ought to be. The clips are ones that it gets right in short calls; how often it is wrong, its card says."
}
