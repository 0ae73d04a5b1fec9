#!/usr/bin/env bash
# The proxy of the release before this one, for the test of an upgrade: prints its path. Built once, and
# kept outside the checkout under its commit. Prints nothing where the clone does not go back so far.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Until there is a release: the first that had all of a cluster's objects.
commit=$(git describe --tags --abbrev=0 --match 'v*' 'HEAD^' 2>/dev/null || echo 3b2e065)
commit=$(git rev-parse --quiet --verify "$commit^{commit}" || true)
if [[ -z $commit ]]; then
    echo "note: this clone is too shallow to hold the release before this one" >&2
    exit 0
fi
place=${XDG_CACHE_HOME:-$HOME/.cache}/tulle-kube/previous-$commit
if [[ ! -x $place/tulle-proxy ]]; then
    new=$(mktemp -d) begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    git archive "$commit" | tar --extract --directory "$new"
    (cd "$new" && CARGO_TARGET_DIR=$new/target cargo build --quiet --locked --package tulle-proxy) >&2
    mkdir -p "$place"
    strip -o "$place/tulle-proxy.new" "$new/target/debug/tulle-proxy"
    mv "$place/tulle-proxy.new" "$place/tulle-proxy"
    echo "built the proxy of the release before in $((SECONDS - begun)) s" >&2
fi
echo "$place/tulle-proxy"
