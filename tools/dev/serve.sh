# shellcheck shell=bash
# `run`, `down`, `freshet` and `bench`: everything that starts the program itself.
# `run` holds $VAR/run.lock as long as it lives; run.pid and server.pid let `down` find what is left.

freshet_bin() {
    printf '%s/src/app/freshet\n' "$(build_dir release)"
}

# What the program sees: the configuration and the engines of the running `run` unless FRESHET_CONFIG says otherwise.
# Without a PostgreSQL yet (`freshet token` needs none) the URL leads nowhere.
freshet_env() {
    if process_recorded "$VAR/run.pid" >/dev/null && [ -e "$VAR/run.config" ]; then
        [ -n "${FRESHET_CONFIG:-}" ] || CONFIG=$(cat "$VAR/run.config")
        [ ! -e "$VAR/run.engines" ] || freshet_env_engines
    fi
    export FRESHET_VAR=$VAR FRESHET_CONFIG=$CONFIG FRESHET_PORT=$PORT
    FRESHET_PG_URL=$(cat "$VAR/pg/url" 2>/dev/null || echo postgresql://freshet@127.0.0.1:1/freshet)
    export FRESHET_PG_URL
}

# Where the engines are and what each carries: names that config/freshet.yaml reads.
freshet_env_engines() {
    local node
    for node in "${REDIS_NODES[@]}"; do
        export "FRESHET_REDIS_${node#redis-}=$(engine_address "$node")"
    done
    FRESHET_NATS=$(engine_address nats)
    export FRESHET_NATS FRESHET_EVENTS=nats FRESHET_INVALIDATIONS=redis
    if kafka_running; then
        FRESHET_KAFKA=$(engine_address kafka)
        export FRESHET_KAFKA FRESHET_COMMANDS=kafka
    fi
}

freshet_command() {
    if [ ! -x "$(freshet_bin)" ]; then
        packages_ensure run
        build_flavour release
    fi
    freshet_env
    exec "$(freshet_bin)" "$@"
}

# How the user would call ./dev from where they stand, for this $VAR.
dev_as_typed() {
    [ "$VAR" = "$ROOT/var" ] || printf 'FRESHET_VAR=%q ' "$VAR"
    if [ "$PWD" = "$ROOT" ]; then echo ./dev; else printf '%q\n' "$ROOT/dev"; fi
}

run_command() {
    local arg
    RUN_ENGINES=0 RUN_STARTED=()
    for arg in "$@"; do
        case $arg in
        --engines) RUN_ENGINES=1 ;;
        *) misuse "run takes no argument '$arg'" ;;
        esac
    done
    packages_ensure run
    run_claim
    trap run_cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    run_check_port
    build_flavour release
    run_start_engines
    freshet_env
    run_prepare
    run_serve
    run_greet
    trap 'exit 0' INT TERM HUP
    wait "$RUN_SERVER" || true
    run_failed "the server ended by itself"
}

# Remembers what it starts: that is what it stops at the end.
run_start_engines() {
    if [ "$RUN_ENGINES" = 1 ]; then
        mapfile -t RUN_STARTED < <(stack_missing)
        stack_up
        touch "$VAR/run.engines"
    elif ! pg_running; then
        RUN_STARTED=(postgres)
        pg_start
    fi
}

# One `run` per $VAR. What an earlier one left behind after being killed is stopped first.
run_claim() {
    local pid
    mkdir -p "$VAR/log"
    exec 9>>"$VAR/run.lock"
    if ! flock -n 9; then
        pid=$(process_recorded "$VAR/run.pid" || echo '?')
        die "already running for $VAR (pid $pid, log $VAR/log/freshet.log); stop it with ./dev down"
    fi
    process_record $$ "$VAR/run.pid"
    printf '%s\n' "$CONFIG" >"$VAR/run.config"
    rm -f "$VAR/run.engines"
    process_stop "$VAR/server.pid" 15 || true
}

