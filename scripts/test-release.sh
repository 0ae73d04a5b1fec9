#!/usr/bin/env bash
# Makes the release of this commit twice, in two clones in directories of other names, each with a target directory of its own, and
# compares every byte. Then looks at what came out: programs are static, stripped and within their budgets; archives and packages
# have the documentation, man pages and completions; `tulle --version` is the release's; the demo comes up.
#
#   scripts/test-release.sh                          all four architectures: hours
#   ARCH="amd64 armv7" scripts/test-release.sh       some of them
#   RELEASE=DIRECTORY scripts/test-release.sh        looks at a release that is there, and makes none
#
# Programs of another architecture are run by qemu, as root (scripts/binfmt.sh); who is not root reads that they were not run. The
# clones are in PLACE, outside of the checkout, whose .cargo/config.toml Cargo would read as well. They take 10 GB and more, and are
# removed when all is well: what differs is worth a look.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${ARCH:=amd64 arm64 armv7 riscv64}" "${RELEASE:=}" "${PLACE:=${XDG_CACHE_HOME:-$HOME/.cache}/tulle-release-twice}"
read -ra architectures <<<"$ARCH"
own=$(scripts/target.sh --own)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
commit=$(git rev-parse --verify HEAD)
scratch=$(mktemp -d) made= demo=
trap 'end_demo || true; rm -rf "$scratch"' EXIT
failed=0

wrong() {
    echo "FAILED: $*" >&2
    failed=1
}

# What a release costs is told, as by other scripts that build (scripts/suite/times.py).
make_in() { # DIRECTORY
    local begun=$SECONDS
    mkdir -p "$(dirname "$1")"
    git clone --quiet --no-hardlinks . "$1"
    # Somebody may commit meanwhile.
    git -C "$1" checkout --quiet --detach "$commit"
    # Neither the options and directories of a make that runs this, nor settings of another release.
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u RELEASE_ARCH -u CARGO_TARGET_DIR -u OUTPUT -u KEY -u PROFILE -u PROGRAMS -u PAGES -u DOCS \
        make --no-print-directory -C "$1" release ARCH="$ARCH"
    echo "built a release in $((SECONDS - begun)) s"
}

make_twice() {
    local first=$PLACE/first second=$PLACE/another/directory
    if [[ $(git status --porcelain --untracked-files=no) ]]; then
        echo "note: changes without a commit are not in the release"
    fi
    if [[ -e $PLACE && ! -e $PLACE/first/.git ]]; then
        echo "error: PLACE=$PLACE: this is there, and is not of an earlier run; name another directory" >&2
        exit 64
    fi
    rm -rf "$PLACE"
    made=1
    make_in "$first"
    make_in "$second"
    RELEASE=$first/build/release
    if diff -r "$RELEASE" "$second/build/release"; then
        echo "both releases of ${commit:0:12} have the same bytes"
    else
        wrong "two releases of ${commit:0:12} differ; both are in $PLACE"
    fi
}

# A static program, position-independent or not, asks for no interpreter and no library.
is_static() { # PROGRAM
    ! readelf --wide --program-headers "$1" | grep -q INTERP && ! readelf --wide --dynamic "$1" 2>/dev/null | grep -q NEEDED
}

is_stripped() { # PROGRAM
    ! readelf --wide --sections "$1" | grep -qE ' \.(symtab|debug_info) '
}

machine() { # ARCH
    case $1 in
    amd64) echo "Advanced Micro Devices X86-64" ;;
    arm64) echo AArch64 ;;
    armv7) echo ARM ;;
    riscv64) echo RISC-V ;;
    esac
}

check_programs() { # ARCH DIRECTORY
    local arch=$1 place=$2 program path found said how=()
    for program in tulle tulle-proxy tulle-envoy; do
        path=$place/$program
        if [[ ! -x $path ]]; then
            wrong "$arch: there is no $program"
            continue
        fi
        found=$(readelf --wide --file-header "$path" | sed -n 's/^ *Machine: *//p')
        [[ $found == "$(machine "$arch")" ]] || wrong "$arch: $program is for ${found:-nothing that readelf knows}"
        is_static "$path" || wrong "$arch: $program is not static"
        is_stripped "$path" || wrong "$arch: $program is not stripped"
    done
    # docs/machines.md has the sizes of each.
    scripts/fits.sh "$place/tulle" 15000000 || failed=1
    scripts/fits.sh "$place/tulle-proxy" 11000000 || failed=1
    if [[ $arch != "$own" ]]; then
        if ((EUID)); then
            echo "skipped in part: only root runs programs of $arch (scripts/binfmt.sh)"
            return
        fi
        how=(scripts/binfmt.sh "$arch")
    fi
    said=$("${how[@]}" "$place/tulle" --version) || wrong "$arch: tulle --version does not run"
    [[ $said == "tulle $version" ]] || wrong "$arch: tulle --version says ${said@Q}, and the release is $version"
}

