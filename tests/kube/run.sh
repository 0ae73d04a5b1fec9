#!/usr/bin/env bash
# The tests on a real Kubernetes that runs on this machine.
#
#   run.sh                every test of tests/kube/tests: `make test-kube-all`
#   run.sh --smoke        a short way through every part of the mesh: `make test-kube`, in CI
#   run.sh TEST...        these tests
#   LANES=1 run.sh ...    one cluster at a time instead of several: tests wait more than they compute
#
# A test that wants a cluster of two nodes says `Cluster::with_nodes(2)`, which is read here.
#
# The output of a test is in build/kube/TEST.log, and is printed if the test fails. Times go to the file that
# TULLE_SUITE_TESTS names: a line of JSON for each test and for each start of a cluster.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Tests that share a cluster, one after another: a line is a cluster. What they make is in namespaces of
# their own, which they delete. What they say to the whole mesh they take back: a Mesh, a second
# controller, a root (rotation leaves another one, which is as good). `images`, `quick_start`, `operate` and
# `nodes_cni` want a cluster without a mesh; `operate` leaves one behind. `rolling` and `gateway_life` have the
# same namespace, so not the same cluster.
shared=(
    "images quick_start operate rolling mesh families crds metrics rotation"
    "policies gateway ingress traces bookinfo gateway_life settings trust calls told console"
    "nodes_cni nodes node_loss"
)
# The tests of `make test-kube`. The others are long, or test a part of the mesh closely.
smoke=(operate rolling mesh families crds metrics policies gateway traces bookinfo)
# Tests that have a cluster of their own, the longest first, and why.
own=(
    "bench: measures, and wants the node's processor for itself and its pods"
    "life: restarts every component of the node, and changes the mesh's settings"
    "gateway_api_gateways: a suite of others, which makes and deletes what it likes"
    "gateway_api_mesh: likewise"
    "issuers: installs cert-manager's kinds, and a mesh with other options"
    "throttled: the API server is made to refuse the controller; its connections are cut"
    "upgrade: changes the sidecars' image in the mesh's settings"
    "cni: changes the node's CNI configuration"
    "helm: a mesh that is installed by helm, and no definition of a kind before it"
    "smi_metrics: installs the mesh with other values, and adds an API to the API server"
    "osm: another mesh, with webhooks and kinds of its own"
    "joining: a mesh with the defaults, whose settings it changes"
    "peer_istio: another mesh beside Tulle, which puts webhooks before every pod"
    "ipv6: a cluster without IPv4"
    "scale: weighs a controller that has seen nothing else"
)

if ((EUID != 0)); then
    echo "error: the test cluster makes namespaces and cgroups: run this as root" >&2
    exit 1
fi
known=()
for test in ${shared[*]} "${own[@]%%:*}"; do known+=("$test"); done
for file in tests/kube/tests/*; do # a file, or a directory with a main.rs
    test=$(basename "$file" .rs)
    if [[ " ${known[*]} " != *" $test "* ]]; then
        echo "error: tests/kube/run.sh does not say which cluster $test uses: add it to \`shared\` or \`own\`" >&2
        exit 1
    fi
done
tests=("${known[@]}")
if [[ ${1:-} == --smoke ]]; then
    tests=("${smoke[@]}")
    shift
fi
(($# == 0)) || tests=("$@")
for test in "${tests[@]}"; do
    if [[ " ${known[*]} " != *" $test "* ]]; then
        echo "error: there is no test $test; there are: ${known[*]}" >&2
        exit 64
    fi
done
wanted() { [[ " ${tests[*]} " == *" $1 "* ]]; }

# The nodes that tests of one cluster ask for in their sources.
nodes_for() { # TEST...
    local test asked="" all=""
    for test in "$@"; do
        asked=$(grep -rhoP 'Cluster::with_nodes\(\K[0-9]+' "tests/kube/tests/$test" "tests/kube/tests/$test.rs" 2>/dev/null |
            sort -u | paste -sd' ') || true
        all+="${asked:-1} "
    done
    asked=$(tr ' ' '\n' <<<"$all" | sort -u | paste -sd' ' | sed 's/^ //')
    if [[ $asked != [1-9] ]]; then
        echo "error: $*: these share a cluster, and ask for different numbers of nodes: $asked" >&2
        exit 1
    fi
    echo "$asked"
}

# The only family of addresses that a test asks for; 0: it asks for none.
family_for() { # TEST...
    local test
    for test in "$@"; do
        ! grep -rqs 'Cluster::with_ipv6_alone()' "tests/kube/tests/$test" "tests/kube/tests/$test.rs" || { echo 6; return; }
    done
    echo 0
}

# A job is the number of nodes of a cluster, its family of addresses, and its tests. The shared ones take longest.
jobs=()
add_job() { # TEST...
    local nodes family
    nodes=$(nodes_for "$@")
    family=$(family_for "$@")
    jobs+=("$nodes $family $*")
}
for together in "${shared[@]}"; do
    job=()
    for test in $together; do ! wanted "$test" || job+=("$test"); done
    ((${#job[@]} == 0)) || add_job "${job[@]}"
done
for test in "${own[@]%%:*}"; do ! wanted "$test" || add_job "$test"; done

# Build missing programs before clusters compete for the processor.
if wanted upgrade; then
    PREVIOUS=$(tests/kube/previous.sh)
    export PREVIOUS
fi
if wanted bench || wanted peer_istio; then
    FORTIO=$(scripts/fetch-fortio.sh)
    export FORTIO
fi
TULLE_KUBE_KEY=$(basename "$(tests/kube/cluster/build.sh)")
export TULLE_KUBE_KEY
# The Gateway API's kinds, which several tests install, take a moment; its suite takes minutes.
tests/kube/gateway-api/build.sh crds >/dev/null
case " ${tests[*]} " in *" gateway_api_"*) tests/kube/gateway-api/build.sh >/dev/null ;; esac
! wanted issuers || tests/kube/issuers/build.sh >/dev/null
# 69: there is no Go, and the test says that it is skipped.
! wanted peer_istio || bench/mesh-peers/istio/build.sh >/dev/null || (($? == 69))
! wanted helm || tests/kube/helm/build.sh >/dev/null || (($? == 69))
! wanted osm || { tests/kube/helm/build.sh && bench/mesh-peers/osm/build.sh; } >/dev/null || (($? == 69))
tests/kube/images.sh
mkdir -p build/kube
# Run as they are, without a cargo in between, which would wait for others that build.
python3 -B scripts/suite programs -- --package tests-kube >build/kube/programs
export IMAGES=$PWD/build/kube-images
printf '%s\0' "${jobs[@]}" | xargs -0 -n 1 -P "${LANES:-3}" --process-slot-var=LANE tests/kube/one.sh