run_check_port() {
    case $PORT in
    '' | *[!0-9]*) misuse "FRESHET_PORT must be a number, not '$PORT'" ;;
    esac
    free_port "$PORT" --exactly >/dev/null ||
        die "port $PORT is taken; choose another one: FRESHET_PORT=8081 ./dev run"
}

# The schema, and for the default configuration the demo's own tables and rows.
run_prepare() {
    [ -e "$CONFIG" ] || die "no configuration at $CONFIG"
    "$(freshet_bin)" migrate --config "$CONFIG" >"$VAR/log/migrate.log" 2>&1 || {
        cat "$VAR/log/migrate.log" >&2
        die "could not migrate the database"
    }
    [ "$CONFIG" != "$ROOT/config/freshet.yaml" ] || psql_command -X -q -v ON_ERROR_STOP=1 -f "$ROOT/config/demo.sql" 2>>"$VAR/log/migrate.log" ||
        die "could not make the demo's tables, see $VAR/log/migrate.log"
}

run_serve() {
    local log=$VAR/log/freshet.log tick
    # Also makes the development key when there is none yet, which the server then trusts.
    RUN_TOKEN=$("$(freshet_bin)" token --tenant demo --scope "ops:read ops:write ops:all-tenants") || die "could not issue a development token"
    if [ -e "$log" ]; then mv -f "$log" "$log.1"; fi
    # A session of its own, so that Ctrl-C reaches it through us and once.
    setsid "$(freshet_bin)" serve --config "$CONFIG" --listen "127.0.0.1:$PORT" \
        </dev/null >"$log" 2>&1 9>&- &
    RUN_SERVER=$!
    process_record "$RUN_SERVER" "$VAR/server.pid" || run_failed "the server did not start"
    for ((tick = 0; tick < 600; tick++)); do
        if curl -fs -o /dev/null -m 2 "http://127.0.0.1:$PORT/actuator/health/readiness"; then
            return
        fi
        process_recorded "$VAR/server.pid" >/dev/null || run_failed "the server did not start"
        sleep 0.1
    done
    run_failed "the server is not ready after a minute"
}

run_failed() {
    say "--- the end of $VAR/log/freshet.log"
    tail -n 20 "$VAR/log/freshet.log" >&2
    say "---"
    die "$1"
}

run_greet() {
    local dev url=http://127.0.0.1:$PORT path
    dev=$(dev_as_typed)
    cat <<EOF

freshet is up    $url
console          $url/console
log              $VAR/log/freshet.log
demo token       $RUN_TOKEN
EOF
    [ "$RUN_ENGINES" = 0 ] || run_greet_engines
    printf '\nTry, in another terminal:\n\n'
    for path in items/DE all version; do
        local dict=COUNTRY
        [ "$path" = all ] && dict=CURRENCY
        echo "  curl -H \"Authorization: Bearer \$($dev freshet token --tenant demo)\"" \
            "$url/v1/tenants/demo/dictionaries/$dict/$path"
    done
    printf '\nCtrl-C stops it.\n'
}

run_greet_engines() {
    local commands="PostgreSQL (there is no Kafka here)"
    [ "${FRESHET_COMMANDS:-}" != kafka ] || commands="Kafka $FRESHET_KAFKA"
    cat <<EOF
commands         $commands
invalidations    Redis Cluster $(redis_addresses | paste -sd,)
events           NATS $FRESHET_NATS
EOF
}

