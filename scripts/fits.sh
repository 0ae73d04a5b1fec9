#!/usr/bin/env bash
# Fails if a program is larger than its budget.
#
#   scripts/fits.sh FILE BYTES
set -euo pipefail

size=$(stat --format %s "$1")
if ((size > $2)); then
    echo "error: $1 has $size bytes, more than the $2 of its budget; find out what made it larger (nm --size-sort), or raise" \
        "the budget where scripts/fits.sh is called" >&2
    exit 1
fi
