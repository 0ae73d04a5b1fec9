#!/bin/sh
# A program from Rust's registry into build/tools/bin, unless it is there already; prints its path.
#
#   scripts/cargo-tool.sh NAME VERSION [OPTIONS OF CARGO INSTALL...]
#
# Built as quickly as possible: nobody waits for these programs. Options may say what is worth optimising.
set -eu
cd "$(dirname "$0")/.."
name=$1 version=$2
shift 2
tools=$PWD/build/tools
# With its version, so that another one is built when the script asks for it.
stamp=$tools/bin/.$name-$version
if [ ! -e "$stamp" ] || [ ! -x "$tools/bin/$name" ]; then
    if ! command -v cargo >/dev/null 2>&1; then
        echo "error: cargo is missing; scripts/require-rust.sh says how to get it" >&2
        exit 1
    fi
    begun=$(date +%s)
    echo "Building $name $version from its sources: some minutes, once" >&2
    # A target directory of its own, gone afterwards: another's options would be no use to anyone.
    target=$tools/$name-target.$$
    trap 'rm -rf "$target"' EXIT
    CARGO_TARGET_DIR=$target CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=none \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_OPT_LEVEL="${OPT_LEVEL:-0}" \
        cargo install "$name" --locked --version "$version" --root "$tools" --no-track --force "$@" >&2
    touch "$stamp"
    echo "built $name in $(($(date +%s) - begun)) s" >&2
fi
echo "$tools/bin/$name"
