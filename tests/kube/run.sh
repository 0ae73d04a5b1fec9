#!/usr/bin/env bash
# The tests on a real Kubernetes, each on a cluster of its own, several at once. `make test-kube`.
#
#   run.sh [TEST...]          all of tests/kube/tests, or these
#   LANES=1 run.sh [TEST...]  one after another; otherwise three at once: they wait more than they compute
#
# What a test says is in build/kube/TEST.log, and is printed if it fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ((EUID != 0)); then
    echo "error: the test cluster makes namespaces and cgroups: run this as root" >&2
    exit 1
fi
# The longest first, so that none is left to run alone at the end.
tests=(bench life gateway_api_gateways issuers throttled gateway_life operate upgrade rotation cni)
for file in tests/kube/tests/*; do # a file, or a directory with a main.rs
    test=$(basename "$file" .rs)
    [[ " ${tests[*]} " == *" $test "* ]] || tests+=("$test")
done
(($# == 0)) || tests=("$@")
wanted() { [[ " ${tests[*]} " == *" $1 "* ]]; }
if wanted upgrade; then
    PREVIOUS=$(tests/kube/previous.sh)
    export PREVIOUS
fi
if wanted bench; then
    FORTIO=$(scripts/fetch-fortio.sh)
    export FORTIO
fi
# What is built when it is missing is built before clusters compete for the processor.
tests/kube/cluster/build.sh >/dev/null
case " ${tests[*]} " in *" gateway_api_"*) tests/kube/gateway-api/build.sh >/dev/null ;; esac
! wanted issuers || tests/kube/issuers/build.sh >/dev/null
tests/kube/images.sh
cargo test --locked --package tests-kube --no-run
mkdir -p build/kube
export IMAGES=$PWD/build/kube-images
printf '%s\0' "${tests[@]}" | xargs -0 -n 1 -P "${LANES:-3}" --process-slot-var=LANE tests/kube/one.sh
