# shellcheck shell=bash
# The cores of a script. Sourced, never run.

# allowed_cores: those that this shell may use, a line each.
allowed_cores() {
    local list part
    list="$(LC_ALL=C taskset --cpu-list --pid $$)"
    list="${list##* }"
    for part in ${list//,/ }; do
        seq "${part%-*}" "${part#*-}"
    done
}
