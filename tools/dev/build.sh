# shellcheck shell=bash
# Build flavours: each is a Meson build directory under $VAR/build with options of its own.
# Warnings become errors, and bench tools get built, once someone asked for it; a later plain build of the
# same directory keeps that, or every change between `run` and `test` would compile everything again.

build_dir() { # FLAVOUR
    printf '%s/build/%s\n' "$VAR" "$1"
}

build_options() { # FLAVOUR
    case $1 in
    # The folders are those of the Debian package, which can be made of this build (tools/dev/package.sh).
    release) echo -Dbuildtype=debugoptimized -Doptimization=3 -Db_lto=true -Dprefix=/usr \
        -Dsystemd_unit_dir=/lib/systemd/system -Dzsh_completion_dir=share/zsh/vendor-completions ;;
    debug) echo -Doptimization=1 -Ddebug=true -Db_sanitize=address,undefined -Dtests=true -Dfailpoints=true ;;
    # Lines are all that the stacks of these two need, and cost less to compile.
    tsan) echo -Doptimization=1 -Ddebug=false -Dc_args=-g1 -Db_sanitize=thread -Dtests=true -Dfailpoints=true ;;
    fuzz) echo -Doptimization=1 -Ddebug=false -Dc_args=-g1 -Db_sanitize=address,undefined -Db_lundef=false -Dfuzz=true ;;
    *) misuse "no flavour '$1'; there are: release debug tsan fuzz" ;;
    esac
}

# Sets up FLAVOUR when it is new or an option has to change. EXTRA are sticky -D options.
build_configure() { # FLAVOUR [EXTRA…]
    local flavour=$1 dir options extra known
    shift
    dir=$(build_dir "$flavour")
    options=$(build_options "$flavour")
    known=$(cat "$dir/dev-options" 2>/dev/null || true)
    if [ "${CI:-}" = true ]; then
        set -- "$@" -Dwerror=true
    fi
    for extra in "$@" $known; do
        case " $options " in *" $extra "*) ;; *) options+=" $extra" ;; esac
    done
    # shellcheck disable=SC2086 # options are words
    options=$(printf '%s\n' $options | sort | paste -sd ' ')
    if [ -e "$dir/build.ninja" ] && [ "$known" = "$options" ]; then
        return
    fi
    local compiler=gcc command=(setup "$dir" "$ROOT")
    if [ -e "$dir/build.ninja" ]; then
        command=(configure "$dir") # a setup again would not take options of the linker
        # An option that is newer than the directory is known after this. Where it fails, the command says why.
        ninja -C "$dir" build.ninja >"$dir.log" 2>&1 || true
    fi
    [ "$flavour" = fuzz ] && compiler=clang
    mkdir -p "$dir"
    # shellcheck disable=SC2086 # options are words
    if ! CC=$compiler meson "${command[@]}" $options >"$dir.log" 2>&1; then
        cat "$dir.log" >&2
        die "meson could not set up the $flavour build"
    fi
    printf '%s\n' "$options" >"$dir/dev-options"
}

# Builds all of FLAVOUR. One build at a time per $VAR.
build_flavour() { # FLAVOUR [EXTRA…]
    local flavour=$1 dir quiet=(--quiet)
    [ -t 2 ] && quiet=()
    dir=$(build_dir "$flavour")
    mkdir -p "$VAR/build"
    (
        flock 8
        build_configure "$@"
        [[ $(ninja -C "$dir" -n) == *"no work to do"* ]] && exit
        say "building $flavour"
        ninja -C "$dir" -j "$(nproc)" "${quiet[@]}" >&2
    ) 8>"$VAR/build/lock" || die "the $flavour build failed"
}

build_command() {
    local flavour=${1:-release}
    [ $# -le 1 ] || misuse "build takes one flavour"
    build_options "$flavour" >/dev/null
    case $flavour in
    release) packages_ensure run ;;
    *) packages_ensure run test ;;
    esac
    build_flavour "$flavour"
    say "built: $(build_dir "$flavour")"
}
