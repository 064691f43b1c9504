# Functions shared by the scripts of this directory. Sourced in the root of the workspace, not executed.
# shellcheck shell=bash

# shellcheck source=bench/cores.sh
. bench/cores.sh

# shellcheck disable=SC2034  # used by the scripts
VIBENCH="${CARGO_TARGET_DIR:-$PWD/target}/release/vibench" RUN_TIMEOUT_S=120

die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

# shellcheck disable=SC2034  # used by the scripts
QUICK=no CHECK=no RESULTS=/dev/null
# parse_arguments ARGUMENT...: reads the arguments that all scripts have. The help text is the comment at the start of the script.
# shellcheck disable=SC2034  # used by the scripts
parse_arguments() {
    while (($# > 0)); do
        case "$1" in
        --quick) QUICK=yes ;;
        --check) CHECK=yes ;;
        --json)
            (($# > 1)) || die '--json needs a file'
            RESULTS="$(cd "$OLDPWD" && realpath -m "$2")"
            shift
            ;;
        -h | --help)
            sed -n '2,/^set /s/^# //p' "bench/$(basename "$0")"
            exit 0
            ;;
        *) die "unknown argument '$1': see --help" ;;
        esac
        shift
    done
    : >"$RESULTS" || die "cannot write $RESULTS"
}

CORES="${VIBENCH_CORES:-$(allowed_cores | head -n 2 | paste -sd,)}"
[[ "$CORES" =~ ^[0-9]+,[0-9]+$ ]] || die "two cores are needed, available: $CORES"

WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT

build_vibench() {
    echo "building vibench" >&2
    cargo build --locked --release --quiet -p vibench --bin vibench
}

# record SERIES VALUE: appends a value to a series.
record() { echo "$2" >>"$WORK/$1"; }

# json_value KEY: prints the first value of KEY in the results of vibench, which is the stack's; later ones are the control's.
json_value() {
    local value
    value="$(awk -F': ' -v key="\"$1\"" '$1 ~ key { sub(/,$/, "", $2); print $2; exit }' "$WORK/json")"
    [[ "$value" =~ ^[0-9.eE+-]+$ ]] || die "no $1 in the results of vibench"
    echo "$value"
}

# median SERIES: prints the median of a series.
median() { sort -g "$WORK/$1" | awk '{ v[NR] = $1 } END { m = int((NR + 1) / 2); print NR % 2 ? v[m] : (v[m] + v[m + 1]) / 2 }'; }

# scaled_median SERIES DIVISOR: prints the median of a series in another unit.
scaled_median() { awk -v v="$(median "$1")" -v d="$2" 'BEGIN { print v / d }'; }

# median_of_pairs A OPERATOR B: prints the median of `a OPERATOR b` over the repetitions; a quotient by 0 is infinite.
median_of_pairs() {
    paste "$WORK/$1" "$WORK/$3" | awk "{ print \$2 == 0 && \"$2\" == \"/\" ? \"inf\" : \$1 $2 \$2 }" >"$WORK/$1-$3"
    median "$1-$3"
}

# The latency between two cores of a virtual machine changes at run time, by a factor of up to three. A group of measurements
# during which it changed is repeated, and ratios are computed within a group. Results with near cores and with far ones are also
# kept apart, as SERIES.near and SERIES.far.
TRIES=4
# Up to this round trip of a cache line the cores are near each other, in ns: 100 to 290 were seen, and 520 to 560 between far ones.
NEAR_NS=400
# distance NS: prints whether cores with this round trip are near each other or far.
distance() { if (($1 <= NEAR_NS)); then echo near; else echo far; fi; }
# core_latency: prints the round trip of a cache line between the cores, in ns.
core_latency() { "$VIBENCH" core-latency --cores "$CORES" | awk '{ print $(NF - 1) }'; }
# measure_stable GROUP SERIES...: runs the function GROUP until the core latency is the same before and after, up to TRIES times;
# removes the values of unsuccessful tries from the series.
measure_stable() {
    local group="$1" before after series
    shift
    for ((try = 0; try < TRIES; try++)); do
        before="$(core_latency)"
        "$group"
        after="$(core_latency)"
        if is_at_most "$before" "$((after * 4 / 3))" && is_at_most "$after" "$((before * 4 / 3))"; then
            record core-latency "$after"
            for series; do tail -n 1 "$WORK/$series" >>"$WORK/$series.$(distance "$after")"; done
            return
        fi
        for series; do sed -i '$d' "$WORK/$series"; done
    done
}

