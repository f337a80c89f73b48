# shellcheck shell=bash
# What the private engines beside PostgreSQL have in common: Redis, NATS and Kafka run as whoever calls ./dev, on loopback,
# each in a folder of $VAR/engines. A folder holds data/, log, the ports it was given, and pid (common.sh's record) from the
# start to a wanted stop: a record whose process is gone is an engine that died.

ENGINES=$VAR/engines

engine_running() { # NAME
    process_recorded "$ENGINES/$1/pid" >/dev/null
}

# Ended without being asked to?
engine_died() { # NAME
    [ -e "$ENGINES/$1/pid" ] && ! engine_running "$1"
}

engine_port() { # NAME [FILE]
    cat "$ENGINES/$1/${2:-port}"
}

engine_address() { # NAME
    printf '127.0.0.1:%s\n' "$(engine_port "$1")"
}

# A port of its own, the last one wherever that is free: who is connected to an engine finds it again there.
engine_take_port() { # NAME [FILE]
    local file=$ENGINES/$1/${2:-port} port
    mkdir -p "$ENGINES/$1/data"
    port=$(free_port "$(cat "$file" 2>/dev/null || true)" --lasting) || die "no port is free for $1"
    printf '%s\n' "$port" >"$file"
}

# Starts a program that outlives ./dev: a session of its own, none of our locks, its output in its log.
engine_spawn() { # NAME COMMAND…
    local folder=$ENGINES/$1 pid
    shift
    if [ -e "$folder/log" ]; then mv -f "$folder/log" "$folder/log.1"; fi
    (cd "$folder" && exec setsid "$@" </dev/null >log 2>&1 6>&- 7>&- 8>&- 9>&-) &
    pid=$!
    disown "$pid"
    process_record "$pid" "$folder/pid"
}

# Waits until COMMAND succeeds; fails with the end of the log when the engine died or the time is over.
engine_wait() { # NAME SECONDS COMMAND…
    local name=$1 ticks=$(($2 * 10)) tick
    shift 2
    for ((tick = 0; tick < ticks; tick++)); do
        "$@" >/dev/null 2>&1 && return
        engine_running "$name" || break
        sleep 0.1
    done
    say "--- the end of $ENGINES/$name/log"
    tail -n 20 "$ENGINES/$name/log" >&2
    say "---"
    return 1
}

engine_stop() { # NAME
    [ -e "$ENGINES/$1/pid" ] || return 0
    process_stop "$ENGINES/$1/pid" 20 || true
    rm -f "$ENGINES/$1/pid"
}
