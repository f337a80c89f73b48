# shellcheck shell=bash
# playwright-core and axe-core for the tests of the console, from npm, once, into $VAR; tests/browser/package-lock.json pins them
# by their digests. The browser is Debian's.

BROWSER_MODULES=$VAR/browser-$(cksum <"$ROOT/tests/browser/package-lock.json" | cut -d ' ' -f 1)

# Exports FRESHET_BROWSER_MODULES, empty where they can't be had. Fetched beside its place and then moved there.
browser_fetch() {
    local new=$BROWSER_MODULES.new
    export FRESHET_BROWSER_MODULES=$BROWSER_MODULES/node_modules
    [ -d "$BROWSER_MODULES" ] && return
    say "fetching playwright-core and axe-core (3 MB, once)"
    rm -rf "$new"
    mkdir -p "$new"
    cp "$ROOT"/tests/browser/package*.json "$new"
    if timeout 300 npm ci --prefix "$new" --ignore-scripts --no-audit --no-fund </dev/null >"$new/log" 2>&1; then
        mv "$new" "$BROWSER_MODULES"
        return
    fi
    tail -n 5 "$new/log" >&2
    rm -rf "$new"
    FRESHET_BROWSER_MODULES=
    say "playwright-core can't be had: it is not in $BROWSER_MODULES, and npm can't fetch it."
    return 1
}
