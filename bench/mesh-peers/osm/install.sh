#!/usr/bin/env bash
# Installs Open Service Mesh in the running test cluster (tests/kube/cluster/cluster.sh up), waits until it is ready,
# and prints the label by which a namespace joins it. README.md says what differs from a stock installation.
#
#   WASM=off                  without the statistics filter, which OSM has by default
#   SIDECAR_CPU=500m          a limit for every sidecar that is injected from now on; none by default
#   SIDECAR_MEMORY=512Mi      likewise
#
# Again, with other settings: it changes them, for pods that are made afterwards.
set -euo pipefail
own=$(cd "$(dirname "$0")" && pwd)
. "$own/../../../tests/kube/cluster/env.sh" # for VERSION
built=$("$own/build.sh")
helm=$("$own/../../../tests/kube/helm/build.sh")
cluster=$own/../../../tests/kube/cluster/cluster.sh
kubectl() { "$cluster" kubectl "$@"; }

case ${WASM:=on} in
on) wasm=true ;;
off) wasm=false ;;
*)
    echo "error: WASM=$WASM: on or off" >&2
    exit 64
    ;;
esac

tag=${built##*-}
"$own/../import.sh" "$tag" "$built/images"

# Without the hooks: they look for another OSM before, and remove things afterwards (uninstall.sh).
objects=$("$helm" template osm "$built/chart" --kube-version "$VERSION" --namespace osm-system --no-hooks \
    --set-string "osm.image.registry=localhost,osm.image.tag=$tag,osm.image.name.osmSidecarInit=osm-init" \
    --set-string "osm.sidecarImage=localhost/osm-envoy:$tag,osm.curlImage=localhost/osm-curl:$tag" \
    --set-string osm.controllerLogLevel=info,osm.envoyLogLevel=info \
    --set "osm.enablePermissiveTrafficPolicy=true,osm.featureFlags.enableWASMStats=$wasm")
kubectl create namespace osm-system --dry-run=client --output yaml | kubectl apply -f - >/dev/null
kubectl apply -f - <<<"$objects" >/dev/null

for name in osm-bootstrap osm-controller osm-injector; do
    if ! kubectl --namespace osm-system rollout status "deployment/$name" --timeout=300s >/dev/null; then
        echo "error: $name does not become ready:" >&2
        kubectl --namespace osm-system describe pods --selector "app=$name" >&2
        kubectl --namespace osm-system logs "deployment/$name" --all-containers --tail=20 >&2
        exit 1
    fi
done
# OSM makes its settings from the chart's only if there are none yet, and the chart knows no limits of sidecars.
limits=""
[[ -z ${SIDECAR_CPU:-} ]] || limits+="\"cpu\": \"$SIDECAR_CPU\","
[[ -z ${SIDECAR_MEMORY:-} ]] || limits+="\"memory\": \"$SIDECAR_MEMORY\","
# Little is asked for: Kubernetes would take a limit for what a pod must have, and find no node for it.
resources={}
[[ -z $limits ]] || resources="{\"limits\": {${limits%,}}, \"requests\": {\"cpu\": \"10m\", \"memory\": \"32Mi\"}}"
kubectl --namespace osm-system patch meshconfig osm-mesh-config --type=json --patch "[
    {\"op\": \"add\", \"path\": \"/spec/sidecar/resources\", \"value\": $resources},
    {\"op\": \"add\", \"path\": \"/spec/featureFlags/enableWASMStats\", \"value\": $wasm}]" >/dev/null
# Injection is a webhook, which has its certificate a moment after the injector is ready.
for ((tries = 0; ; tries++)); do
    authority=$(kubectl get mutatingwebhookconfiguration osm-webhook-osm --ignore-not-found \
        --output 'jsonpath={.webhooks[0].clientConfig.caBundle}')
    [[ -z $authority ]] || break
    if ((tries == 300)); then
        echo "error: OSM's webhook has no certificate: cluster.sh kubectl -n osm-system logs deployment/osm-injector" >&2
        exit 1
    fi
    sleep 0.2
done
echo openservicemesh.io/monitored-by=osm