# require_samples SERIES...: fails unless more than half of the repetitions have a value.
require_samples() {
    local series
    for series; do
        touch "$WORK/$series"
        (($(wc -l <"$WORK/$series") > REPETITIONS / 2)) ||
            die "the core latency changed too often: repeat the run, or use a host with dedicated cores"
    done
}

# commit: prints the commit, and whether there are local changes.
commit() {
    local name
    name="$(git rev-parse --short HEAD 2>/dev/null)" || name='none'
    [[ -z "$(git status --porcelain 2>/dev/null)" ]] || name+=' with changes'
    echo "$name"
}

# print_progress REPETITION: prints it on a terminal; without an argument removes the line.
print_progress() {
    [[ -t 2 ]] || return 0
    printf '\r\033[K%s' "${1:+repetition $1 of $REPETITIONS }" >&2
}

# print_environment: prints the machine and the commit, and writes them to the results.
print_environment() {
    local processor
    processor="$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)"
    printf 'machine   %s, cores %s, kernel %s\n' "$processor" "$CORES" "$(uname -r)"
    printf 'commit    %s\n' "$(commit)"
    printf '{"benchmark": "%s", "processor": "%s", "kernel": "%s", "commit": "%s"}\n' \
        "$(basename "$0")" "$processor" "$(uname -r)" "$(commit)" >>"$RESULTS"
}

# print_heading WHAT: prints the heading of a table of rows.
print_heading() {
    printf 'medians of %d repetitions in turn; ratio = vibench / peer, the median over the repetitions\n\n' "$REPETITIONS"
    printf '%-42s %8s %-5s %-32s %8s %6s\n' "$1" vibench '' peer '' ratio
}

# row WHAT UNIT DIVISOR SERIES [PEER_SERIES=PEER...]: prints the median of a series beside those of its peers, and writes one JSON
# object for each peer to the results. If the cores were near in some repetitions and far in others, prints those as well.
row() {
    local what="$1" unit="$2" divisor="$3" series="$4" peer
    shift 4
    (($# > 0)) || printf '%-42s %8.3f %s\n' "$what" "$(scaled_median "$series" "$divisor")" "$unit"
    for peer; do
        print_row '' "$what" "$unit" "$divisor" "$series" "$peer"
        if [[ -s "$WORK/$series.near" && -s "$WORK/$series.far" ]]; then
            print_row near "$what" "$unit" "$divisor" "$series" "$peer"
            print_row far "$what" "$unit" "$divisor" "$series" "$peer"
        fi
    done
}

# print_row DISTANCE WHAT UNIT DIVISOR SERIES PEER_SERIES=PEER: prints a row of the table, of the repetitions in which the cores had
# this distance, or of all if it is empty.
print_row() {
    local distance="$1" what="$2" unit="$3" divisor="$4" series="$5${1:+.$1}" peer="${6#*=}" peer_series="${6%%=*}${1:+.$1}"
    local ours theirs ratio label="$2"
    ours="$(scaled_median "$series" "$divisor")"
    theirs="$(scaled_median "$peer_series" "$divisor")"
    ratio="$(median_of_pairs "$series" / "$peer_series")"
    [[ "$ratio" != inf ]] || die "no result: $peer"
    if [[ -n "$distance" ]]; then
        label="  the same, $distance cores" what+=", $distance cores"
    fi
    printf '%-42s %8.3f %-5s %-32s %8.3f %6.2f\n' "$label" "$ours" "$unit" "$peer" "$theirs" "$ratio"
    printf '{"measure": "%s", "unit": "%s", "value": %s, "peer": "%s", "peer_value": %s, "ratio": %s}\n' \
        "$what" "$unit" "$ours" "$peer" "$theirs" "$ratio" >>"$RESULTS"
}

print_core_latency() {
    local ns
    printf 'cores     cache line round trip from core to core:'
    while read -r ns; do printf ' %s (%s)' "$ns" "$(distance "$ns")"; done < <(sort -gu "$WORK/core-latency")
    printf ' ns\n'
}

# is_at_most A B: tests A <= B; decimal numbers.
is_at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }

# goal NAME A B: reports whether the goal A <= B is met.
MISSED=0
goal() {
    if is_at_most "$2" "$3"; then
        printf 'goal met      %s\n' "$1"
    else
        printf 'goal MISSED   %s\n' "$1"
        MISSED=$((MISSED + 1))
    fi
}

# exit_on_missed_goals: with --check, exits with status 1 if a goal is missed.
exit_on_missed_goals() {
    if [[ "$CHECK" == yes ]] && ((MISSED > 0)); then
        exit 1
    fi
}
