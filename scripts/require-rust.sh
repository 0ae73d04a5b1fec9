#!/usr/bin/env bash
# Makes sure there is a cargo: rust-toolchain.toml names the version, rustup brings it.
set -euo pipefail

command -v cargo >/dev/null && exit 0

# Debian 13, Ubuntu 24.04 and newer package rustup; older ones do not.
candidate=$(apt-cache policy rustup 2>/dev/null | sed -n 's/^ *Candidate: *//p')
if [[ -n $candidate && $candidate != "(none)" ]]; then
    exec "$(dirname "$0")/install-packages.sh" rustup
fi
cat >&2 <<'EOF'
error: there is no cargo, and this system has no rustup package (or its lists are not fetched yet).
       On Debian 13, Ubuntu 24.04 or newer: apt-get update && apt-get install rustup
       Elsewhere install rustup as https://www.rust-lang.org/tools/install says, then run this again.
       The Rust version comes from rust-toolchain.toml by itself.
EOF
exit 1
