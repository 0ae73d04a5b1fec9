#!/usr/bin/env bash
# Imports a peer's images on every node of the running test cluster: `import.sh TAG IMAGES`, of which each is IMAGES/NAME.tar
# and has the tag TAG. The tag tells one state of what they are made of from another; those of earlier states are removed, as
# nodes keep images between runs, and these are large.
set -euo pipefail
tag=$1 images=$2
cluster=$(dirname "$0")/../../tests/kube/cluster/cluster.sh

nodes=$("$cluster" kubectl get nodes --output name | wc -l)
for ((node = 1; node <= nodes; node++)); do
    ctr() { "$cluster" on "$node" exec ctr --namespace k8s.io images "$@" </dev/null >&2; }
    known=$("$cluster" on "$node" exec ctr --namespace k8s.io images ls --quiet)
    for image in "$images"/*.tar; do
        name=localhost/$(basename "$image" .tar)
        grep --quiet --line-regexp --fixed-strings "$name:$tag" <<<"$known" || ctr import "$image"
        for old in $(grep --fixed-strings "$name:" <<<"$known" | grep --invert-match ":$tag\$" || true); do
            ctr rm "$old"
        done
    done
done
