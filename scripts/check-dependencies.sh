#!/usr/bin/env bash
# Runs cargo-deny with deny.toml: licences, banned crates, sources, and advisories where their database can be
# had. It is built into build/tools the first time. And the lock file of the fuzz targets, a workspace of their own that no other
# build of the product reads, has to be up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

deny=$(scripts/cargo-tool.sh cargo-deny 0.20.2 --no-default-features)
"$deny" --locked check bans licenses sources
cargo metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 >/dev/null

# The database is a repository of its own: a machine that reaches no more than registries goes without.
if timeout 60 "$deny" --locked fetch db >/dev/null 2>&1; then
    "$deny" --locked check --disable-fetch advisories
else
    echo "note: advisories were not checked: their database cannot be reached from here"
fi
