# shellcheck shell=bash
# `stack`: all engines together, started side by side. PostgreSQL is postgres.sh's, the others are in a file each, with the
# functions ENGINE_start (does nothing to one that runs), _stop, _running and _status.

STACK=(postgres redis nats kafka)

postgres_running() { pg_running; }
postgres_start() { pg_start; }
postgres_stop() { pg_stop; }
postgres_status() {
    if pg_running; then
        printf 'postgres 127.0.0.1:%s\n' "$(cat "$VAR/pg/port")"
    elif pg_died; then
        printf 'postgres down\n'
    fi
}

# Starts what does not run of the whole stack, or mends what died. One at a time per $VAR.
stack_up() {
    packages_ensure run engines
    mkdir -p "$ENGINES"
    (
        flock 6
        local engine pids=() failed=0
        for engine in "${STACK[@]}"; do
            "${engine}_start" &
            pids+=($!)
        done
        for engine in "${pids[@]}"; do wait "$engine" || failed=1; done
        exit "$failed"
    ) 6>"$ENGINES/lock" || die "the engines did not all start; ./dev stack down stops those that did"
}

# Stops these, or all.
stack_down() { # [ENGINE…]
    local engine pids=() failed=0
    [ $# -gt 0 ] || set -- "${STACK[@]}"
    for engine in "$@"; do
        "${engine}_stop" &
        pids+=($!)
    done
    for engine in "${pids[@]}"; do wait "$engine" || failed=1; done
    return "$failed"
}

# Prints a line each; fails when nothing runs or something has died.
stack_status() {
    local engine lines
    lines=$(for engine in "${STACK[@]}"; do "${engine}_status"; done)
    [ -n "$lines" ] || die "nothing runs for $VAR"
    printf '%s\n' "$lines"
    ! grep -q ' down$' <<<"$lines" || die "something has died: ./dev stack up starts it again"
}

# Those of the stack that do not run now: who starts it has these to stop.
stack_missing() {
    local engine
    for engine in "${STACK[@]}"; do
        "${engine}_running" || printf '%s\n' "$engine"
    done
}

stack_command() {
    [ $# -eq 1 ] || misuse "stack takes one of: up down status"
    case $1 in
    up)
        stack_up
        stack_status >&2
        ;;
    down) stack_down ;;
    status) stack_status ;;
    *) misuse "stack takes one of: up down status" ;;
    esac
}
