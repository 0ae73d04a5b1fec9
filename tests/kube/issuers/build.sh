#!/usr/bin/env bash
# cert-manager's controllers from Go's registry, built once for each state of their inputs, outside the
# checkout; prints where: `cert-manager` and `crds.yaml`. Some minutes the first time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cluster/env.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) # env.sh has one of its own

if [[ ! -x $GO ]]; then
    echo "error: cert-manager is built from sources by Go 1.26 or newer, and there is no go" >&2
    exit 1
fi
inputs() {
    "$GO" version
    cat "$here"/cert-manager/go.mod "$here"/cert-manager/go.sum "$here"/cert-manager/main.go "$here/build.sh"
}
built=$CACHE/cert-manager-$(inputs | sha256sum | cut -c1-16)
if [[ ! -e $built ]]; then
    # Aside, and renamed when whole: a build can be interrupted at any moment.
    new=$built.new.$$ begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new"
    cd "$here/cert-manager"
    package=github.com/cert-manager/cert-manager
    # On a machine that has never seen it, there is no directory before.
    "$GO" mod download $package
    from=$("$GO" list -m -f '{{.Dir}}' $package)
    for file in "$from"/deploy/crds/*.yaml; do
        echo ---
        cat "$file"
    done >"$new/crds.yaml"
    CGO_ENABLED=0 nice "$GO" build -trimpath -ldflags "-s -w" -o "$new/cert-manager" . >&2
    find "$CACHE" -mindepth 1 -maxdepth 1 -name 'cert-manager-*' ! -name "*.new.*" -exec rm -rf {} +
    mv -T "$new" "$built"
    echo "built cert-manager in $((SECONDS - begun)) s" >&2
    trap - EXIT
fi
echo "$built"
