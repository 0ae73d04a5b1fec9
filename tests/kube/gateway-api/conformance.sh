#!/usr/bin/env bash
# The whole conformance suite of the Gateway API, and the table in docs/conformance.md. `make conformance-kube`.
set -euo pipefail
cd "$(dirname "$0")/../../.."

reports=build/gateway-api
rm -f "$reports"/{mesh,gateways}.json
failed=0
tests/kube/run.sh gateway_api_gateways gateway_api_mesh || failed=1
tests/kube/gateway-api/table.py "$reports"/{mesh,gateways}.json || failed=1
exit "$failed"
