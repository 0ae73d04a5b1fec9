#!/usr/bin/env bash
# The tests on a real Kubernetes: starts it, runs them, ends it, whatever happens. `make test-kube`.
#
#   run.sh [TEST...]    all of tests/kube/tests, or these
set -euo pipefail
cd "$(dirname "$0")/../.."

if ((EUID != 0)); then
    echo "error: the test cluster makes namespaces and cgroups: run this as root" >&2
    exit 1
fi
wanted() { ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" $1 "* ]]; }
chosen=("$@")
if wanted upgrade; then
    PREVIOUS=$(tests/kube/previous.sh)
    export PREVIOUS
fi
if wanted bench; then
    FORTIO=$(scripts/fetch-fortio.sh)
    export FORTIO
fi
tests/kube/images.sh
trap tests/kube/cluster/cluster.sh\ down EXIT
export IMAGES=$PWD/build/kube-images
tests/kube/cluster/cluster.sh up
tests=()
for test in "$@"; do
    tests+=(--test "$test")
done
TULLE_TEST_KUBE=1 cargo test --locked --package tests-kube "${tests[@]}"
