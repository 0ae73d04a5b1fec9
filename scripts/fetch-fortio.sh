#!/bin/sh
# Fortio into build/tools/bin from Go's registry, unless it is there already; prints its path.
# Needs Go 1.23 or newer. Newer versions of Fortio ask for modules that do not resolve.
set -eu
cd "$(dirname "$0")/.."
version=v1.68.2
bin=$PWD/build/tools/bin
if [ ! -x "$bin/fortio" ]; then
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
        echo "fetch-fortio: go is missing: Fortio is built from its sources, by Go 1.23 or newer (Debian 13, or Debian 12 with backports: golang-go)" >&2
        exit 1
    fi
    mkdir -p "$bin"
    # Whole or not at all, also when two do it at once.
    GOBIN=$bin/fortio.$$ "$go" install "fortio.org/fortio@$version" >&2
    mv "$bin/fortio.$$/fortio" "$bin/fortio"
    rmdir "$bin/fortio.$$"
fi
echo "$bin/fortio"
