#!/bin/sh
# oha into build/tools/bin from Rust's registry, unless it is there already; prints its path.
# Plain HTTP/1.1 is all that is asked of it, so it is built as quickly as that allows.
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
    # Only what a plain request passes through is optimised: its cryptography, database and resolver
    # take most of the time to build and none of a request's.
    set -- --config 'profile.release.package."*".opt-level=0'
    for library in bytes futures-core futures-util http http-body-util httparse hyper hyper-util kanal \
        memchr mio tikv-jemalloc-sys tokio; do
        set -- "$@" --config "profile.release.package.$library.opt-level=2"
    done
    CARGO_TARGET_DIR=$target \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=2 \
        cargo install oha --locked --version "$version" --root "$tools" --no-track "$@" >&2
fi
echo "$tools/bin/oha"
