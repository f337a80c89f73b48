# shellcheck shell=bash
# The program of the release before this one, built once from its commit: the upgrade tests run it on the schema of this one.

# Prints where it is. Without optimisation and without tests: it has to run, not to be quick.
previous_build() {
    local commit dir
    commit=$(git -c safe.directory="$ROOT" -C "$ROOT" rev-parse --verify --quiet "$(cat "$ROOT/tests/upgrade/previous_release")^{commit}") ||
        die "the commit in tests/upgrade/previous_release is not in this clone: git fetch --unshallow"
    dir=$VAR/previous/$commit
    if [ ! -x "$dir/freshet" ]; then
        say "building the release before this one ($commit)"
        rm -rf "$VAR/previous"
        mkdir -p "$dir/source"
        git -c safe.directory="$ROOT" -C "$ROOT" archive "$commit" | tar -x -C "$dir/source"
        if ! { meson setup "$dir/build" "$dir/source" -Dbuildtype=plain -Doptimization=0 &&
            ninja -C "$dir/build" -j "$(nproc)" src/app/freshet; } >"$dir/log" 2>&1; then
            tail -n 40 "$dir/log" >&2
            die "the release before this one cannot be built"
        fi
        mv "$dir/build/src/app/freshet" "$dir/freshet"
        rm -rf "$dir/build" "$dir/source"
    fi
    printf '%s\n' "$dir/freshet"
}
