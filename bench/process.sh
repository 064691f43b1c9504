# shellcheck shell=bash
# A private datapath process on shared memory. Sourced after ci/lib.sh or bench/lib.sh, not executed. The exit trap of the
# script must call stop_process.

# Timeout in seconds for the start of the process, on a busy machine.
READY_TIMEOUT_S=60

# start_process CORE: starts the process on a core and waits until it is ready. Sets PROCESS_CORE, PROCESS_CONFIG (the
# configuration for its applications), and PROCESS_LOG (the file of its log).
start_process() {
    PROCESS_CORE="$1"
    PROCESS_DIRECTORY="$(mktemp -d "${TMPDIR:-/tmp}/viaduct-process.XXXXXX")"
    PROCESS_CONFIG="$PROCESS_DIRECTORY/pmd.toml"
    PROCESS_LOG="$PROCESS_DIRECTORY/log"
    cat >"$PROCESS_CONFIG" <<TOML
[process]
socket = "$PROCESS_DIRECTORY/pmd.sock"
idle = "hybrid"
# The benchmark is the only user of the NIC: hundreds of idle VIs exceed the default share.
default_share = 1
[[nic]]
shm.segment = "process-$$"
limits.max_vi = 2048
progress.pinned.core = $PROCESS_CORE
TOML
    local pipe="$PROCESS_DIRECTORY/pipe"
    mkfifo "$pipe"
    "${CARGO_TARGET_DIR:-$ROOT/target}/release/fcvi-pmd" run --config "$PROCESS_CONFIG" 2>"$pipe" &
    PROCESS_ID=$!
    local line log_fd
    exec {log_fd}<"$pipe"
    while read -r -t "$READY_TIMEOUT_S" -u "$log_fd" line; do
        echo "$line" >>"$PROCESS_LOG"
        [[ "$line" == *ready ]] || continue
        # Read the rest of the log as well, so that the process never blocks on a full pipe.
        cat <&"$log_fd" >>"$PROCESS_LOG" &
        exec {log_fd}<&-
        return
    done
    exec {log_fd}<&-
    die "fcvi-pmd did not start: $(cat "$PROCESS_LOG")"
}

# stop_process: stops the process, if it is running, and removes its files.
stop_process() {
    if [[ -n "${PROCESS_ID:-}" ]]; then
        kill "$PROCESS_ID" 2>/dev/null || true
        wait "$PROCESS_ID" 2>/dev/null || true
        PROCESS_ID=""
    fi
    [[ -z "${PROCESS_DIRECTORY:-}" ]] || rm -rf "$PROCESS_DIRECTORY"
    PROCESS_DIRECTORY=""
}
