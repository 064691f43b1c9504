# shellcheck shell=bash
# CPU affinity of a script. Sourced, not executed.

# allowed_cores: prints the cores that this shell may use, one per line.
allowed_cores() {
    local list part
    list="$(LC_ALL=C taskset --cpu-list --pid $$)"
    list="${list##* }"
    for part in ${list//,/ }; do
        seq "${part%-*}" "${part#*-}"
    done
}