run_cleanup() {
    local status=$?
    trap '' INT TERM HUP
    set +e
    if process_recorded "$VAR/server.pid" >/dev/null; then
        say "stopping"
        process_stop "$VAR/server.pid" 40 || status=1
    fi
    if [ -n "${RUN_SERVER:-}" ] && [ "$status" -eq 0 ]; then
        wait "$RUN_SERVER" || { say "the server did not stop cleanly, see $VAR/log/freshet.log" && status=1; }
    fi
    [ ${#RUN_STARTED[@]} -eq 0 ] || stack_down "${RUN_STARTED[@]}"
    rm -f "$VAR/server.pid" "$VAR/run.pid" "$VAR/run.config" "$VAR/run.engines"
    exit "$status"
}

down_command() {
    [ $# -eq 0 ] || misuse "down takes no arguments"
    # `run` itself goes first: it stops its server and the engines it started on the way out.
    process_stop "$VAR/run.pid" 60 || true
    process_stop "$VAR/server.pid" 40 || true
    rm -f "$VAR/run.pid" "$VAR/run.config" "$VAR/run.engines" "$VAR/server.pid"
    stack_down
}

# Is a bench on the engines among the arguments, or nothing named and so everything? The word after an option that takes one is
# no name.
bench_has_engines() { # ARGS…
    local word is_named=0 is_value=0
    for word in "$@"; do
        if [ "$is_value" = 1 ]; then
            is_value=0
            continue
        fi
        case $word in
        --compare | --rounds | --seconds) is_value=1 ;;
        fleet | recovery) return 0 ;;
        [a-z]*) is_named=1 ;;
        esac
    done
    [ "$is_named" = 0 ]
}

# The commit that `--compare REF` names, or nothing.
bench_compared() { # ARGS…
    local ref='' is_value=0 word
    for word in "$@"; do
        [ "$is_value" = 1 ] && ref=$word
        is_value=0
        case $word in
        --compare) is_value=1 ;;
        --compare=*) ref=${word#--compare=} ;;
        esac
    done
    [ -n "$ref" ] || return 0
    git -C "$ROOT" rev-parse --verify --quiet --short=12 "$ref^{commit}" || misuse "bench --compare: there is no commit '$ref' here"
}

# Builds COMMIT beside this one, from its own files, as release with its bench programs; sets FRESHET_COMPARED_BUILD.
bench_build_compared() { # COMMIT
    local folder=$VAR/compare/$1
    if [ ! -d "$folder/source" ]; then
        mkdir -p "$folder/unpacked"
        git -C "$ROOT" archive "$1" | tar -x -C "$folder/unpacked" || die "commit $1 could not be unpacked"
        mv "$folder/unpacked" "$folder/source"
    fi
    say "commit $1, to compare with"
    (ROOT=$folder/source VAR=$folder build_flavour release -Dbench=true) || exit 1
    FRESHET_COMPARED_BUILD=$(VAR=$folder build_dir release)
    export FRESHET_COMPARED_BUILD
}

# The figures of the cost tests, whether or not they are within their limits: the status says which.
bench_costs() {
    local status=0
    (test_command cost) || status=$?
    "$PYTHON" -B "$ROOT/tests/cost/table.py" "$VAR/test/costs" >"$VAR/test/COSTS.md"
    cp "$VAR/test/COSTS.md" "$ROOT/bench/COSTS.md"
    cat "$ROOT/bench/COSTS.md"
    return "$status"
}

bench_command() {
    if [ "${1:-}" = costs ]; then
        [ $# -eq 1 ] || misuse "bench costs stands alone"
        bench_costs
        return
    fi
    case " $* " in *" --help "* | *" -h "*)
        "$ROOT/bench/run" --help
        return
        ;;
    esac
    local compared
    compared=$(bench_compared "$@") || exit
    packages_ensure run bench
    "$ROOT/bench/run" --check "$@" || exit # before a build that takes minutes
    if bench_has_engines "$@"; then
        packages_ensure engines
        kafka_fetch || true
    fi
    export FRESHET_KAFKA_JARS=$KAFKA_JARS
    build_flavour release -Dbench=true
    [ -z "$compared" ] || bench_build_compared "$compared"
    if ! pg_running; then
        trap pg_stop EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        pg_start
    fi
    freshet_env
    FRESHET_BUILD=$(build_dir release) "$ROOT/bench/run" "$@"
}
