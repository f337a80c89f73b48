# shellcheck shell=bash
# The private NATS with JetStream. engines/nats/monitor-port is where it tells of itself over HTTP.

nats_answers() {
    curl -fs -m 2 "http://127.0.0.1:$(engine_port nats monitor-port)/healthz"
}

nats_running() {
    engine_running nats
}

nats_start() {
    if ! nats_running; then
        engine_take_port nats
        engine_take_port nats monitor-port
        engine_spawn nats nats-server --addr 127.0.0.1 --port "$(engine_port nats)" \
            --http_port "$(engine_port nats monitor-port)" --jetstream --store_dir "$ENGINES/nats/data"
    fi
    engine_wait nats 20 nats_answers || die "NATS did not start"
}

nats_stop() {
    engine_stop nats
}

nats_status() {
    if nats_running; then
        printf 'nats %s\n' "$(engine_address nats)"
    elif engine_died nats; then
        printf 'nats down\n'
    fi
}
