# shellcheck shell=bash
# The private PostgreSQL of one $FRESHET_VAR: made on first use, on 127.0.0.1 and a free port, with a
# password that only the owner of var/ can read. As root it runs as user `postgres`, since PostgreSQL refuses root.
#
#   $VAR/pg/home      where the cluster is (`cluster`: beside it; or a folder under /var/lib, see pg_home_choose)
#   $VAR/pg/url       how to connect, password included (0600); $VAR/pg/password, $VAR/pg/port
#   $VAR/pg/started   there from a start to a wanted stop
#   <home>/data       PGDATA;  <home>/postgres.log

PG_USER=freshet

# Runs a PostgreSQL program as the user who owns the cluster, keeping our locks and environment to ourselves.
pg_exec() {
    local as=()
    is_root && as=(runuser -u postgres --)
    (cd / && exec "${as[@]}" env -i PATH="$PATH" LC_ALL=C.UTF-8 TZ=UTC "$@" 6>&- 7>&- 8>&- 9>&-)
}

# Fails when there is no cluster yet. `cluster` is relative, so that a project may be moved.
pg_home() {
    local home
    home=$(cat "$VAR/pg/home" 2>/dev/null) || return 1
    [ "$home" != cluster ] || home=$VAR/pg/cluster
    [ -d "$home/data" ] && printf '%s\n' "$home"
}

# pg_ctl alone takes a killed one for running until its parent has noticed.
pg_running() {
    local home
    home=$(pg_home) && pg_exec "$(postgres_bindir)/pg_ctl" -D "$home/data" status >/dev/null 2>&1 &&
        process_identity "$(head -n 1 "$home/data/postmaster.pid" 2>/dev/null)" >/dev/null
}

# Ended without being asked to?
pg_died() {
    [ -e "$VAR/pg/started" ] && ! pg_running
}

# Under $VAR where the postgres user can reach it. Otherwise (var/ below /root, say) root keeps the cluster
# under /var/lib, in a folder named after $VAR; one found there without a record belongs to a var/ since deleted.
pg_home_choose() {
    if ! is_root || runuser -u postgres -- test -x "$VAR/pg" 2>/dev/null; then
        echo cluster
    else
        echo "/var/lib/freshet-dev-$(printf '%s' "$VAR" | sha256sum | cut -c1-16)"
    fi
}

pg_create() {
    local place home password
    say "making a private PostgreSQL cluster"
    place=$(pg_home_choose)
    home=$place
    [ "$place" != cluster ] || home=$VAR/pg/cluster
    if [ -d "$home/data" ]; then
        pg_exec "$(postgres_bindir)/pg_ctl" -D "$home/data" -m immediate stop >/dev/null 2>&1 || true
    fi
    rm -rf "$home"
    mkdir -m 700 "$home"
    if is_root; then chown postgres: "$home"; fi
    password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
    (umask 077 && printf '%s\n' "$password" >"$VAR/pg/password")
    pg_exec dd status=none of="$home/password" <<<"$password"
    pg_exec "$(postgres_bindir)/initdb" -D "$home/data" -U "$PG_USER" --pwfile="$home/password" \
        --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 >"$VAR/pg/initdb.log" 2>&1 ||
        die "initdb failed, see $VAR/pg/initdb.log"
    rm -f "$home/password"
    pg_exec tee -a "$home/data/postgresql.conf" >/dev/null <<'EOF'

# A private development server: reached over loopback only, small, but as durable as a real one.
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 256MB
max_wal_size = 2GB
EOF
    printf '%s\n' "$place" >"$VAR/pg/home"
}

# Starts PostgreSQL unless it runs; one start at a time per $VAR.
pg_start() {
    (umask 022 && mkdir -p "$VAR/pg")
    (
        flock 7
        pg_running || pg_start_locked
    ) 7>"$VAR/pg/lock"
}

# A killed server whose parent has not noticed yet holds its lock: PostgreSQL would refuse to start beside it.
pg_await_end() { # DATA
    local pid tick
    pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null) || return 0
    for ((tick = 0; tick < 100; tick++)); do
        [ -e "/proc/$pid" ] && ! process_identity "$pid" >/dev/null || return 0
        sleep 0.1
    done
}

# The port is looked for at every start, the last one first.
pg_start_locked() {
    local home port try
    pg_home >/dev/null || pg_create
    home=$(pg_home)
    pg_await_end "$home/data"
    for try in 1 2 3 4 5; do
        port=$(free_port "$(cat "$VAR/pg/port" 2>/dev/null || true)" --lasting) || die "no port is free for PostgreSQL"
        if pg_exec "$(postgres_bindir)/pg_ctl" -D "$home/data" -l "$home/postgres.log" -o "-p $port" \
            -w -t 60 start >/dev/null 2>&1; then
            break
        fi
        # Somebody may have taken the port in between.
        rm -f "$VAR/pg/port"
        if [ "$try" = 5 ]; then
            tail -n 20 "$home/postgres.log" >&2 || true
            die "PostgreSQL did not start"
        fi
    done
    touch "$VAR/pg/started"
    printf '%s\n' "$port" >"$VAR/pg/port"
    (umask 077 && printf 'postgresql://%s:%s@127.0.0.1:%s/freshet\n' \
        "$PG_USER" "$(cat "$VAR/pg/password")" "$port" >"$VAR/pg/url")
    pg_client psql -X -d postgres -q <<'EOF' || die "could not make the database"
SELECT 'CREATE DATABASE freshet' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'freshet') \gexec
EOF
    say "PostgreSQL is up on 127.0.0.1:$port"
}

pg_stop() {
    if pg_running; then
        pg_exec "$(postgres_bindir)/pg_ctl" -D "$(pg_home)/data" -m fast -w -t 60 stop >/dev/null ||
            die "PostgreSQL did not stop, see $(pg_home)/postgres.log"
    fi
    rm -f "$VAR/pg/started"
}

# Runs a libpq client. The password goes by the environment: a command line is public.
pg_client() {
    PGHOST=127.0.0.1 PGPORT=$(cat "$VAR/pg/port") PGUSER=$PG_USER PGDATABASE=freshet \
        PGPASSWORD=$(cat "$VAR/pg/password") "$@"
}

psql_command() {
    pg_running || die "no PostgreSQL runs for $VAR: ./dev run, or ./dev stack up"
    pg_client psql "$@"
}
