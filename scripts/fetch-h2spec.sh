#!/bin/sh
# h2spec into build/tools/bin from Go's registry, unless it is there already; prints its path.
set -eu
cd "$(dirname "$0")/.."
exec scripts/go-tool.sh h2spec "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
