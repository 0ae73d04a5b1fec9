#!/usr/bin/env bash
# Fails if a banned crate is anywhere in the dependency tree, on any platform.
#
# deny.toml says the same with reasons, but needs cargo-deny; this needs only cargo.
set -euo pipefail

banned='ring|openssl-sys|serde_yaml|serde_yaml_ng|serde_yml|rustables'
tree=$(cargo tree --workspace --locked --target all --edges normal,build,dev --prefix none --format '{p}')
if found=$(grep -E "^($banned) v" <<<"$tree" | sort -u); then
    echo "error: banned crates are in the dependency tree (deny.toml gives the reasons):" >&2
    echo "$found" >&2
    echo "       Who needs one: cargo tree --workspace --target all --invert NAME" >&2
    exit 1
fi
echo "No banned crate in the dependency tree."
