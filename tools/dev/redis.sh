# shellcheck shell=bash
# The private Redis Cluster: three masters without copies, the smallest that moves slots and answers MOVED.
# engines/redis-1/made says that the three are a cluster; without it they are put together anew, empty.

REDIS_NODES=(redis-1 redis-2 redis-3)

redis_ask() { # NAME COMMAND…
    local name=$1
    shift
    timeout 5 redis-cli -h 127.0.0.1 -p "$(engine_port "$name")" "$@"
}

redis_addresses() {
    local node
    for node in "${REDIS_NODES[@]}"; do engine_address "$node"; done
}

redis_spawn() { # NAME
    engine_take_port "$1"
    engine_take_port "$1" bus-port
    engine_spawn "$1" redis-server --bind 127.0.0.1 --port "$(engine_port "$1")" \
        --cluster-enabled yes --cluster-port "$(engine_port "$1" bus-port)" --cluster-node-timeout 5000 \
        --dir "$ENGINES/$1/data" --appendonly yes --save ''
}

redis_is_whole() {
    local node
    for node in "${REDIS_NODES[@]}"; do
        redis_ask "$node" cluster info | grep -q '^cluster_state:ok' || return 1
    done
}

# Nodes that came back on other ports know each other by old addresses.
redis_introduce() {
    local node other
    for node in "${REDIS_NODES[@]}"; do
        for other in "${REDIS_NODES[@]}"; do
            [ "$node" = "$other" ] ||
                redis_ask "$node" cluster meet 127.0.0.1 "$(engine_port "$other")" "$(engine_port "$other" bus-port)"
        done
    done >/dev/null
}

redis_nodes_start() {
    local node
    for node in "${REDIS_NODES[@]}"; do
        engine_running "$node" || redis_spawn "$node"
    done
    for node in "${REDIS_NODES[@]}"; do
        engine_wait "$node" 20 redis_ask "$node" ping || die "Redis ($node) did not start"
    done
}

redis_create() {
    local node addresses
    rm -f "$ENGINES/redis-1/made"
    for node in "${REDIS_NODES[@]}"; do
        engine_stop "$node"
        rm -rf "$ENGINES/$node/data"
    done
    redis_nodes_start
    mapfile -t addresses < <(redis_addresses)
    redis-cli --cluster create "${addresses[@]}" --cluster-replicas 0 --cluster-yes \
        >"$ENGINES/redis-1/create.log" 2>&1 || die "the Redis Cluster could not be made, see $ENGINES/redis-1/create.log"
    engine_wait redis-1 20 redis_is_whole || die "the Redis Cluster did not become whole"
    touch "$ENGINES/redis-1/made"
}

# Was it put together, and does every node still know the others?
redis_is_made() {
    local node
    [ -e "$ENGINES/redis-1/made" ] || return 1
    for node in "${REDIS_NODES[@]}"; do
        [ -e "$ENGINES/$node/data/nodes.conf" ] || return 1
    done
}

redis_start() {
    if redis_is_made; then
        redis_nodes_start
        redis_is_whole || redis_introduce
        engine_wait redis-1 20 redis_is_whole && return
        say "the Redis Cluster can't be put together again: making a new one, empty"
    fi
    redis_create
}

redis_running() {
    local node
    for node in "${REDIS_NODES[@]}"; do
        engine_running "$node" || return 1
    done
}

redis_stop() {
    local node
    for node in "${REDIS_NODES[@]}"; do engine_stop "$node" & done
    wait
}

redis_status() {
    local node
    if redis_running; then
        printf 'redis %s\n' "$(redis_addresses | paste -sd,)"
    else
        for node in "${REDIS_NODES[@]}"; do
            if engine_died "$node"; then printf 'redis down\n' && return; fi
        done
    fi
}
