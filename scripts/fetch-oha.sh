#!/bin/sh
# oha into build/tools/bin from Rust's registry, unless it is there already; prints its path.
# Plain HTTP/1.1 is all that is asked of it.
set -eu
# Only what a plain request passes through is optimised: its cryptography, database and resolver
# take most of the time to build and none of a request's.
set --
for library in bytes futures-core futures-util http http-body-util httparse hyper hyper-util kanal \
    memchr mio oha tikv-jemalloc-sys tokio; do
    set -- "$@" --config "profile.release.package.$library.opt-level=2"
done
exec "$(dirname "$0")/cargo-tool.sh" oha 1.16.0 "$@"
