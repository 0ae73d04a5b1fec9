#!/usr/bin/env bash
# Both studies as published, between pods, beside the real Open Service Mesh and the real Istio: in a test cluster of three
# nodes, which it starts and ends. As root; `make build` has made the programs.
#
#   bench/study.sh             each mesh and path five times, and Open Service Mesh with and without its statistics filter: hours
#   bench/study.sh --quick     once, with fewer connections, in half an hour
#   PEERS="osm" bench/study.sh other peers than "osm istio"
#
# Results: bench-out/<date>/{cluster-seeds,cluster-sweep,…}/report.html, or in OUT.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
    echo "error: the test cluster makes namespaces and cgroups: run this as root" >&2
    exit 1
fi
quick=0
case "${1:-}" in
"") ;;
--quick) quick=1 ;;
*)
    echo "error: $1: there is only --quick" >&2
    exit 64
    ;;
esac
for program in tulle tulle-bench tulle-proxy tulle-cni bookinfo; do
    if [[ ! -x target/release/$program ]]; then
        echo "error: target/release/$program is missing: make build" >&2
        exit 1
    fi
done
out=${OUT:-bench-out/$(date -u +%Y-%m-%d-%H%M%S)}
read -ra peers <<<"${PEERS:-osm istio}"

# Two cores carry applications, load and sidecars. At the smaller limit a sidecar of Envoy is what the load waits for, as
# in the published study.
shares=0.25,0.1
if ((quick)); then
    seeds=(--cpu "$shares" --repeats 1 --warmup 5 --seconds 30)
    sweep=(--modes both,baseline --connections 4,32 --repeats 1 --warmup 2 --seconds 30)
else
    seeds=(--cpu "$shares" --repeats 5 --warmup 60 --seconds 180)
    sweep=(--connections 2,4,8,16,32,64 --repeats 3 --warmup 20 --seconds 120)
fi

# A cluster of its own, beside those of tests.
: "${XDG_CACHE_HOME:=$HOME/.cache}"
export STATE=${STATE:-$XDG_CACHE_HOME/tulle-kube/run-study} CGROUP=${CGROUP:-/tulle-kube-study} NODES=3
export IMAGES=$PWD/build/study-images
cluster=$PWD/tests/kube/cluster/cluster.sh
FORTIO=$(scripts/fetch-fortio.sh)
export FORTIO
PROFILE=release tests/kube/images.sh
"$cluster" down >/dev/null 2>&1 || true
trap '"$cluster" down' EXIT
"$cluster" up >/dev/null

# `kubectl` as a user would have it.
kubectl=$IMAGES/kubectl
printf '#!/bin/sh\nexec %q kubectl "$@"\n' "$cluster" >"$kubectl"
chmod +x "$kubectl"

echo "=== installing tulle"
"$cluster" exec "$PWD/target/release/tulle" install --profile strict | "$kubectl" apply --server-side -f - >/dev/null
"$kubectl" -n tulle-system rollout status deployment/tulle-controller --timeout=300s >/dev/null
meshes=()
for peer in "${peers[@]}"; do
    echo "=== installing $peer"
    # OSM has one limit for all sidecars; the study gives each its own afterwards, for which there must be one.
    label=$(SIDECAR_CPU=1 "bench/mesh-peers/$peer/install.sh")
    meshes+=(--mesh "$peer=$label")
done

found=0
study() { # NAME STUDY [OPTIONS]
    local name=$1 code=0
    shift
    echo "=== tulle bench $* ${meshes[*]}"
    target/release/tulle-bench "$@" --kubernetes --kubectl "$kubectl" --fortio-image localhost/fortio:test \
        "${meshes[@]}" --out "$out/$name" || code=$?
    # 79: a budget is exceeded. That is a result.
    ((code == 0 || code == 79)) || exit "$code"
    ((code == 0)) || found=79
}
study cluster-seeds seeds "${seeds[@]}"
study cluster-sweep sweep "${sweep[@]}"
if ((!quick)) && [[ " ${peers[*]} " == *" osm "* ]]; then
    label=$(SIDECAR_CPU=1 WASM=off bench/mesh-peers/osm/install.sh)
    meshes=(--mesh "osm-wasmless=$label")
    study cluster-seeds-wasmless seeds "${seeds[@]}"
fi

echo "=== $out"
ls -1 "$out"/*/report.html
exit "$found"
