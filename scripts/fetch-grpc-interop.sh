#!/bin/sh
# gRPC's interoperability client and server into build/tools/bin from Go's registry, unless they are
# there already; prints the path of the client. The server is beside it.
set -eu
cd "$(dirname "$0")/.."
version=v1.85.0
scripts/go-tool.sh grpc-interop-server "google.golang.org/grpc/interop/server@$version" >/dev/null
exec scripts/go-tool.sh grpc-interop-client "google.golang.org/grpc/interop/client@$version"
