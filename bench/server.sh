# shellcheck shell=bash
# Server and client programs of peer benchmarks. Sourced after bench/lib.sh, not executed. The exit trap of the script must call
# stop_server.

# Timeout in seconds for the start of a server, on a busy machine.
LISTEN_TIMEOUT_S=10
# TCP port of the next server.
PORT=$((10000 + $$ % 20000))

SERVER=''
stop_server() {
    if [[ -n "$SERVER" ]]; then
        kill "$SERVER" 2>/dev/null || true
        wait "$SERVER" 2>/dev/null || true
        SERVER=''
    fi
    PORT=$((PORT + 1))
}

# start_server COMMAND...: starts a server in the background and waits until it listens on $PORT. Does not connect to it: some
# servers accept only one client.
start_server() {
    timeout "$RUN_TIMEOUT_S" "$@" >"$WORK/server" 2>&1 </dev/null &
    SERVER=$!
    local end=$((SECONDS + LISTEN_TIMEOUT_S))
    until [[ -n "$(ss -Hltn "sport = :$PORT")" ]]; do
        kill -0 "$SERVER" 2>/dev/null || die "peer server exited: $(cat "$WORK/server")"
        ((SECONDS < end)) || die "timed out: peer server does not listen: $(cat "$WORK/server")"
        sleep 0.02
    done
}

# run_client COMMAND...: runs a client with its output in $WORK/client, then stops the server.
run_client() {
    timeout "$RUN_TIMEOUT_S" "$@" >"$WORK/client" 2>&1 || die "failed: $*: $(cat "$WORK/client")"
    stop_server
}

# The ucx_perftest of `ucx`.
UCX_PERFTEST=ucx_perftest

# ucx SERIES COLUMN TRANSPORT ARGUMENTS...: runs $UCX_PERFTEST and records a column of its final line: iterations, p50, average,
# overall (us), two bandwidths (MB/s), two rates (1/s).
ucx() {
    local series="$1" column="$2" mega=1048576
    local -x UCX_TLS="$3,self"
    shift 3
    start_server taskset -c "${CORES#*,}" "$UCX_PERFTEST" "$@" -p "$PORT"
    run_client taskset -c "${CORES%,*}" "$UCX_PERFTEST" "$@" -p "$PORT" 127.0.0.1
    local value
    value="$(awk -v column="$column" '$1 == "Final:" { print $column }' "$WORK/client")"
    [[ -n "$value" ]] || die "ucx_perftest $* printed no result: $(cat "$WORK/client")"
    # Converts to ns and bytes/s; 1 MB of UCX is 2^20 bytes.
    case "$column" in
    3) value="$(awk -v v="$value" 'BEGIN { print v * 1000 }')" ;;
    7) value="$(awk -v v="$value" -v m="$mega" 'BEGIN { printf "%.0f", v * m }')" ;;
    esac
    record "$series" "$value"
}
