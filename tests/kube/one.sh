#!/usr/bin/env bash
# One test on a cluster of its own, for run.sh, which has built everything.
#
#   one.sh TEST    LANE tells clusters that run at once apart
set -euo pipefail
cd "$(dirname "$0")/../.."

test=$1 log=build/kube/$1.log cluster=tests/kube/cluster/cluster.sh
. tests/kube/cluster/env.sh
export STATE=$STATE-$LANE CGROUP=$CGROUP-$LANE
trap '"$cluster" down' EXIT
begun=$SECONDS
if "$cluster" up >"$log" 2>&1 &&
    TULLE_TEST_KUBE=1 cargo test --locked --package tests-kube --test "$test" -- --nocapture >>"$log" 2>&1; then
    echo "ok: $test, $((SECONDS - begun)) s"
else
    # In one write, so that another test's line does not come in between.
    echo "$(cat "$log"; echo "FAILED: $test, $((SECONDS - begun)) s; all of it: $log")"
    exit 1
fi
