#!/usr/bin/env bash
# Removes Open Service Mesh from the running test cluster. Pods keep their sidecars until they are made anew.
set -euo pipefail
cluster=$(dirname "$0")/../../../tests/kube/cluster/cluster.sh
kubectl() { "$cluster" kubectl "$@"; }

ours=app.kubernetes.io/name=openservicemesh.io
# The webhooks first: with nobody behind them they would refuse every pod of the mesh's namespaces.
kubectl delete mutatingwebhookconfigurations,validatingwebhookconfigurations --selector "$ours" >/dev/null
kubectl delete namespace osm-system --ignore-not-found >/dev/null
kubectl delete clusterroles,clusterrolebindings,customresourcedefinitions --selector "$ours" >/dev/null
