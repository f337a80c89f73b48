# shellcheck shell=bash
# `lint`: what a reader should not have to check by eye. Every check runs, then the verdict.

lint_one() { # NAME COMMAND…
    local name=$1
    shift
    if "$@"; then
        say "ok       $name"
    else
        say "FAILED   $name"
        LINT_FAILED=1
    fi
}

# In a subshell: it changes the folder.
lint_format() ( # [--fix]
    files=()
    mapfile -t files < <(cd "$ROOT" && find src tests bench -name '*.[ch]' 2>/dev/null | sort)
    [ ${#files[@]} -gt 0 ] || return 0
    cd "$ROOT" || return 1
    if [ "${1:-}" = --fix ]; then
        clang-format -i "${files[@]}"
        return
    fi
    if ! clang-format --dry-run -Werror "${files[@]}" 2>"$VAR/format.log"; then
        grep -oE '^[^:]+:[0-9]+' "$VAR/format.log" | cut -d: -f1 | sort -u >&2
        say "./dev lint --fix formats these"
        return 1
    fi
)

# ./dev and whatever else starts with a shell's name.
lint_shell() {
    local scripts=()
    mapfile -t scripts < <(cd "$ROOT" && grep -rlIm1 -E '^#!.*\b(ba)?sh$' dev .ci tools bench tests sql 2>/dev/null)
    (cd "$ROOT" && shellcheck "${scripts[@]}" tools/dev/*.sh)
}

# docs/CONFIG.md is printed by the program from its settings table.
lint_config_page() {
    [ -e "$ROOT/docs/CONFIG.md" ] && [ -e "$ROOT/src/app/meson.build" ] || return 0
    build_flavour release
    freshet_env
    "$(freshet_bin)" config --markdown | diff -u "$ROOT/docs/CONFIG.md" - >&2
}

lint_command() {
    case $* in
    '' | --fix) ;;
    *) misuse "lint takes --fix or nothing" ;;
    esac
    packages_ensure run lint
    mkdir -p "$VAR"
    LINT_FAILED=0
    lint_one "includes follow tools/layers.txt" "$PYTHON" -B "$ROOT/tools/check_includes.py"
    lint_one "files are short and finished" "$PYTHON" -B "$ROOT/tools/check_files.py"
    lint_one "the console shows text and keeps nothing" "$PYTHON" -B "$ROOT/tools/check_console.py"
    lint_one "clang-format" lint_format "$@"
    lint_one "shellcheck" lint_shell
    lint_one "deploy/grafana is what tools/dashboards.py writes" "$PYTHON" -B "$ROOT/tools/dashboards.py" --check
    lint_one "docs/CONFIG.md is what the program prints" lint_config_page
    [ "$LINT_FAILED" -eq 0 ] || die "lint found something"
}
