#!/bin/sh
# oha into build/tools/bin from Rust's registry, unless it is there already; prints its path.
# Plain HTTP/1.1 is all that is asked of it, so it is built as lean and as quickly as that allows.
set -eu
cd "$(dirname "$0")/.."
version=1.16.0
tools=$PWD/build/tools
if [ ! -x "$tools/bin/oha" ]; then
    if ! command -v cargo >/dev/null 2>&1; then
        echo "fetch-oha: cargo is missing; scripts/require-rust.sh says how to get it" >&2
        exit 1
    fi
    # A target directory of its own, gone afterwards: another's options would be no use to anyone.
    target=$tools/oha-target.$$
    trap 'rm -rf "$target"' EXIT
    CARGO_TARGET_DIR=$target \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=2 \
        cargo install oha --locked --version "$version" --root "$tools" --no-track >&2
fi
echo "$tools/bin/oha"
