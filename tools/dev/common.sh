# shellcheck shell=bash disable=SC2034 # the paths are used by the other parts
# Paths, messages and the few process helpers that every part of ./dev uses. Sourced, never run.
# Progress goes to stderr, so that what a command prints on stdout is its answer and nothing else.

: "${ROOT:?}"
VAR=$(realpath -m -- "${FRESHET_VAR:-$ROOT/var}")
PORT=${FRESHET_PORT:-8080}
# Debian's own, which the packages' modules belong to, whatever stands first on the PATH.
PYTHON=/usr/bin/python3
CONFIG=$(realpath -m -- "${FRESHET_CONFIG:-$ROOT/config/freshet.yaml}")

say() {
    printf '%s\n' "$*" >&2
}

die() {
    printf './dev: %s\n' "$*" >&2
    exit 1
}

# A mistake in how ./dev was called.
misuse() {
    printf './dev: %s\n' "$*" >&2
    exit 2
}

is_root() {
    [ "$(id -u)" -eq 0 ]
}

# A process is named by its pid and its start time, so that a reused pid is never taken for it.
process_identity() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The command's name, field 2, may hold spaces: count from its closing bracket.
    stat=${stat##*) }
    # shellcheck disable=SC2086 # fields are words
    set -- "$1" $stat
    [ "$2" != Z ] || return 1
    printf '%s %s\n' "$1" "${21}"
}

process_record() { # PID FILE
    process_identity "$1" >"$2"
}

# Prints the pid that FILE names if that very process still lives.
process_recorded() { # FILE
    local pid start
    read -r pid start 2>/dev/null <"$1" || return 1
    [ "$(process_identity "$pid")" = "$pid $start" ] || return 1
    printf '%s\n' "$pid"
}

# TERM, then KILL once the patience (in seconds) is over. Fails when it had to kill.
process_stop() { # FILE PATIENCE
    local pid tick
    pid=$(process_recorded "$1") || return 0
    kill -TERM "$pid" 2>/dev/null || true
    for ((tick = 0; tick < $2 * 10; tick++)); do
        process_recorded "$1" >/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    return 1
}

# Prints the wanted loopback port when it is free, else any free one (or fails with --exactly). With --lasting, any is one
# that no client is ever given: it will be free again for a server that comes back.
free_port() { # WANTED [--exactly|--lasting]
    "$PYTHON" - "$@" <<'EOF'
import random, socket, sys
wanted, how = int(sys.argv[1] or 0), sys.argv[2:]
others = [0]
if how == ["--exactly"]:
    others = []
elif how == ["--lasting"]:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    outside = [port for port in range(10240, 65536) if not first <= port <= last]
    others = random.sample(outside, min(100, len(outside))) + [0]
for port in [wanted, *others] if wanted else others:
    with socket.socket() as s:
        if how:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
        print(s.getsockname()[1])
        sys.exit(0)
sys.exit(1)
EOF
}
