# shellcheck shell=bash
# `package`: the Debian package. It is compiled from what is committed, as anybody with the sources would, or with --quick made of
# the release build at hand.

PACKAGE_DIR=$VAR/package

# The version of the project, of meson.build.
package_upstream_version() {
    sed -n "s/^  version: '\(.*\)',$/\1/p" "$ROOT/meson.build"
}

# The sources of the last commit, or with --quick what the package is made of beside the build, into a folder of their own.
package_export() { # FOLDER [--quick]
    rm -rf "$1"
    mkdir -p "$1"
    if [ "${2:-}" = --quick ]; then
        cp -a "$ROOT"/{debian,docs,README.md,CHANGELOG.md} "$1/"
        return
    fi
    git -C "$ROOT" archive HEAD | tar -x -C "$1"
    git -C "$ROOT" diff --quiet HEAD || say "changes that are not committed are not in the package"
}

# The first line of debian/changelog has the version of a release; between releases the commit is added.
package_set_version() { # FOLDER
    local version
    if [ "$1" -ef "$ROOT" ]; then die "the sources of the package are a copy"; fi
    version=$("$PYTHON" -B "$ROOT/tools/embed_commit.py" --debian "$(package_upstream_version)")
    sed -i "1s/(.*)/($version)/" "$1/debian/changelog"
}

# Builds it and prints the file's name. The build's own messages are in a log.
package_build() { # [--quick]
    local source=$PACKAGE_DIR/source/freshet log=$PACKAGE_DIR/build.log
    mkdir -p "$PACKAGE_DIR"
    (
        flock 8
        package_export "$source" "$@"
        package_set_version "$source"
        if [ "${1:-}" = --quick ]; then
            FRESHET_BUILD=$(build_dir release)
            export FRESHET_BUILD
        fi
        rm -f "$PACKAGE_DIR"/source/*.deb
        if ! (cd "$source" && dpkg-buildpackage -b -us -uc) >"$log" 2>&1; then
            tail -n 40 "$log" >&2
            die "the package could not be built, see $log"
        fi
        mv "$PACKAGE_DIR"/source/freshet_*.deb "$PACKAGE_DIR/"
        mv "$PACKAGE_DIR"/source/freshet-dbgsym_*.deb "$PACKAGE_DIR/" 2>/dev/null || true
        dpkg-parsechangelog -l "$source/debian/changelog" -S Version |
            sed "s|.*|$PACKAGE_DIR/freshet_&_$(dpkg --print-architecture).deb|"
    ) 8>"$PACKAGE_DIR/lock"
}

package_command() {
    case $* in
    '' | --quick) ;;
    *) misuse "package takes --quick or nothing" ;;
    esac
    packages_ensure run package
    if [ "${1:-}" = --quick ]; then build_flavour release; fi
    package_build "$@"
}
