#!/usr/bin/env bash
# Checks the console's page: types, lint, unit tests, its size, and that what is committed in crates/console/page is
# what these sources make. Needs Node 20 or newer.
#
#   web/check.sh              checks
#   web/check.sh --write      also replaces crates/console/page by a fresh build
#   web/check.sh --browser    also runs the tests in Chromium
set -euo pipefail
cd "$(dirname "$0")"

write='' browser=''
for word in "$@"; do
	case $word in
	--write) write=1 ;;
	--browser) browser=1 ;;
	*)
		echo "web/check.sh: unknown option $word; there are --write and --browser" >&2
		exit 2
		;;
	esac
done

if ! command -v node >/dev/null || [[ $(node -p 'process.versions.node.split(".")[0]') -lt 20 ]]; then
	echo "web/check.sh: needs Node 20 or newer" >&2
	exit 1
fi
# Libraries are installed anew only when the list of them has changed.
if ! cmp -s package-lock.json node_modules/.installed; then
	npm ci --silent
	cp package-lock.json node_modules/.installed
fi

if grep -q '"resolved"' package-lock.json; then
	echo "web/package-lock.json names a registry: run npm install here, .npmrc leaves them out" >&2
	exit 1
fi
node_modules/.bin/tsc --project .
node_modules/.bin/biome check --error-on-warnings .
node test/run-unit.mjs
if [[ -n $write ]]; then node build.mjs; fi
node build.mjs --check
if [[ -n $browser ]]; then node --test --test-concurrency=1 --test-reporter=spec test/browser/*.test.mjs; fi
