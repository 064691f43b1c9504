# What the scripts of this directory share. Sourced in the root of the workspace, never run.
# shellcheck shell=bash

# shellcheck source=bench/cores.sh
. bench/cores.sh

# shellcheck disable=SC2034  # for the scripts
VIBENCH="${CARGO_TARGET_DIR:-$PWD/target}/release/vibench" RUN_LIMIT_S=120

die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

CORES="${VIBENCH_CORES:-$(allowed_cores | head -n 2 | paste -sd,)}"
[[ "$CORES" =~ ^[0-9]+,[0-9]+$ ]] || die "two cores are needed; these may be used: $CORES"

WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT

build_vibench() {
    echo "building vibench" >&2
    cargo build --locked --release --quiet -p vibench --bin vibench
}

# note SERIES VALUE
note() { echo "$2" >>"$WORK/$1"; }

# of_json KEY: the first value of the key in the results of vibench is ours, later ones the control's.
of_json() {
    local value
    value="$(awk -F': ' -v key="\"$1\"" '$1 ~ key { sub(/,$/, "", $2); print $2; exit }' "$WORK/json")"
    [[ "$value" =~ ^[0-9.eE+-]+$ ]] || die "no $1 in the results of vibench"
    echo "$value"
}

median() { sort -g "$WORK/$1" | awk '{ v[NR] = $1 } END { m = int((NR + 1) / 2); print NR % 2 ? v[m] : (v[m] + v[m + 1]) / 2 }'; }

# together A OPERATOR B: the median of what it comes to, repetition by repetition.
together() {
    paste "$WORK/$1" "$WORK/$3" | awk "{ print \$1 $2 \$2 }" >"$WORK/$1-$3"
    median "$1-$3"
}

# Two cores of a virtual machine are near each other at one time and far at another, and everything between them takes up to
# three times as long. What was measured while that changed is measured again, and ratios are of what was measured together.
TRIES=4
distance() { "$VIBENCH" distance --cores "$CORES" | awk '{ print $(NF - 1) }'; }
# steady GROUP SERIES...
steady() {
    local group="$1" before after series
    shift
    for ((try = 0; try < TRIES; try++)); do
        before="$(distance)"
        "$group"
        after="$(distance)"
        if is_at_most "$before" "$((after * 4 / 3))" && is_at_most "$after" "$((before * 4 / 3))"; then
            note distance "$after"
            return
        fi
        for series; do sed -i '$d' "$WORK/$series"; done
    done
}

# measured_enough SERIES...: of most repetitions.
measured_enough() {
    local series
    for series; do
        touch "$WORK/$series"
        (($(wc -l <"$WORK/$series") > REPETITIONS / 2)) ||
            die "the cores were moved too often: start it again, or where nobody moves them"
    done
}

commit() {
    local name
    name="$(git rev-parse --short HEAD 2>/dev/null)" || name='none'
    [[ -z "$(git status --porcelain 2>/dev/null)" ]] || name+=' with changes'
    echo "$name"
}

print_setting() {
    printf 'machine   %s, cores %s, kernel %s\n' \
        "$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)" "$CORES" "$(uname -r)"
    printf 'commit    %s\n' "$(commit)"
}

print_distance() {
    printf 'distance  a cache line from core to core and back: %s ns\n' "$(sort -g "$WORK/distance" | uniq | paste -sd' ')"
}

is_at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }

# goal WHAT LEAST MOST: met if the one is at most the other.
MISSED=0
goal() {
    if is_at_most "$2" "$3"; then
        printf 'goal met      %s\n' "$1"
    else
        printf 'goal MISSED   %s\n' "$1"
        MISSED=$((MISSED + 1))
    fi
}

# end_with_goals yes|no: with yes, a missed goal is a failure.
end_with_goals() {
    if [[ "$1" == yes ]] && ((MISSED > 0)); then
        exit 1
    fi
}
