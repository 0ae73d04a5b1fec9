#!/bin/sh
# A program from Go's registry into build/tools/bin, unless it is there already; prints its path.
#
#   scripts/go-tool.sh NAME PACKAGE@VERSION
#
# Needs Go 1.23 or newer.
set -eu
cd "$(dirname "$0")/.."
name=$1 package=$2
bin=$PWD/build/tools/bin
if [ ! -x "$bin/$name" ]; then
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
        echo "error: $name is built from its sources by Go 1.23 or newer, and there is no go (Debian 13, or Debian 12 with backports: golang-go)" >&2
        exit 1
    fi
    mkdir -p "$bin"
    # Whole or not at all, also when two do it at once.
    GOBIN=$bin/$name.$$ "$go" install "$package" >&2
    mv "$bin/$name.$$"/* "$bin/$name"
    rmdir "$bin/$name.$$"
fi
echo "$bin/$name"
