# What the experiments share: sourced, not run. An experiment NAME writes into OUT/NAME/: MODE.txt (its table), MODE.ndjson (its
# results), MODE.png, MODE.md (paragraphs), MODE.json (what ran where: commands, versions, seeds, machine) and MODE/ (raw data).
# shellcheck shell=bash disable=SC2034  # the variables set here are read by the experiments
set -euo pipefail
export LC_ALL=C

experiments=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$experiments/../.." && pwd)
export MT_MODEL=synth:qwen2.5-omni-tiny # they measure time and memory: answers as long as they are asked for
command -v mt-predict >/dev/null || PATH=$root/build:$PATH
clip=tests/data/jfk.flac
clips="tests/data/jfk.flac tests/data/night30.flac"
server=
known_models="qwen2.5-omni-7b qwen3-omni-30b minicpm-o-4.5 moshi-7b"

fail() {
    echo "$name: $1" >&2
    exit 1
}

# begin NAME DEFAULT_RUNS "WHAT" "WHAT --runs COUNTS" ARGS…: the options all experiments have (--runs not where DEFAULT_RUNS is empty);
# mode, seed, runs and dir come out. An experiment's own options, each with a value, stand in `more` (name to help); what was given comes
# out in `given`, and --models, which those have that loop over models, in `models`.
declare -A more=() given=()
loops() { more[models]="NAME,…  Of ${known_models// /, } (default: all four; live: their tiny forms)"; }
begin() {
    name=$1 runs=$2
    local what=$3 unit=$4 need own=""
    shift 4
    mode=live seed=1 out=build/experiments quick=""
    while [ $# -gt 0 ]; do
        case $1 in
        --live) mode=live ;;
        --paper) mode=paper ;;
        --quick) quick=1 ;;
        --seed | --runs | --out)
            [ $# -gt 1 ] || usage_error "$1 wants a value"
            [[ $1 != --runs || -n $runs ]] || usage_error "--runs: $name runs once"
            case $1 in
            --out) out=$2 ;;
            *) [[ $2 =~ ^[0-9]{1,9}$ ]] || usage_error "$1: '$2' is not a number" ;;&
            --seed) seed=$2 ;;
            --runs)
                [ "$2" -gt 0 ] || usage_error "--runs: at least 1"
                runs=$2
                ;;
            esac
            shift
            ;;
        --help)
            printf 'Usage: tools/experiments/%s [--live|--paper] [--quick] [--seed N]%s [--out DIR]\n%s\n\n' "$name" "${runs:+ [--runs N]}" "$what"
            printf '  --live      The real engine, real speech, a tiny model, a small pool, short frames (default)\n'
            printf "  --paper     The simulator at the paper's scale: an H200-class card by roofline arithmetic\n"
            printf '  --quick     A few points of it: to see that it works, not for its figures\n'
            printf '  --seed N    Of every random choice (default 1)\n'
            [ -z "$runs" ] || printf '  --runs N    %s (default %s)\n' "$unit" "$runs"
            for need in "${!more[@]}"; do printf '  --%s %s\n' "$need" "${more[$need]}"; done
            printf '  --out DIR   Results go to DIR/%s (default build/experiments in the source folder)\n' "$name"
            exit 0
            ;;
        *)
            [[ $1 == --* && -n ${more[${1#--}]:-} ]] || usage_error "'$1' is not an option"
            [ $# -gt 1 ] || usage_error "$1 wants a value"
            given[${1#--}]=$2 own+=" $1 $2"
            shift
            ;;
        esac
        shift
    done
    [[ $out =~ ^[A-Za-z0-9_./+-]+$ ]] || usage_error "--out: '$out' has other characters than letters, digits and _./+-"
    choose_models
    cd "$root"
    for need in mt-predict jq gnuplot awk flock $([ $mode = paper ] || echo mt-serve mt-feed); do
        command -v "$need" >/dev/null || fail "$need is not there (make all, make deps)"
    done
    dir=$out/$name
    raw=$dir/$mode
    mkdir -p "$dir"
    # A second run in the same place would take the files away from under the first, and its server's socket.
    exec {lock}>"$dir/.$mode.lock"
    flock -n "$lock" || fail "another run is writing to $raw (--out: somewhere else)"
    rm -rf "$raw" "$dir/$mode".*
    mkdir -p "$raw"
    commands=$raw/commands
    echo "tools/experiments/$name --$mode ${quick:+--quick }--seed $seed${runs:+ --runs $runs}$own" >"$commands"
    results=$dir/$mode.ndjson
    : >"$results"
    SECONDS=0
    trap clean EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    say "$name --$mode, seed $seed"
}
choose_models() {
    local one
    read -ra models < <(tr , ' ' <<<"${given[models]-$known_models}") || true
    [ ${#models[@]} -gt 0 ] || usage_error "--models: at least one"
    for one in "${models[@]}"; do
        [[ " $known_models " == *" $one "* ]] || usage_error "--models: '$one' is none of ${known_models// /, }"
    done
    [ "$(printf '%s\n' "${models[@]}" | sort -u | wc -l)" = ${#models[@]} ] || usage_error "--models: a name stands there twice"
}
usage_error() {
    echo "$name: $1 (--help tells the options)" >&2
    exit 2
}
clean() {
    local rc=$?
    trap - EXIT
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    [ -z "${raw:-}" ] || rm -f "$raw/mt.sock"
    [ $rc = 0 ] || echo "$name: FAILED (exit status $rc); its files are in $dir" >&2
    exit $rc
}

say() { printf '%s\n' "$*" >&2; }
progress() { if [ -t 2 ]; then printf '\r\033[K  %s' "$*" >&2; fi; }

# run COMMAND: by bash, and noted; its stdout is the caller's.
run() {
    printf '%s\n' "$1" >>"$commands"
    bash -o pipefail -c "$1"
}
# start READY COMMAND: a server in the background, ready when this returns; READY is its first line.
start() {
    printf '%s &\n' "$2" >>"$commands"
    : >"$1"
    bash -c "exec $2" >"$1" &
    server=$!
    for _ in {1..600}; do
        if grep -q '"ready"' "$1"; then return; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.02
    done
    fail "the server did not start: $2"
}
stop() {
    kill "$server"
    wait "$server" || fail "the server ended with an error"
    server=
}

# result JQ_ARGS…: one line of results, from jq's named arguments.
result() { jq -nc "$@" '$ARGS.named' >>"$results"; }

# frames RECORDS: a line for each frame that was not refused: session, when it was due (s), latency (ms), pool (share), status, tokens
# out. By the members' names, since jq would be the slowest part of it all; what the model says stands last in a record.
frames() {
    awk 'function member(k) { return substr($0, index($0, "\"" k "\":") + length(k) + 3) }
        function word(k, s) { s = substr(member(k), 2); return substr(s, 1, index(s, "\"") - 1) }
        /"type":"frame"/ { status = word("status"); ms = member("latency_ms") + 0
            if (status != "refused") printf "%s\t%.6f\t%.6f\t%.6g\t%s\t%d\n", word("session"), member("t") - ms / 1000, ms, member("pool") + 0, status, member("tokens_out") }' "$1"
}

# calc EXPRESSION [FORMAT]: arithmetic on a line of its own.
calc() { awk "BEGIN { printf \"${2:-%.6g}\n\", $1 }" </dev/null; }

# wilson HITS RUNS: the 95 % interval of a share, "low high".
wilson() {
    awk -v k="$1" -v n="$2" 'BEGIN { z = 1.959964; p = k / n; d = 1 + z * z / n; m = (p + z * z / (2 * n)) / d
        h = z / d * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        lo = m - h; hi = m + h; printf "%.4f %.4f\n", (lo < 1e-9 ? 0 : lo), (hi > 1 - 1e-9 ? 1 : hi) }'
}
# draw SEED LOW HIGH: a whole number from LOW..HIGH that is the same on every machine (one round of splitmix64).
draw() {
    local z=$((($1 + 1) * 0x1e3779b97f4a7c15))
    z=$(((z ^ (z >> 30 & 0x3ffffffff)) * 0x3f58476d1ce4e5b9))
    z=$(((z ^ (z >> 27 & 0x1fffffffff)) * 0x14d049bb133111eb))
    echo $(($2 + (z >> 33 & 0x7fffffff) % ($3 - $2 + 1)))
}

# table: tab-separated lines, the first a heading; columns aligned, also kept as MODE.txt.
table() {
    awk -F '\t' '{ n[NR] = NF; for (i = 1; i <= NF; i++) { c[NR, i] = $i; if (length($i) > w[i]) w[i] = length($i) } }
        END { for (r = 1; r <= NR; r++) { line = ""
            for (i = 1; i <= n[r]; i++) line = line sprintf(i == 1 ? "%-*s" : "  %*s", w[i], c[r, i])
            sub(/ +$/, "", line); print line } }' | tee -a "$dir/$mode.txt"
}
# remark TEXT: below the table.
remark() { printf '%s\n' "$*" | fold -s -w 118 | sed 's/ *$//' | tee -a "$dir/$mode.txt"; }

# picture SCRIPT [SETTINGS]: gnuplot with `raw` and `png` set, and style.gp loaded.
picture() {
    printf '%s\n' "gnuplot -e \"raw='$raw'; png='$dir/$mode.png'; mode='$mode'; ${2:-}\" tools/experiments/style.gp tools/experiments/$1" \
        >>"$commands"
    gnuplot -e "raw='$raw'; png='$dir/$mode.png'; mode='$mode'; ${2:-}" "$experiments/style.gp" "$experiments/$1"
}

# finish PARAGRAPH…: write what ran where, say the result.
finish() {
    local one
    for one; do
        printf '%s\n' "${one^}" | tr -s ' \n' ' ' | sed 's/ *$//'
        printf '\n\n'
    done | sed '$d' >"$dir/$mode.md"
    jq -nc --rawfile commands "$commands" --arg name "$name" --arg mode "$mode" --argjson seed "$seed" --argjson runs "${runs:-1}" \
        --argjson took "$SECONDS" --arg date "$(date -u +%FT%TZ)" --arg version "$(mt-predict --version)" \
        --arg source "$(git -C "$root" describe --always --dirty --exclude '*' 2>/dev/null || echo "no git")" \
        --arg cpu "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u | paste -sd '/')" --argjson cpus "$(nproc)" \
        --arg load "$(cut -d ' ' -f 1-3 /proc/loadavg)" --arg kernel "$(uname -srm)" \
        --arg jq "$(jq --version)" --arg gnuplot "$(gnuplot --version)" \
        '{experiment: $name, mode: $mode, seed: $seed, runs: $runs, took_s: $took, date: $date, version: $version, source: $source,
          machine: {cpu: $cpu, processors: $cpus, kernel: $kernel, load: $load}, jq: $jq, gnuplot: $gnuplot,
          commands: ($commands | rtrimstr("\n") | split("\n"))}' >"$dir/$mode.json"
    printf '\n' >&2
    fold -s -w 118 "$dir/$mode.md"
    say "$dir/$mode.{txt,ndjson,png,md,json}, $SECONDS s"
}

# ---- the paper's machine, by roofline arithmetic ----

# Nothing here was fitted to a result. The card (H200 SXM): 141 GB, 4.8 TB/s, 989 TFLOP/s dense bf16. What a good engine reaches of
# them is assumed: 70 % of the bandwidth, 50 % of the FLOP/s, 90 % of the memory, of which 4 GB go to activations.
#
# A model: frame (its own beat; Qwen3-Omni's is 1 s, and 2 s here as in the paper), answer tokens a frame (4 a second of speech, all the
# time: the heaviest talker; Moshi's text and codes share the position of its audio), markup a frame (MiniCPM-o's unit marks; none for
# free-running Qwens), weights held (GB), weights that any step reads (GB), weights of experts (GB) and
# share of them that one row uses, GFLOP a row, GFLOP and GB of the encoder an audio row and a step, KV bytes a token, audio rows/s.
#                       frame ans mark  held   dense  experts share    flop  enc  encGB   q      audio
card_models="
qwen3-omni-30b          2     8   0     63.44  2.46   57.98  0.0625   6.08   1.60 1.30   98304  13
qwen2.5-omni-7b         2     8   0     17.86  14.14  0      0        14.14  2.56 1.28   57344  25
minicpm-o-4.5           1     4   3     17.03  15.13  0      0        15.13  3.07 0.61   147456 10
moshi-7b                0.08  1   0     15.76  14.75  0      0        14.75  0    0.38   524288 12.5"

# card MODEL N [SLOWER]: sets frame_s, answer, markup, rate (tokens/s of a session), pool (blocks), cost (for --cost), a_ms, b_us, ...;
# N is the number of rows of a decoding step, which says how many experts are touched: 1 - (1 - share)^N of them.
card() {
    read -r frame_s answer markup rate step_in pool a_ms b_us b1_ns prefill_us touched < <(
        printf '%s\n' "$card_models" | awk -v m="$1" -v n="$2" -v slower="${3:-1}" '$1 == m {
            B = 4.8e12 * 0.7 / slower; F = 989e12 * 0.5 / slower; steps = $3
            touch = 1 - (1 - $8) ^ n
            a = ((steps - 1) * ($6 + $7 * touch) + $6 + $7 + $11) * 1e9 / B      # the prefill step touches all experts
            frame = $13 * $2 + $4 + (m == "moshi-7b" ? 0 : steps)
            printf "%s %d %d %.6g %d %d %.6f %.3f %.0f %.3f %.4f\n", $2, steps, $4, frame / $2, $13 * $2 + $4,
                int((141e9 * 0.9 - $5 * 1e9 - 4e9) / (16 * $12)), 1e3 * a, 1e6 * steps * $9 * 1e9 / F,
                1e9 * steps * $12 / B, 1e6 * ($9 + $10) * 1e9 / F, touch }')
    [ -n "${touched:-}" ] || fail "no card arithmetic for $1"
    # How many calls fill the pool in five minutes: the paper's length of a run.
    five=$(calc "16 * $pool / ($rate * 300)")
    cost="a=${a_ms}ms,b=${b_us}us,b1=${b1_ns}ns,prefill=${prefill_us}us"
    model=$1
    # Moshi's one token a frame stands at its audio's position: an answer that ends at its first token adds none.
    if [ "$1" = moshi-7b ]; then answers="--answers 1 --answer-tokens 1"; else answers="--mode free --answer-tokens $answer"; fi
    sim="mt-predict simulate -m $1 --frame ${frame_s}s $answers --turn-tokens $markup --step-tokens 8192 --cost $cost,jitter=3%"
}
card_remark() {
    remark "Costs of a frame by roofline arithmetic, $model, $1 rows a decoding step: a = $(calc "$a_ms" %.1f) ms ($answer steps that read the" \
        "weights, $(calc "100 * $touched" %.1f) % of the experts touched where there are experts), b = $(calc "$b_us" %.1f) us a session, b1 = $b1_ns ns a resident token," \
        "prefill and encoder $(calc "$prefill_us" %.1f) us a token; 4.8 TB/s at 70 %, 989 TFLOP/s at 50 %; pool $pool blocks of 16 tokens (90 % of" \
        "141 GB less weights and 4 GB); a session adds $rate tokens/s; jitter 3 %. Assumed, not measured, and not fitted."
}

# ---- the live machine: a tiny model on this one ----

# live_model NAME FRAME_S ANSWER FRAMES: its tiny form: sets model, frame_s, answer, seconds (of that many frames), speed (how many times
# as fast as real time this machine surely is), serve (options), prompt and rate. Frames are of FRAME_S where the model lets one choose.
live_model() {
    model=$1-tiny frame_s=$2 answer=$3 speed=8
    case $1 in
    minicpm-o-4.5) frame_s=1 ;;
    moshi-7b) frame_s=0.08 answer=1 speed=4 ;;
    esac
    seconds=$(calc "$4 * $frame_s")
    serve="-m synth:$model --frame ${frame_s}s --mode free --answer-tokens $answer"
    live_call "$frame_s" "$answer" "$model"
}
# live_call FRAME_S ANSWER [MODEL]: prompt (tokens) and rate (tokens/s) of one call, as measured through a pipe.
live_call() {
    run "mt-feed -q --seconds 8 $clip | mt-serve -q ${3:+-m synth:$3 }--frame ${1}s --mode free --answer-tokens $2 --kv unbounded >$raw/one.ndjson"
    read -r prompt rate < <(jq -rs --argjson T "$1" 'map(select(.type == "frame") | .kv_tokens)
        | ((.[length - 2] - .[1]) / (length - 3)) as $frame | "\(.[1] - 2 * $frame | round) \($frame / $T)"' "$raw/one.ndjson")
}
