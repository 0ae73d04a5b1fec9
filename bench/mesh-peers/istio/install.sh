#!/usr/bin/env bash
# Installs Istio in the running test cluster (tests/kube/cluster), waits until it gives sidecars to pods, and prints
# the label by which a namespace joins. Every word goes to helm, to change a value:
#
#   install.sh --set-string global.proxy.resources.limits.cpu=1,global.proxy.resources.limits.memory=512Mi
#
# INGRESS=on also installs its gateway and the class `istio` of Ingresses, with INGRESS_NODE=NAME on that node.
#
# STATE and CGROUP name the cluster, as for cluster.sh. Without Go it ends with 69 (EX_UNAVAILABLE).
set -euo pipefail
peer=$(cd "$(dirname "$0")" && pwd)
cluster=$peer/../../../tests/kube/cluster/cluster.sh
NAMESPACE=istio-system
LABEL=istio-injection=enabled

kubectl() { "$cluster" kubectl "$@"; }
built=$("$peer/build.sh")
tag=$(<"$built/tag")
helm=$("$peer/../../../tests/kube/helm/build.sh")

"$peer/../import.sh" "$tag" "$built/images"

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
if [[ ${INGRESS:-off} == on ]]; then
    node="{${INGRESS_NODE:+kubernetes.io/hostname: $INGRESS_NODE}}"
    sed "s|@NODE@|$node|" "$peer/ingress.yaml" | apply
    kubectl --namespace "$NAMESPACE" rollout status deployment/istio-ingressgateway --timeout=300s >&2
fi
echo "$LABEL"
