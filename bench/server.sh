# shellcheck shell=bash
# The server of a peer, one at a time. Sourced after bench/lib.sh, never run. What the script has done at its end calls
# end_server.

# How long one may take to listen, on a busy machine.
LISTEN_LIMIT_S=10
# Where the next one listens.
PORT=$((10000 + $$ % 20000))

SERVER=''
end_server() {
    if [[ -n "$SERVER" ]]; then
        kill "$SERVER" 2>/dev/null || true
        wait "$SERVER" 2>/dev/null || true
        SERVER=''
    fi
    PORT=$((PORT + 1))
}

# start_server COMMAND...: in the background, until somebody listens on $PORT; connecting to it would take the server's one client.
start_server() {
    timeout "$RUN_LIMIT_S" "$@" >"$WORK/server" 2>&1 </dev/null &
    SERVER=$!
    local end=$((SECONDS + LISTEN_LIMIT_S))
    until [[ -n "$(ss -Hltn "sport = :$PORT")" ]]; do
        kill -0 "$SERVER" 2>/dev/null || die "a peer's server ended at once: $(cat "$WORK/server")"
        ((SECONDS < end)) || die "a peer's server does not listen: $(cat "$WORK/server")"
        sleep 0.02
    done
}

# client COMMAND...: its output goes to $WORK/client, and the server ends with it.
client() {
    timeout "$RUN_LIMIT_S" "$@" >"$WORK/client" 2>&1 || die "failed: $*: $(cat "$WORK/client")"
    end_server
}

# ucx SERIES COLUMN TRANSPORT ARGUMENTS...: from the final line, which has iterations, p50, average, overall (us), two bandwidths
# (MB/s), two rates (1/s).
ucx() {
    local series="$1" column="$2" mega=1048576
    local -x UCX_TLS="$3,self"
    shift 3
    start_server taskset -c "${CORES#*,}" ucx_perftest "$@" -p "$PORT"
    client taskset -c "${CORES%,*}" ucx_perftest "$@" -p "$PORT" 127.0.0.1
    local value
    value="$(awk -v column="$column" '$1 == "Final:" { print $column }' "$WORK/client")"
    [[ -n "$value" ]] || die "ucx_perftest $* printed no result: $(cat "$WORK/client")"
    # Latencies in ns; bandwidth in bytes/s, where UCX counts 2^20 bytes as MB.
    case "$column" in
    3) value="$(awk -v v="$value" 'BEGIN { print v * 1000 }')" ;;
    7) value="$(awk -v v="$value" -v m="$mega" 'BEGIN { printf "%.0f", v * m }')" ;;
    esac
    note "$series" "$value"
}
