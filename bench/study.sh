#!/usr/bin/env bash
# The studies as published, between pods, beside the real Open Service Mesh and the real Istio: in a test cluster of three
# nodes, which it starts and ends. As root; `make build` has made the programs.
#
#   bench/study.sh             all of them, each mesh and path several times: a night
#   bench/study.sh --quick     native and sweep once, with fewer connections, in half an hour
#   STUDIES="spring" ...       only these; spring takes some 25 minutes with --quick, Maven, Java 17 and 5 GiB of memory:
#                                native   study 1 with the small applications, under Fortio
#                                spring   study 1 as published: Spring applications under JMeter, by an Ingress
#                                sweep    study 2 over HTTP/1.1
#                                grpc     study 2 over gRPC
#                                nowasm   native and spring with Open Service Mesh without its statistics filter
#   PEERS="osm" ...            other peers than "osm istio": of osm, osm-nowasm and istio, also none of them
#   INGRESS=on|off ...         native or spring by an Ingress or without it, other than above
#   SHARES=0.1 TIMES="5 10" ...  other limits of sidecars; seconds of warm-up and measurement
#   REPEATS=3 ...              how often each mesh and path is measured
#   MODES=both CONNECTIONS=2,64 ...  of sweep and grpc: which sidecars there are, and connections
#
# Results: bench-out/<date>/{cluster-seeds,cluster-spring,cluster-sweep,cluster-grpc,…}/report.html, or in OUT.
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
read -ra peers <<<"${PEERS-osm istio}"
((quick)) && all="native sweep" || all="native spring sweep grpc nowasm"
read -ra studies <<<"${STUDIES:-$all}"
for study in "${studies[@]}"; do
    if [[ " native spring sweep grpc nowasm " != *" $study "* ]]; then
        echo "error: STUDIES: $study: there are native, spring, sweep, grpc and nowasm" >&2
        exit 64
    fi
done
for peer in "${peers[@]}"; do
    if [[ " osm osm-nowasm istio " != *" $peer "* ]]; then
        echo "error: PEERS: $peer: there are osm, osm-nowasm and istio" >&2
        exit 64
    fi
done
has() { # NAME LIST...
    local name=$1
    shift
    [[ " $* " == *" $name "* ]]
}
if has osm "${peers[@]}" && has osm-nowasm "${peers[@]}"; then
    echo "error: PEERS: osm and osm-nowasm are one mesh with different settings; STUDIES=nowasm measures the other one" >&2
    exit 64
fi

# Two cores carry applications, load and sidecars. At the smaller limit a sidecar of Envoy is what the load waits for, as
# in the published study.
shares=${SHARES:-0.25,0.1}
if ((quick)); then
    native=(--repeats "${REPEATS:-1}") native_times="5 30"
    spring=(--repeats "${REPEATS:-1}") spring_times="45 30"
    sweep=(--repeats "${REPEATS:-1}" --modes "${MODES:-both,baseline}" --connections "${CONNECTIONS:-4,32}")
    sweep_times="2 30"
else
    native=(--repeats "${REPEATS:-5}") native_times="60 180"
    spring=(--repeats "${REPEATS:-3}") spring_times="120 180"
    sweep=(--repeats "${REPEATS:-3}" --modes "${MODES:-baseline,clientsidecar,serversidecar,both}")
    sweep+=(--connections "${CONNECTIONS:-2,4,8,16,32,64}") sweep_times="20 120"
fi
native+=(--cpu "$shares") spring+=(--cpu "$shares")
times() { # WARMUP SECONDS
    echo --warmup "$1" --seconds "$2"
}
# shellcheck disable=SC2046,SC2086 # two numbers, four words
native+=($(times ${TIMES:-$native_times})) spring+=($(times ${TIMES:-$spring_times})) sweep+=($(times ${TIMES:-$sweep_times}))
by_ingress=(--ingress --mesh-ingress istio=istio=istio-system/istio-ingressgateway)
case ${INGRESS:-} in
"") spring+=("${by_ingress[@]}") ;;
on) native+=("${by_ingress[@]}") spring+=("${by_ingress[@]}") ;;
off) ;;
*)
    echo "error: INGRESS=$INGRESS: on or off" >&2
    exit 64
    ;;
esac

# A cluster of its own, beside those of tests.
: "${XDG_CACHE_HOME:=$HOME/.cache}"
export STATE=${STATE:-$XDG_CACHE_HOME/tulle-kube/run-study} CGROUP=${CGROUP:-/tulle-kube-study} NODES=3
export IMAGES=$PWD/build/study-images
cluster=$PWD/tests/kube/cluster/cluster.sh
FORTIO=$(scripts/fetch-fortio.sh)
export FORTIO
PROFILE=release tests/kube/images.sh
# A node imports what is there.
if has spring "${studies[@]}" || has nowasm "${studies[@]}"; then
    bench/seeds/java-image.sh "$IMAGES/bench-java.tar"
else
    rm -f "$IMAGES"/bench-java.tar*
fi
"$cluster" down >/dev/null 2>&1 || true
trap '"$cluster" down' EXIT
"$cluster" up >/dev/null

# `kubectl` as a user would have it.
kubectl=$IMAGES/kubectl
printf '#!/bin/sh\nexec %q kubectl "$@"\n' "$cluster" >"$kubectl"
chmod +x "$kubectl"

echo "=== installing tulle"
# Everywhere: an Ingress's proxies are in the namespace of the Ingress.
"$cluster" exec "$PWD/target/release/tulle" install --profile strict --set gateways.allNamespaces=true |
    "$kubectl" apply --server-side -f - >/dev/null
"$kubectl" -n tulle-system rollout status deployment/tulle-controller --timeout=300s >/dev/null
meshes=()
install() { # PEER
    local label
    echo "=== installing $1"
    # OSM has one limit for all sidecars; the study gives each its own CPU afterwards, for which there must be one. Memory is
    # limited as the study limits every mesh's.
    case $1 in
    osm) label=$(SIDECAR_CPU=1 SIDECAR_MEMORY=512Mi WASM=on bench/mesh-peers/osm/install.sh) ;;
    osm-nowasm) label=$(SIDECAR_CPU=1 SIDECAR_MEMORY=512Mi WASM=off bench/mesh-peers/osm/install.sh) ;;
    istio) label=$(INGRESS=on INGRESS_NODE="node$NODES" bench/mesh-peers/istio/install.sh) ;;
    esac
    meshes+=(--mesh "$1=$label")
}
for peer in "${peers[@]}"; do install "$peer"; done
# The proxies of Tulle's Ingress say no node; with this they come to that of the load, as published.
for ((node = 1; node < NODES; node++)); do
    "$kubectl" taint node "node$node" tulle.dev/bench=applications:PreferNoSchedule >/dev/null
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
published=(--app spring --load jmeter)
! has native "${studies[@]}" || study cluster-seeds seeds "${native[@]}"
! has spring "${studies[@]}" || study cluster-spring seeds "${published[@]}" "${spring[@]}"
! has sweep "${studies[@]}" || study cluster-sweep sweep "${sweep[@]}"
! has grpc "${studies[@]}" || study cluster-grpc sweep --protocol grpc "${sweep[@]}"
if has nowasm "${studies[@]}" && has osm "${peers[@]}"; then
    meshes=()
    install osm-nowasm
    study cluster-seeds-nowasm seeds "${native[@]}"
    study cluster-spring-nowasm seeds "${published[@]}" "${spring[@]}"
fi

echo "=== $out"
ls -1 "$out"/*/report.html
exit "$found"
