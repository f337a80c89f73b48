# shellcheck shell=bash
# Generators of clients, and what compiles and checks them: from PyPI and npm, once, into $VAR, in the versions that
# tests/clients/requirements.txt and clients/typescript/package-lock.json name. Where they can't be had, the tests that need them fail
# and name the reason; the tests of the Python client need none of it.

CLIENT_TOOLS=$VAR/client-tools-$(cat "$ROOT/tests/clients/requirements.txt" "$ROOT/clients/typescript/package-lock.json" | cksum | cut -d ' ' -f 1)

clients_fetch_python() {
    local venv=$CLIENT_TOOLS/python
    [ -e "$venv/complete" ] && return
    rm -rf "$venv"
    say "fetching openapi-python-client and its like from PyPI (once)"
    "$PYTHON" -m venv "$venv" >&2 &&
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$ROOT/tests/clients/requirements.txt" >&2 &&
        touch "$venv/complete"
}

clients_fetch_node() {
    local folder=$CLIENT_TOOLS/node
    [ -e "$folder/complete" ] && return
    if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
        say "there is no node, or no npm (Debian: apt-get install nodejs npm)"
        return 1
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    say "fetching openapi-typescript and its like from npm (once)"
    cp "$ROOT"/clients/typescript/package{,-lock}.json "$folder"
    (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) && touch "$folder/complete"
}

# Exports FRESHET_CLIENT_PYTHON and FRESHET_CLIENT_NODE; empty where they can't be had.
clients_fetch() {
    export FRESHET_CLIENT_PYTHON=$CLIENT_TOOLS/python FRESHET_CLIENT_NODE=$CLIENT_TOOLS/node
    mkdir -p "$CLIENT_TOOLS"
    (packages_ensure generators) || say "what is missing for the generators of clients can't be installed"
    if ! clients_fetch_python; then
        say "PyPI can't be reached, or has not what is needed. The tests of openapi-python-client fail."
        FRESHET_CLIENT_PYTHON=
    fi
    if ! clients_fetch_node; then
        say "npm can't be reached, or has not what is needed. The tests of openapi-typescript and of the TypeScript client fail."
        FRESHET_CLIENT_NODE=
    fi
}
