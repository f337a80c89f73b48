# shellcheck shell=bash
# The private Kafka: one broker that is its own controller, on the machine's Java, from jars of Maven Central.
# Where they can't be fetched, engines/kafka/unavailable says so and everything goes on without Kafka.

KAFKA_VERSION=$(sed -n 's:.*<version>\(.*\)</version>.*:\1:p' "$ROOT/tools/kafka/pom.xml" | head -n 1)
KAFKA_JARS=$(realpath -m -- "${FRESHET_KAFKA_JARS:-$VAR/kafka-$KAFKA_VERSION}")

kafka_fetched() {
    [ -e "$KAFKA_JARS/kafka_2.13-$KAFKA_VERSION.jar" ]
}

# Fetched beside its place and then moved there: a folder that is there is whole. Says so when it can't be had.
kafka_fetch() {
    local new=$KAFKA_JARS.new
    kafka_fetched && return
    packages_ensure maven
    say "fetching Kafka $KAFKA_VERSION (46 MB, once)"
    rm -rf "$new"
    mkdir -p "$new"
    # It resets the terminal's colours however it is asked not to use any.
    if timeout 600 mvn -q -B -Dstyle.color=never -f "$ROOT/tools/kafka/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$new" </dev/null 2>&1 | sed $'s/\e\\[[0-9;]*m//g' >&2; then
        rm -rf "$KAFKA_JARS"
        mv "$new" "$KAFKA_JARS"
        return
    fi
    rm -rf "$new"
    say "Kafka can't be had: its jars are not in $KAFKA_JARS, and Maven Central can't be reached. Going on without it."
    return 1
}

kafka_java() { # OPTIONS… CLASS ARGS…
    java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$KAFKA_JARS/*" "$@"
}

kafka_configure() {
    sed -e "s|@PORT@|$(engine_port kafka)|" -e "s|@CONTROLLER_PORT@|$(engine_port kafka controller-port)|" \
        -e "s|@DATA@|$ENGINES/kafka/data|" "$ROOT/tools/kafka/server.properties" >"$ENGINES/kafka/server.properties"
}

kafka_format() {
    local id
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'xy' | cut -c 1-22)
    rm -rf "$ENGINES/kafka/data"
    kafka_java -Dorg.slf4j.simpleLogger.defaultLogLevel=warn kafka.tools.StorageTool format -t "$id" \
        -c "$ENGINES/kafka/server.properties" >"$ENGINES/kafka/format.log" 2>&1 ||
        die "Kafka's storage could not be made, see $ENGINES/kafka/format.log"
}

kafka_answers() {
    grep -q 'Kafka Server started' "$ENGINES/kafka/log"
}

kafka_running() {
    engine_running kafka
}

kafka_start() {
    mkdir -p "$ENGINES/kafka"
    rm -f "$ENGINES/kafka/unavailable"
    kafka_fetch || {
        touch "$ENGINES/kafka/unavailable"
        return 0
    }
    if ! kafka_running; then
        engine_take_port kafka
        engine_take_port kafka controller-port
        kafka_configure
        [ -e "$ENGINES/kafka/data/meta.properties" ] || kafka_format
        engine_spawn kafka java -Xms128m -Xmx384m -XX:+UseSerialGC -cp "$KAFKA_JARS/*" \
            -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true \
            -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info kafka.Kafka server.properties
    fi
    engine_wait kafka 50 kafka_answers || die "Kafka did not start"
}

kafka_stop() {
    engine_stop kafka
    rm -f "$ENGINES/kafka/unavailable"
}

kafka_status() {
    if kafka_running; then
        printf 'kafka %s\n' "$(engine_address kafka)"
    elif engine_died kafka; then
        printf 'kafka down\n'
    elif [ -e "$ENGINES/kafka/unavailable" ]; then
        printf 'kafka unavailable\n'
        say "kafka: Maven Central can't be reached, and FRESHET_KAFKA_JARS names no folder with its jars"
    fi
}
