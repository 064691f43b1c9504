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

# median_of_pairs A OPERATOR B: prints the median of `a OPERATOR b` over the repetitions.
median_of_pairs() {
    paste "$WORK/$1" "$WORK/$3" | awk "{ print \$1 $2 \$2 }" >"$WORK/$1-$3"
    median "$1-$3"
}

# The latency between two cores of a virtual machine changes at run time, by a factor of up to three. A group of measurements
# during which it changed is repeated, and ratios are computed within a group.
TRIES=4
# core_latency: prints the round trip of a cache line between the cores, in ns.
core_latency() { "$VIBENCH" distance --cores "$CORES" | awk '{ print $(NF - 1) }'; }
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

print_environment() {
    printf 'machine   %s, cores %s, kernel %s\n' \
        "$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)" "$CORES" "$(uname -r)"
    printf 'commit    %s\n' "$(commit)"
}

print_core_latency() {
    printf 'cores     cache line round trip from core to core: %s ns\n' "$(sort -g "$WORK/core-latency" | uniq | paste -sd' ')"
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

# exit_on_missed_goals yes|no: with yes, exits with status 1 if a goal is missed.
exit_on_missed_goals() {
    if [[ "$1" == yes ]] && ((MISSED > 0)); then
        exit 1
    fi
}
