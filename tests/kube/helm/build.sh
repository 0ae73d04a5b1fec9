#!/usr/bin/env bash
# helm from Go's registry, built once for each version, outside the checkout; prints where it is. Some
# minutes the first time. Without Go it says so and ends with 69 (EX_UNAVAILABLE).
set -euo pipefail
. "$(dirname "$0")/../cluster/env.sh"

HELM_VERSION=v3.19.5
if [[ ! -x $GO ]]; then
    echo "error: helm is built from its sources by Go 1.24 or newer, and there is no go" >&2
    exit 69
fi
mkdir -p "$CACHE"
# Two tests ask for it at the same time: the second waits for what the first builds.
exec 9>"$CACHE/helm.lock"
flock 9
built=$CACHE/helm-$HELM_VERSION
if [[ ! -x $built/helm ]]; then
    # Aside, and renamed when whole: a build can be interrupted at any moment.
    new=$built.new.$$ begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new"
    # One package at a time: it is no more than a tool of the tests, and others need the processors.
    CGO_ENABLED=0 GOBIN=$new GOFLAGS="-p=1 -trimpath" nice "$GO" install -ldflags "-s -w" \
        "helm.sh/helm/v3/cmd/helm@$HELM_VERSION" >&2
    find "$CACHE" -mindepth 1 -maxdepth 1 -name 'helm-*' ! -name "*.new.*" -exec rm -rf {} +
    mv -T "$new" "$built"
    echo "built helm in $((SECONDS - begun)) s" >&2
    trap - EXIT
fi
echo "$built/helm"
