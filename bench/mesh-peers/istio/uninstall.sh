#!/usr/bin/env bash
# Removes Istio from the running test cluster. Pods keep their sidecars until they are made again.
set -euo pipefail
peer=$(cd "$(dirname "$0")" && pwd)
kubectl() { "$peer/../../../tests/kube/cluster/cluster.sh" kubectl "$@"; }

# First the webhooks: without istiod they would refuse every pod. Both charts put this label on all their objects.
for kind in ingressclasses mutatingwebhookconfigurations validatingwebhookconfigurations clusterrolebindings clusterroles; do
    kubectl delete "$kind" --selector app.kubernetes.io/part-of=istio >&2
done
kubectl delete namespace istio-system --ignore-not-found >&2
kubectl delete customresourcedefinitions --selector app.kubernetes.io/part-of=istio --ignore-not-found >&2
