# shellcheck shell=bash
# Helm and the schemas of Kubernetes, Istio and the Prometheus operator, for the tests of deploy/helm. Both come from the Go module proxy,
# once, into $VAR; tools/deploy/modules.txt pins them. Helm is compiled (some minutes), by the machine's Go or by one that is fetched.
# Where they can't be had, the tests that need them fail and name the reason.

HELM_PACKAGE=$(sed -n 's/^program [^ ]* \([^ ]*\) \(.*\)/\2@\1/p' "$ROOT/tools/deploy/modules.txt")
HELM=$(realpath -m -- "${FRESHET_HELM:-$VAR/helm-${HELM_PACKAGE##*@}/helm}")
DEPLOY_SCHEMAS=$VAR/deploy-schemas-$(cksum <"$ROOT/tools/deploy/modules.txt" | cut -d ' ' -f 1)
GO_MIN=1.24

# Prints a Go that can compile Helm: the machine's, else one that is fetched.
deploy_go() {
    local go version
    go=$(command -v go) || go=$(command -v /usr/local/go/bin/go) || go=
    if [ -n "$go" ]; then
        version=$(GOTOOLCHAIN=local "$go" env GOVERSION)
        if printf '%s\n' "$GO_MIN" "${version#go}" | sort -VC; then
            printf '%s\n' "$go"
            return
        fi
    fi
    if [ ! -x "$VAR/go/bin/go" ]; then
        say "fetching Go (83 MB, once)"
        "$PYTHON" -B "$ROOT/tools/deploy/fetch.py" toolchain "$VAR/go" || return 1
    fi
    printf '%s\n' "$VAR/go/bin/go"
}

deploy_fetch_helm() {
    local go work=$VAR/helm-compiled
    [ -x "$HELM" ] && return
    go=$(deploy_go) || return 1
    say "compiling $HELM_PACKAGE (once, some minutes)"
    rm -rf "$work"
    GOTOOLCHAIN=local GOFLAGS='-buildvcs=false -modcacherw' GOPATH=$work GOCACHE=$work/cache GOBIN=$work/bin \
        "$go" install "$HELM_PACKAGE" >&2 || return 1
    mkdir -p "$(dirname "$HELM")"
    mv "$work/bin/helm" "$HELM"
    rm -rf "$work"
}

# Exports FRESHET_HELM and FRESHET_DEPLOY_SCHEMAS; empty where they can't be had.
deploy_fetch() {
    export FRESHET_HELM=$HELM FRESHET_DEPLOY_SCHEMAS=$DEPLOY_SCHEMAS
    if ! deploy_fetch_helm; then
        say "Helm can't be had: it is not at $HELM, and can't be compiled from the Go module proxy. The tests that need it fail."
        FRESHET_HELM=
    fi
    if [ ! -d "$DEPLOY_SCHEMAS" ] && ! "$PYTHON" -B "$ROOT/tools/deploy/fetch.py" schemas "$DEPLOY_SCHEMAS"; then
        say "The schemas of Kubernetes can't be had. The tests that need them fail."
        FRESHET_DEPLOY_SCHEMAS=
    fi
}
