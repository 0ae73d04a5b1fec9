#!/usr/bin/env bash
# Fetches what another architecture's images need besides a cross compiler, from Debian's packages for it, into
# build/cross/ARCH: nft with its libraries (`root`) and, where static programs have musl, a C compiler for it (`cc`, with its
# headers and start files, or aws-lc and jemalloc would be built for glibc). Nothing of this machine is changed: the packages
# are only unpacked. Prints the directory.
#
#   scripts/cross.sh amd64|arm64|armv7
set -euo pipefail
cd "$(dirname "$0")/.."

arch=$1
case $arch in
amd64) debian=amd64 machine=x86_64 ;;
arm64) debian=arm64 machine=aarch64 ;;
armv7) debian=armhf machine= ;;
*)
    echo "error: $arch: images are made for amd64, arm64 and armv7" >&2
    exit 64
    ;;
esac
directory=$PWD/build/cross/$arch
if [[ ! -e $directory/whole ]]; then
    gcc=$machine-linux-gnu-gcc
    if [[ $machine ]] && ! command -v "$gcc" >/dev/null; then
        echo "error: there is no $gcc (Debian: gcc-${machine/_/-}-linux-gnu)" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null; then
        echo "error: there is no apt-get, which finds Debian's packages for $debian" >&2
        exit 1
    fi
    rm -rf "$directory"
    mkdir -p "$directory"/{lists,packages/archives}/partial "$directory/root"
    touch "$directory/status" # as if nothing were installed
    apt() {
        apt-get -qq -o APT::Architecture="$debian" -o APT::Architectures="$debian" -o Debug::NoLocking=1 \
            -o APT::Sandbox::User="$(id -un)" -o Dir::State::lists="$directory/lists" \
            -o Dir::State::status="$directory/status" -o Dir::Cache="$directory/packages" "$@" >&2
    }
    apt update
    apt install --download-only --yes --no-install-recommends nftables
    # Without what it depends on: a compiler that would not run here.
    [[ ! $machine ]] || (cd "$directory/packages/archives" && apt download musl-dev)
    for package in "$directory"/packages/archives/*.deb; do
        dpkg-deb --extract "$package" "$directory/root"
    done
    if [[ $machine ]]; then
        # Debian's own musl-gcc, with another gcc and other places.
        sed "s|/usr/|$directory/root/usr/|g" "$directory/root/usr/lib/$machine-linux-musl/musl-gcc.specs" >"$directory/specs"
        printf '#!/bin/sh\nexec %s "$@" -specs %s/specs\n' "$gcc" "$directory" >"$directory/cc"
        chmod +x "$directory/cc"
    fi
    rm -rf "$directory/lists" "$directory/packages" "$directory/status"
    touch "$directory/whole"
fi
echo "$directory"
