# shellcheck shell=bash
# `test`: builds what a suite needs, runs it, and adds its results up into one closing line.
# A suite that ran nothing counts as a failure: silence must not look like success.
# Among all tests, stages go in three lanes side by side: many of them wait more than they compute.
# Tests that failed, if they are few, are run once more when everything else is done. What passes then is not held
# against the run, but it is named at its end: a test that fails for want of a quiet machine is a bug of its own. What a
# sanitizer or a crash said has no second try.

# So many failures at most have a second try: a busy machine fails one or two, a bug fails many.
TEST_AGAIN_MAX=5

# Notes "PASSED FAILED" of one stage; the lanes' notes are added up at the end.
test_add() { # STAGE PASSED FAILED
    local failed=$3
    say "$1: $2 passed, $3 failed ($((SECONDS - TEST_SINCE)) s)"
    TEST_SINCE=$SECONDS
    if [ $(($2 + $3)) -eq 0 ]; then
        say "$1: ran nothing"
        failed=1
    fi
    printf '%s %s\n' "$2" "$failed" >>"$VAR/test/counts"
}

# Counts from a results file; a stage whose own status was bad has at least one failure.
test_add_file() { # STAGE FILE STATUS
    local passed failed
    read -r passed failed < <("$PYTHON" "$ROOT/tools/count_results.py" "$2")
    if [ "$3" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    fi
    test_add "$1" "$passed" "$failed"
}

# Runs a command so that a signal to ./dev is heard at once, not when the command is done.
test_run() {
    "$@" >&2 &
    wait $!
}

# A build that fails is a failed test, so that the closing line always comes.
test_build() { # FLAVOUR [EXTRA…]
    if ! (build_flavour "$@"); then
        test_add "build $1" 0 1
        return 1
    fi
}

# ThreadSanitizer's fixed address map does not survive much address randomisation: newer kernels need it off.
tsan_runner() {
    if setarch -R true 2>/dev/null; then
        echo "setarch -R"
    fi
}

test_sanitizer_env() {
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export TSAN_OPTIONS=halt_on_error=0:exitcode=66:second_deadlock_stack=1
}

test_meson() { # STAGE FLAVOUR ARGS…
    local stage=$1 flavour=$2 dir results status=0 runner=
    if [ "$TEST_AGAIN" = 1 ]; then
        test_meson_again "$stage" "$flavour"
        return
    fi
    shift 2
    test_build "$flavour" || return 0
    dir=$(build_dir "$flavour")
    [ "$flavour" = tsan ] && runner=$(tsan_runner)
    say "$stage tests ($flavour)"
    results=$dir/meson-logs/$stage.json # of this stage alone: another one of the same flavour may run beside it
    rm -f "$results"
    # shellcheck disable=SC2086 # the runner is words
    test_run $runner meson test -C "$dir" --logbase "$stage" --no-rebuild --print-errorlogs -t 4 "$@" || status=$?
    test_add_file "$stage, $flavour" "$results" "$status"
    if [ "$status" -ne 0 ]; then
        "$PYTHON" "$ROOT/tools/count_results.py" --failed "$results" >"$VAR/test/$stage-$flavour.failed"
    fi
}

# Whether a stage has something to do: in the second pass only where a test failed in the first.
test_due() { # STAGE
    [ "$TEST_AGAIN" = 0 ] || [ -s "$VAR/test/$1.failed" ]
}

# Programs that failed in the first pass, alone and one after another; their failures are taken back if none fails again.
test_meson_again() { # STAGE FLAVOUR
    local results=$VAR/test/$1-$2.failed before programs runner=
    [ -s "$results" ] || return 0
    before=$(wc -l <"$results")
    mapfile -t programs < <(sort -u "$results")
    [ "$2" = tsan ] && runner=$(tsan_runner)
    say "$1, $2: once more, alone: ${programs[*]}"
    # shellcheck disable=SC2086 # the runner is words
    if test_run $runner meson test -C "$(build_dir "$2")" --no-rebuild --print-errorlogs -t 4 --num-processes 1 "${programs[@]}"; then
        printf '%s %s\n' "$before" "-$before" >>"$VAR/test/counts"
        printf "$1-$2 %s\n" "${programs[@]}" >>"$VAR/test/unsteady"
    fi
    rm -f "$results"
}

# The bus's conformance suite on the engines is a Meson suite of its own: it belongs to test_engines.
test_unit_debug() {
    test_meson unit debug --no-suite engines
}

test_unit_tsan() {
    test_meson unit tsan --no-suite engines
}

test_unit() {
    test_unit_debug
    test_unit_tsan
}

# pytest against a flavour's program; results in STAGE.xml. What pytest makes of the tests' asserts is kept under $VAR, for all workers
# and stages: making it takes longer than reading all the tests.
pytest_run() { # STAGE FLAVOUR ARGS…
    local results=$VAR/test/$1.xml flavour=$2 runner=
    shift 2
    [ "$flavour" = tsan ] && runner=$(tsan_runner)
    rm -f "$results"
    # shellcheck disable=SC2086 # the runner is words
    FRESHET_BIN=$(build_dir "$flavour")/src/app/freshet FRESHET_TEST_BUILD=$VAR/build \
        PYTHONPYCACHEPREFIX=$VAR/test/pycache PYTHONDONTWRITEBYTECODE="" \
        test_run $runner "$PYTHON" -m pytest -q --junitxml="$results" "$@"
}

# Tests of a folder, or those of its files that are named.
test_pytest() { # STAGE FLAVOUR FOLDER ARGS…
    local stage=$1 flavour=$2 folder=$3 status=0
    if [ "$TEST_AGAIN" = 1 ]; then
        test_pytest_again "$stage" "$flavour" "$folder"
        return
    fi
    shift 3
    [[ " $* " == *.py\ * ]] || set -- "$ROOT/tests/$folder" "$@"
    test_build "$flavour" || return 0
    rm -f "$VAR/test/$stage.failed"
    say "$folder tests ($flavour)"
    PYTEST_ADDOPTS=${FRESHET_PYTEST_ARGS:-} pytest_run "$stage" "$flavour" "$@" || status=$?
    # pytest found no test (5): those that FRESHET_PYTEST_ARGS selects need not be among those for TSan.
    if [ "$status" -eq 5 ] && [ "$flavour" = tsan ] && [ -n "${FRESHET_PYTEST_ARGS:-}" ]; then
        say "$stage: no test is selected"
        return
    fi
    test_add_file "$stage" "$VAR/test/$stage.xml" "$status"
    if [ "$status" -eq 1 ]; then # tests failed; anything else is no matter of single tests
        "$PYTHON" "$ROOT/tools/count_results.py" --failed "$VAR/test/$stage.xml" >"$VAR/test/$stage.failed"
    fi
}

# Those that failed in the first pass, alone and one after another. Their first failures are taken back, the second ones count.
test_pytest_again() { # STAGE FLAVOUR FOLDER
    local stage=$1 again=$1-again status=0 before passed failed tests
    [ -s "$VAR/test/$stage.failed" ] || return 0
    before=$(wc -l <"$VAR/test/$stage.failed")
    mapfile -t tests < <(sort -u "$VAR/test/$stage.failed")
    say "$stage: once more, alone: ${tests[*]}"
    pytest_run "$again" "$2" "${tests[@]/#/$ROOT/tests/$3/}" || status=$?
    "$PYTHON" "$ROOT/tools/count_results.py" --passed "$VAR/test/$again.xml" >"$VAR/test/$again.passed"
    passed=$(wc -l <"$VAR/test/$again.passed")
    failed=$((${#tests[@]} - passed))
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    fi
    say "$stage, once more: $passed passed, $failed failed"
    printf '%s %s\n' "$passed" "$((failed - before))" >>"$VAR/test/counts"
    sed "s/^/$stage /" "$VAR/test/$again.passed" >>"$VAR/test/unsteady"
    rm -f "$VAR/test/$stage.failed"
}

# Every worker has a PostgreSQL of its own; a file stays with one, since its tests share servers.
test_system_debug() {
    test_pytest system debug system -n 4 --dist loadfile
}

test_system_tsan() {
    test_pytest system-tsan tsan system -m tsan
}

test_system() {
    test_system_debug
    test_system_tsan
}

# Every driver by the bus's conformance suite; a fleet on the engines while they break; and the system tests of reference data,
# unchanged, with the engines underneath. Among all tests it is short: the suites once, and of the rest what is not marked
# `whole`.
test_engines() {
    test_engines_drivers
    test_engines_fleets
}

test_engines_drivers() {
    test_meson engines debug --suite engines
    if [ "$TEST_ALL" = 0 ]; then test_meson engines tsan --suite engines; fi
}

test_engines_fleets() {
    if [ "$TEST_ALL" = 1 ]; then
        test_pytest engines debug engines -m "not whole"
        return
    fi
    test_pytest engines debug engines
    FRESHET_TEST_ENGINES=1 test_pytest engines-system debug system "$ROOT"/tests/system/test_{refdata,updates,apply,relay}_*.py
}

# The loops of kills are whole when they are asked for by name, and short among all the tests.
test_fault() {
    export FRESHET_FAULT_WHOLE=${FRESHET_FAULT_WHOLE:-$([ "$TEST_ALL" = 1 ] && echo 0 || echo 1)}
    if [ "$FRESHET_FAULT_WHOLE" = 1 ]; then
        test_pytest fault debug fault -s
    else
        test_pytest fault debug fault -s -m "not whole"
    fi
}

# One greedy tenant for each shared resource; whole when it is named, like the fault tests.
test_greedy() {
    test_build release -Dcost=true || return 0 # memory is measured of the program as it is released, built as for test_cost
    export FRESHET_GREEDY_WHOLE=${FRESHET_GREEDY_WHOLE:-$([ "$TEST_ALL" = 1 ] && echo 0 || echo 1)}
    test_pytest greedy debug greedy
}

# The program of the release before this one on the schema of this one. A commit that cannot be built is a failed test.
test_upgrade() {
    test_due upgrade || return 0
    if ! FRESHET_PREVIOUS_BIN=$(previous_build); then
        test_add "the release before" 0 1
        return
    fi
    export FRESHET_PREVIOUS_BIN
    test_pytest upgrade debug upgrade
}

# Standbys promoted, roles and engines killed, under load; the program as it is released, since load is measured. Whole when it is
# named: the same promotions on the engines, and everything killed in turn. One page of what was seen, with plots.
test_failover() {
    test_build release -Dcost=true || return 0
    export FRESHET_FAILOVER_WHOLE=${FRESHET_FAILOVER_WHOLE:-$([ "$TEST_ALL" = 1 ] && echo 0 || echo 1)}
    [ "$TEST_AGAIN" = 1 ] || rm -rf "$VAR/failover"
    FRESHET_VAR=$VAR test_pytest failover release failover
    if [ "$FRESHET_FAILOVER_WHOLE" = 1 ]; then
        FRESHET_VAR=$VAR FRESHET_TEST_ENGINES=1 test_pytest failover-engines release failover
        say "report: $VAR/failover/report.html"
    fi
}

# What is installed. Among all tests: a package made of the release build, and its files. By name: one compiled from what is
# committed, and its life on a clean Debian.
test_package() {
    local quick=()
    test_due package || return 0
    [ "$TEST_ALL" = 1 ] && quick=(--quick)
    if [ "$TEST_ALL" = 0 ]; then packages_ensure root; fi
    test_build release -Dcost=true || return 0
    if ! FRESHET_PACKAGE=$(package_build "${quick[@]}"); then
        test_add "the package" 0 1
        return 0
    fi
    export FRESHET_PACKAGE FRESHET_PACKAGE_VAR=$PACKAGE_DIR
    if [ "$TEST_ALL" = 1 ]; then
        test_pytest package release package -m "not whole"
    else
        test_pytest package release package
    fi
}

# Becomes one target for a while, longer when the suite is named, from its corpus; findings are kept under $VAR/fuzz.
fuzz_target() { # PROGRAM
    local name work seeds dict=()
    name=$(basename "$1")
    name=${name#fuzz_}
    work=$VAR/fuzz/$name
    seeds=$ROOT/tests/fuzz/corpus/$name
    [ -e "$ROOT/tests/fuzz/$name.dict" ] && dict=(-dict="$ROOT/tests/fuzz/$name.dict")
    mkdir -p "$work/corpus"
    exec "$1" -max_total_time="$FRESHET_FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$work/" "${dict[@]}" "$work/corpus" "$seeds" >"$work/log" 2>&1
}

test_fuzz() {
    local dir program pids=() names=() i passed=0 failed=0 seconds=$((TEST_ALL ? 3 : 10))
    export FRESHET_FUZZ_SECONDS=${FRESHET_FUZZ_SECONDS:-$seconds}
    test_build fuzz -Dwerror=true || return 0 # clang's warnings count too
    dir=$(build_dir fuzz)/tests/fuzz
    for program in "$dir"/fuzz_*; do
        if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
        say "fuzzing $(basename "$program") for $FRESHET_FUZZ_SECONDS s"
        fuzz_target "$program" &
        pids+=($!)
        names+=("$(basename "$program")")
        if [ $((${#pids[@]} % $(nproc))) -eq 0 ]; then
            wait "${pids[@]: -$(nproc)}" || true
        fi
    done
    for i in "${!pids[@]}"; do
        if wait "${pids[$i]}"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            tail -n 40 "$VAR/fuzz/${names[$i]#fuzz_}/log" >&2
            say "${names[$i]} failed, see $VAR/fuzz/${names[$i]#fuzz_}/"
        fi
    done
    test_add fuzz "$passed" "$failed"
}

# Counts, not times: the program as it is released, each way of counting beside the other. Figures are kept for `bench costs`.
test_cost() {
    test_build release -Dcost=true || return 0
    export FRESHET_COSTS=$VAR/test/costs
    [ "$TEST_AGAIN" = 1 ] || rm -rf "$FRESHET_COSTS"
    test_pytest cost release cost -n 2 --dist loadfile
}

# Generated clients and those of clients/. Whole when it is named: a million items, more kills.
test_clients() {
    test_due clients || return 0
    clients_fetch
    export FRESHET_CLIENTS_WHOLE=${FRESHET_CLIENTS_WHOLE:-$([ "$TEST_ALL" = 1 ] && echo 0 || echo 1)}
    if [ "$FRESHET_CLIENTS_WHOLE" = 1 ]; then
        test_pytest clients debug clients -n 2 --dist loadfile
    else
        test_pytest clients debug clients -n 2 --dist loadfile -m "not whole"
    fi
}

# The chart. Whole when it is named; among all tests what needs neither Helm nor a network.
test_deploy() {
    if [ "$TEST_ALL" = 1 ]; then
        test_pytest deploy debug deploy -m "not whole"
        return
    fi
    test_due deploy || return 0
    deploy_fetch
    test_pytest deploy debug deploy
}

# The console in Chromium. Whole when it is named: a million items, 100,000 dead letters; its pictures are then in $VAR/browser.
# Without npm there is no driver: among all tests those that need none are run, and the suite by its name fails.
test_browser() {
    test_due browser || return 0
    export FRESHET_BROWSER_WHOLE=${FRESHET_BROWSER_WHOLE:-$([ "$TEST_ALL" = 1 ] && echo 0 || echo 1)}
    local short=()
    [ "$FRESHET_BROWSER_WHOLE" = 1 ] || short=(-m "not whole")
    if ! (packages_ensure browser); then
        test_add "browser, for want of Chromium," 0 1
    elif browser_fetch; then
        FRESHET_VAR=$VAR test_pytest browser debug browser "${short[@]}"
    elif [ "$TEST_ALL" = 1 ]; then
        say "browser: ONLY the tests that need no driver are run"
        test_pytest browser debug browser -m "not driver"
    else
        test_add "browser, for want of its driver," 0 1
    fi
}

# The servers' data lie in memory where there is plenty: tests create databases by the hundred, and on a disk most of that is
# time of the file system. What tests write themselves stays on the disk, to be looked at.
test_folder() {
    local free
    free=$(df --output=avail -B 1G /dev/shm 2>/dev/null | tail -n 1)
    if [ -n "${TMPDIR:-}" ] || [ "${free:-0}" -lt 8 ] || [ "$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 8 ]; then
        return
    fi
    TMPDIR=$(mktemp -d /dev/shm/freshet-test-XXXXXX)
    chmod 1777 "$TMPDIR"
    export TMPDIR PYTEST_DEBUG_TEMPROOT=/tmp
    TEST_FOLDER=$TMPDIR
}

# A PostgreSQL cluster as initdb leaves it: tests copy it ($FRESHET_TEST_CLUSTER), which takes a tenth of initdb's time. Without it they
# call initdb themselves. What follows `password` is for the tests that connect with one.
test_cluster() {
    TEST_CLUSTER=$(mktemp -d "${TMPDIR:-/tmp}/freshet-cluster-XXXXXX")
    if is_root; then chown postgres: "$TEST_CLUSTER"; fi
    pg_exec dd status=none of="$TEST_CLUSTER/password" < <(od -An -N16 -tx1 /dev/urandom | tr -d ' ')
    if pg_exec "$(postgres_bindir)/initdb" -D "$TEST_CLUSTER/data" -U "$PG_USER" --auth=md5 --pwfile="$TEST_CLUSTER/password" \
        --encoding=UTF8 --locale=C.UTF-8 --no-sync >"$VAR/test/initdb.log" 2>&1; then
        export FRESHET_TEST_CLUSTER=$TEST_CLUSTER
    fi
}

# Ends what runs; the folders go with the shell that made them.
test_end() {
    # shellcheck disable=SC2046 # several
    kill $(jobs -p) 2>/dev/null || true
    wait
    if [ "$BASHPID" = "${TEST_SHELL:-}" ]; then
        rm -rf "${TEST_FOLDER:-}" "${TEST_CLUSTER:-}"
    fi
}

# Nothing stays behind when the run is broken off. A lane is a shell of its own and has to say so itself.
test_traps() {
    trap test_end EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Everything is compiled first, so that no lane has to wait for a build. Two lanes take stages from a queue, the longest first, and a third
# one does so after the system tests. What a lane in the background prints is shown when it is done.
test_lanes() {
    local lane lanes=()
    test_lane fetch test_fetch
    test_build release -Dwerror=true -Dcost=true || true
    test_build debug -Dbench=true || return 0 # the tools of bench/ are only compiled: here linking takes no time
    test_build tsan || return 0
    test_build fuzz -Dwerror=true || true
    # Stages report what could not be fetched.
    wait "${lanes[0]#*:}" || true
    cat "$VAR/test/lane-fetch" >&2
    lanes=()
    printf '%s\n' test_engines_fleets test_fault test_unit_debug test_engines_drivers test_unit_tsan test_system_tsan test_browser \
        test_clients test_greedy test_upgrade test_cost test_package test_fuzz test_failover test_deploy >"$VAR/test/queue"
    test_lane system test_system_debug test_queue
    test_lane others test_queue
    test_queue
    for lane in "${lanes[@]}"; do
        wait "${lane#*:}" || test_add "the lane ${lane%:*}" 0 1
        cat "$VAR/test/lane-${lane%:*}" >&2
    done
}

# What some stages need from elsewhere, while the rest is compiled.
test_fetch() {
    (packages_ensure generators browser) || true
    clients_fetch
    browser_fetch || true
}

# Runs stages of the queue until another lane or this one has taken the last of them.
test_queue() {
    local stage
    while stage=$(test_next) && [ -n "$stage" ]; do
        "$stage"
    done
}

test_next() {
    (
        flock 9
        head -n 1 "$VAR/test/queue"
        sed -i 1d "$VAR/test/queue"
    ) 9>"$VAR/test/queue.lock"
}

test_lane() { # NAME TESTS…
    local name=$1
    (
        test_traps
        for each in "${@:2}"; do "$each"; done
    ) >"$VAR/test/lane-$name" 2>&1 &
    lanes+=("$name:$!")
}

# The second pass, on a machine that has nothing else to do.
test_again() { # SUITE…
    local suite count
    count=$(find "$VAR/test" -name '*.failed' -exec sort -u {} \; | wc -l)
    if [ "$count" -gt "$TEST_AGAIN_MAX" ]; then
        say "$count tests failed: too many for a second try"
        return
    fi
    TEST_AGAIN=1
    for suite in "$@"; do
        case $suite in unit | system | engines | fault | greedy | failover | upgrade | cost | clients | deploy | package | browser) "test_$suite" ;; esac
    done
    TEST_AGAIN=0
}

# The closing lines: what was unsteady, by name, and "N passed, N failed".
test_close() {
    local passed failed unsteady
    read -r passed failed < <(awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }' "$VAR/test/counts")
    unsteady=$(wc -l <"$VAR/test/unsteady")
    if [ "$unsteady" -gt 0 ]; then
        say "UNSTEADY (failed once, passed alone), to be mended:"
        sed 's/^/    /' "$VAR/test/unsteady" >&2
        unsteady=", $unsteady unsteady"
    else
        unsteady=
    fi
    printf '%s passed, %s failed%s\n' "$passed" "$failed" "$unsteady"
    [ "$failed" -eq 0 ]
}

test_command() {
    local suite
    for suite in "$@"; do
        case $suite in
        unit | system | engines | fault | greedy | failover | upgrade | fuzz | cost | clients | deploy | package | browser) ;;
        *) misuse "no suite '$suite'; there are: unit system engines fault greedy failover upgrade fuzz cost clients deploy package browser" ;;
        esac
    done
    packages_ensure run test engines clients cost package packagetest
    # Fetched once for all that follows; without it what needs Kafka says so, or runs on librdkafka's own stand-in.
    case " ${*:-all} " in *" all "* | *" engines "* | *" failover "* | *" system "*) kafka_fetch || true ;; esac
    export FRESHET_KAFKA_JARS=$KAFKA_JARS
    test_sanitizer_env
    mkdir -p "$VAR/test"
    rm -f "$VAR/test"/*.failed
    : >"$VAR/test/counts"
    : >"$VAR/test/unsteady"
    TEST_SINCE=$SECONDS
    TEST_SHELL=$BASHPID
    test_traps
    test_folder
    test_cluster
    TEST_ALL=0
    TEST_AGAIN=0
    if [ $# -eq 0 ]; then
        TEST_ALL=1
        test_lanes
        set -- unit fault greedy failover upgrade system engines cost clients deploy package browser
    else
        for suite in "$@"; do
            "test_$suite"
        done
    fi
    test_again "$@"
    test_close
}
