#!/bin/sh
# The conformance tests of CEL's specification from Go's registry; prints the directory with their data. Needs Go 1.23 or
# newer, which checks them against Go's list of sums.
set -eu
go=$(command -v go || echo /usr/local/go/bin/go)
if [ ! -x "$go" ]; then
    echo "fetch-cel-spec: go is missing: the tests are a module of Go's registry" >&2
    exit 1
fi
dir=$(cd / && "$go" mod download -json cel.dev/expr@v0.26.0 | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
echo "$dir/tests/simple/testdata"