# The same files in a tarball as below /usr in a package, where man pages are compressed and zsh has another directory.
check_share() { # WHAT DIRECTORY COMPRESSED ZSH
    local what=$1 place=$2 file
    for file in man/man1/tulle.1"$3" man/man1/tulle-up.1"$3" man/man1/tulle-proxy.1"$3" man/man1/tulle-envoy.1"$3" \
        bash-completion/completions/tulle fish/vendor_completions.d/tulle.fish "zsh/$4/_tulle" \
        doc/tulle/html/{en,zh}/{index,install,machines}.html doc/tulle/README.md; do
        [[ -s $place/$file ]] || wrong "$what has no share/$file"
    done
}

check_arch() { # ARCH
    local arch=$1 place=$scratch/$1 tarball deb named=$1
    [[ $arch != armv7 ]] || named=armhf
    tarball=$RELEASE/tulle-$version-linux-$arch.tar.gz deb=$RELEASE/tulle_$version-1_$named.deb
    if [[ ! -e $tarball || ! -e $deb ]]; then
        wrong "$arch: there is no ${tarball##*/}, or no ${deb##*/}"
        return
    fi
    mkdir -p "$place"/{tarball,deb}
    tar --extract --gzip --file "$tarball" --strip-components=1 --directory "$place/tarball"
    dpkg-deb --extract "$deb" "$place/deb"
    check_programs "$arch" "$place/tarball/bin"
    check_share "${tarball##*/}" "$place/tarball/share" '' site-functions
    check_share "${deb##*/}" "$place/deb/usr/share" .gz vendor-completions
    [[ -s $place/deb/usr/lib/systemd/system/tulle.service ]] || wrong "${deb##*/} has no unit of systemd"
    diff -r "$place/tarball/bin" "$place/deb/usr/bin" || wrong "$arch: the package has other programs than the tarball"
    (cd "$place/tarball/bin" && stat --format '%n %s' -- *) |
        awk -v arch="$arch" '{ printf "%s%s %.1f MB", (NR > 1 ? ", " : arch ": "), $1, $2 / 1e6 } END { print "" }'
}

# An interrupt leaves no mesh either, which would go on without its files.
end_demo() {
    [[ $demo ]] || return 0
    "$demo" down --purge || return
    demo=
}

# The demo of this machine's architecture, with programs of the release alone.
check_demo() { # ARCH
    local arch=$1 name=tulle-demo-$version-linux-$1 place=$scratch/demo/$1 said
    mkdir -p "$place"
    if ! tar --extract --gzip --file "$RELEASE/$name.tar.gz" --directory "$place"; then
        wrong "$arch: there is no $name.tar.gz"
        return
    fi
    is_static "$place/$name/bookinfo" || wrong "$arch: bookinfo is not static"
    is_stripped "$place/$name/bookinfo" || wrong "$arch: bookinfo is not stripped"
    [[ $arch == "$own" ]] || return 0
    demo=$scratch/$arch/tarball/bin/tulle
    export TULLE_STATE=$place/state TULLE_NAME=release-demo
    said=$("$demo" up "$place/$name/mesh.yaml" --verify --detach 2>&1) || wrong "$arch: the demo does not come up"
    end_demo || wrong "$arch: the demo does not end"
    [[ $said == *"each mutual TLS between the two identities shown"* ]] || wrong "$arch: the demo says $said"
}

[[ $RELEASE ]] || make_twice
(cd "$RELEASE" && sha256sum --check --quiet SHA256SUMS) || wrong "SHA256SUMS is of other files"
for arch in "${architectures[@]}"; do
    check_arch "$arch"
    check_demo "$arch"
done
if ((failed)); then exit 1; fi
[[ ! $made ]] || rm -rf "$PLACE"
echo "the release of $version for ${architectures[*]} is as it should be"
