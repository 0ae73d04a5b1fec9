#!/usr/bin/env bash
# Runs tests of sidecars and meshes with the programs of a release, which are compiled and linked in other ways than those of tests.
#
#   scripts/test-released.sh                            programs of this machine's architecture
#   scripts/test-released.sh --only mesh::demo          options of `scripts/suite test`; several `--only` are one or another
#   scripts/test-released.sh armv7 --only proxy::smoke  programs of another one, under qemu (scripts/test-foreign.sh says how)
#
# As root. A directory of its own, because another build of this checkout may run at the same time.
set -euo pipefail
cd "$(dirname "$0")/.."

own=$(scripts/target.sh --own)
arch=$own how=() listed=()
if [[ ${1:-} && $1 != -* ]]; then
    arch=$1
    shift
fi
if [[ $arch != "$own" ]]; then
    how=(scripts/binfmt.sh "$arch")
    listed=(--expected tests/foreign.txt)
    "${how[@]}" true # what it needs is there, before builds of minutes
fi
(($#)) || set -- --only local/proxy:: --only local/mesh::
# What CI and `make test` promise about the release build is not about this one.
unset CI TULLE_RELEASE
place=${FOREIGN_TARGET_DIR:-$PWD/target}/$arch
CARGO_TARGET_DIR=$place FOR=release scripts/build-static.sh "$arch"
TULLE_TEST_PROGRAMS=$place/$(scripts/target.sh --name "$arch")/release \
    "${how[@]}" python3 -B scripts/suite test "${listed[@]}" "$@" --below tests/local/ -- --workspace
