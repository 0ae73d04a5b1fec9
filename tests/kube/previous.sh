#!/usr/bin/env bash
# The proxy of the release before this one, for the test of an upgrade: prints its path. Built once, and
# kept outside the checkout under its commit. Fails where the clone does not go back so far.
#
#   tests/kube/previous.sh         tulle-proxy
#   tests/kube/previous.sh all     tulle, too; prints the directory of both
set -euo pipefail
cd "$(dirname "$0")/../.."

# Until there is a release: the first that had all of a cluster's objects.
commit=$(git describe --tags --abbrev=0 --match 'v*' 'HEAD^' 2>/dev/null || echo 3b2e065)
commit=$(git rev-parse --quiet --verify "$commit^{commit}" || true)
if [[ -z $commit ]]; then
    echo "error: this clone does not go back to the version before, whose programs are wanted: git fetch --unshallow --tags" >&2
    exit 1
fi
place=${XDG_CACHE_HOME:-$HOME/.cache}/tulle-kube/previous-$commit
programs=(tulle-proxy) packages=(--package tulle-proxy)
if [[ ${1:-} == all ]]; then
    programs+=(tulle) packages+=(--package tulle-cli)
fi
if [[ ! -x $place/${programs[-1]} ]]; then
    new=$(mktemp -d) begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    git archive "$commit" | tar --extract --directory "$new"
    (cd "$new" && CARGO_TARGET_DIR=$new/target cargo build --quiet --locked "${packages[@]}") >&2
    mkdir -p "$place"
    for program in "${programs[@]}"; do
        strip -o "$place/$program.new" "$new/target/debug/$program"
        mv "$place/$program.new" "$place/$program"
    done
    echo "built ${programs[*]} of the release before in $((SECONDS - begun)) s" >&2
fi
if [[ ${1:-} == all ]]; then
    echo "$place"
else
    echo "$place/tulle-proxy"
fi
