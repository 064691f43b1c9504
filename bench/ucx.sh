# shellcheck shell=bash
# The newest UCX, beside Debian's. Sourced after bench/server.sh, not executed.

NEW_UCX_VERSION=1.22.0
# The root of the workspace, in which the scripts run.
NEW_UCX="$PWD/target/ucx-$NEW_UCX_VERSION/libucx"

# install_new_ucx: installs the newest UCX from PyPI below target/, unless it is there, and builds bench/ucx-stream.c with it.
install_new_ucx() {
    if [[ ! -x "$NEW_UCX/bin/ucx_perftest" ]]; then
        python3 -m pip --version >/dev/null 2>&1 || die 'pip is missing: run apt-get install python3-pip'
        echo "installing UCX $NEW_UCX_VERSION from PyPI" >&2
        rm -rf "${NEW_UCX%/*}"
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "${NEW_UCX%/*}" \
            "libucx-cu12==$NEW_UCX_VERSION" || die "cannot install libucx-cu12 $NEW_UCX_VERSION from PyPI"
        chmod +x "$NEW_UCX"/bin/*
    fi
    cc -O3 -std=c11 -Wall -Wextra -Werror bench/ucx-stream.c -isystem "$NEW_UCX/include" -L "$NEW_UCX/lib" \
        -lucp -lucs -o "$WORK/ucx-stream"
}

# new_ucx SERIES COLUMN TRANSPORT ARGUMENTS...: as ucx, with the newest UCX.
new_ucx() { LD_LIBRARY_PATH="$NEW_UCX/lib" UCX_PERFTEST="$NEW_UCX/bin/ucx_perftest" ucx "$@"; }

# ucx_stream SERIES SIZE MESSAGES: records the bytes per second of a stream whose messages are written before they are sent, and
# read when they have arrived.
ucx_stream() {
    local series="$1" value
    local -x UCX_TLS=shm,self LD_LIBRARY_PATH="$NEW_UCX/lib"
    shift
    start_server taskset -c "${CORES#*,}" "$WORK/ucx-stream" "$PORT" "$@"
    run_client taskset -c "${CORES%,*}" "$WORK/ucx-stream" "$PORT" "$@" 127.0.0.1
    value="$(cat "$WORK/client")"
    [[ "$value" =~ ^[0-9]+$ ]] || die "ucx-stream $* printed no result: $value"
    record "$series" "$value"
}
