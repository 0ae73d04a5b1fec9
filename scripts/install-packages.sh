#!/usr/bin/env bash
# Installs the Debian packages that are named and missing, and says which.
#
#   scripts/install-packages.sh nftables iproute2
#
# Nothing is asked of apt when all are there. Elsewhere than on Debian and Ubuntu it only says what
# to install by hand, and goes on: the tools may be there under another package's name.
set -euo pipefail

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "note: this is not Debian or Ubuntu; make sure that what these packages bring is installed: $*" >&2
    exit 0
fi

missing=()
for package in "$@"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        echo "error: these Debian packages are missing: ${missing[*]}" >&2
        echo "       Installing needs root and there is no sudo. As root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}"
}

echo "Installing Debian packages: ${missing[*]}${as_root:+ (with sudo)}"
# The lists may be older than the archive, or absent as in a fresh container: refresh and try again.
if ! install && ! { "${as_root[@]}" apt-get update --quiet=2 && install; }; then
    echo "error: apt-get could not install: ${missing[*]}" >&2
    echo "       Its message is above. Install them by hand, then run this again." >&2
    exit 1
fi

# Debian starts a server when its package is installed, at every boot as well. Nobody asked for that
# here: the benchmark and the tests start their own.
for service in nginx postgresql redis-server containerd prometheus; do
    if [[ " ${missing[*]} " == *" $service "* ]]; then
        "${as_root[@]}" systemctl disable --now "$service" >/dev/null 2>&1 ||
            "${as_root[@]}" service "$service" stop >/dev/null 2>&1 || true
    fi
done
