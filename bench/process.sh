# shellcheck shell=bash
# A datapath process of a script's own, on shared memory. Sourced after ci/lib.sh or bench/lib.sh, never run. What the script
# has done at its end calls stop_process.

# How long the process may take to be ready, on a busy machine.
READY_LIMIT_S=60

# Starts it on a core and waits until programs can attach. Sets PROCESS_CORE, and PROCESS_CONFIG for its programs; what it
# says is in PROCESS_LOG.
# usage: start_process CORE
start_process() {
    PROCESS_CORE="$1"
    PROCESS_DIRECTORY="$(mktemp -d "${TMPDIR:-/tmp}/viaduct-process.XXXXXX")"
    PROCESS_CONFIG="$PROCESS_DIRECTORY/pmd.toml"
    PROCESS_LOG="$PROCESS_DIRECTORY/log"
    cat >"$PROCESS_CONFIG" <<TOML
[process]
socket = "$PROCESS_DIRECTORY/pmd.sock"
idle = "hybrid"
# The programs of the benchmark have the NIC to themselves: hundreds of idle VIs are more than a share of it.
default_share = 1
[[nic]]
port = "shm"
segment = "process-$$"
max_vi = 2048
core = $PROCESS_CORE
TOML
    local pipe="$PROCESS_DIRECTORY/pipe"
    mkfifo "$pipe"
    "${CARGO_TARGET_DIR:-$ROOT/target}/release/fcvi-pmd" run --config "$PROCESS_CONFIG" 2>"$pipe" &
    PROCESS_ID=$!
    local line says
    exec {says}<"$pipe"
    while read -r -t "$READY_LIMIT_S" -u "$says" line; do
        echo "$line" >>"$PROCESS_LOG"
        [[ "$line" == *ready ]] || continue
        # Whatever it says from now on: nobody lets it wait for a reader.
        cat <&"$says" >>"$PROCESS_LOG" &
        exec {says}<&-
        return
    done
    exec {says}<&-
    die "fcvi-pmd did not start: $(cat "$PROCESS_LOG")"
}

# Ends it, if it runs, and takes its files away.
stop_process() {
    if [[ -n "${PROCESS_ID:-}" ]]; then
        kill "$PROCESS_ID" 2>/dev/null || true
        wait "$PROCESS_ID" 2>/dev/null || true
        PROCESS_ID=""
    fi
    [[ -z "${PROCESS_DIRECTORY:-}" ]] || rm -rf "$PROCESS_DIRECTORY"
    PROCESS_DIRECTORY=""
}
