#!/usr/bin/env bash
# Installs Istio in the running test cluster (tests/kube/cluster), waits until it gives sidecars to pods, and prints
# the label by which a namespace joins. Every word goes to helm, to change a value:
#
#   install.sh --set-string global.proxy.resources.limits.cpu=1,global.proxy.resources.limits.memory=512Mi
#
# STATE and CGROUP name the cluster, as for cluster.sh. Without Go it ends with 69 (EX_UNAVAILABLE).
set -euo pipefail
peer=$(cd "$(dirname "$0")" && pwd)
cluster=$peer/../../../tests/kube/cluster/cluster.sh
NAMESPACE=istio-system
LABEL=istio-injection=enabled

kubectl() { "$cluster" kubectl "$@"; }
nodes=$(kubectl get nodes -o name | wc -l)
built=$("$peer/build.sh")
tag=$(<"$built/tag")
helm=$("$peer/../../../tests/kube/helm/build.sh")

# Nodes keep images of earlier runs. The tag tells one state of the inputs from another.
for ((node = 1; node <= nodes; node++)); do
    ctr() { "$cluster" on "$node" exec ctr --namespace k8s.io images "$@" </dev/null; }
    present=$(ctr ls --quiet)
    for name in pilot proxyv2; do
        if ! grep --quiet --line-regexp --fixed-strings "localhost/$name:$tag" <<<"$present"; then
            ctr import "$built/images/$name.tar" >&2
        fi
    done
    # Images of earlier states are of no more use, and large.
    old=$(grep --extended-regexp '^localhost/(pilot|proxyv2):' <<<"$present" | grep --invert-match ":$tag\$" || true)
    [[ -z $old ]] || xargs --arg-file <(echo "$old") "$cluster" on "$node" exec ctr --namespace k8s.io images rm >&2
done

chart() { # NAME DIRECTORY [OPTIONS]
    # The API server's version, of which there is nobody to ask before the objects are sent.
    "$helm" template "$1" "$built/charts/$2" --namespace "$NAMESPACE" --kube-version "$version" \
        --set global.hub=localhost,global.tag="$tag" "${@:3}"
}
version=$(kubectl version -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["serverVersion"]["gitVersion"])')
# On the server's side: what kubectl would note on the definitions of kinds is too long for an annotation.
apply() { kubectl apply --server-side --force-conflicts -f - >&2; }
kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | apply
chart base base | apply
kubectl wait --for=condition=Established --timeout=120s \
    customresourcedefinition/peerauthentications.security.istio.io >&2
chart istiod istio-discovery --values "$peer/values.yaml" "$@" | apply
if ! kubectl --namespace "$NAMESPACE" rollout status deployment/istiod --timeout=300s >&2; then
    echo "error: istiod does not become ready; the last words of its pod:" >&2
    kubectl --namespace "$NAMESPACE" logs deployment/istiod --tail=20 >&2
    exit 1
fi

# istiod enters its certificate in the webhooks' configurations, and the API server takes a moment to use them.
pod='{apiVersion: v1, kind: Pod, metadata: {name: asked-about, namespace: default, labels: {sidecar.istio.io/inject: "true"}},
      spec: {containers: [{name: app, image: app}]}}'
gives_sidecars() { kubectl create --dry-run=server -o yaml -f - <<<"$pod" | grep --quiet "name: istio-proxy"; }
is_strict() { apply <"$peer/strict.yaml"; }
eventually() { # WHAT COMMAND...
    local end=$((SECONDS + 120)) said
    until said=$("${@:2}" 2>&1); do
        if ((SECONDS > end)); then
            echo "error: Istio: $1: not in time: $said" >&2
            kubectl --namespace "$NAMESPACE" logs deployment/istiod --tail=20 >&2
            exit 1
        fi
        sleep 0.5
    done
}
eventually "pods have sidecars" gives_sidecars
eventually "the mesh is strict" is_strict
echo "$LABEL"
