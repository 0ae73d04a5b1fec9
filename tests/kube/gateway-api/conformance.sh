#!/usr/bin/env bash
# The whole conformance suite of the Gateway API on a cluster of its own; the table in docs/conformance.md.
# `make conformance-kube`.
set -uo pipefail
cd "$(dirname "$0")/../../.."

here=tests/kube/gateway-api cluster=tests/kube/cluster/cluster.sh reports=build/gateway-api
set -e
tests/kube/images.sh
trap "$cluster down" EXIT
export IMAGES=$PWD/build/kube-images
"$cluster" up
"$cluster" kubectl apply --server-side -f "$("$here/build.sh")/standard.yaml" >/dev/null
target/debug/tulle install | "$cluster" kubectl apply -f - >/dev/null
"$cluster" kubectl -n tulle-system rollout status deployment/tulle-controller --timeout=300s
set +e
failed=0
for run in mesh:MESH-HTTP,MESH-GRPC gateway:GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS; do
    echo "== ${run#*:}"
    "$here/run.sh" "$reports/${run%%:*}.json" "${run#*:}" || failed=1
    grep -E '^ +--- FAIL' "$reports/${run%%:*}.json.log"
done
"$here/table.py" "$reports"/{mesh,gateway}.json || failed=1
exit "$failed"
