#!/bin/sh
# The OpenTelemetry collector into build/tools/bin from Go's registry, unless it is there already; prints its path.
# Needs Go 1.25 or newer. Which parts it has is in tests/local/otel-collector.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/build/tools/bin
sources=tests/local/otel-collector
made=$(cat "$sources"/* | sha256sum)
if [ ! -x "$bin/otel-collector" ] || [ "$(cat "$bin/otel-collector.made" 2>/dev/null)" != "$made" ]; then
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
        echo "fetch-otel-collector: go is missing: the collector is built from its sources, by Go 1.25 or newer" >&2
        exit 1
    fi
    mkdir -p "$bin"
    # Whole or not at all, also when two do it at once.
    (cd "$sources" && CGO_ENABLED=0 nice "$go" build -trimpath -ldflags "-s -w" -o "$bin/otel-collector.$$" .) >&2
    mv "$bin/otel-collector.$$" "$bin/otel-collector"
    echo "$made" >"$bin/otel-collector.made"
fi
echo "$bin/otel-collector"
