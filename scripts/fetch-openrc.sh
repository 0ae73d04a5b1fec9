#!/bin/sh
# Debian's OpenRC into build/openrc, unless it is there already; prints its path. It is unpacked, not installed: as a
# package it would take over what starts this machine. Its files are where a system has them whose /bin is in /usr.
set -eu
cd "$(dirname "$0")/.."
target=$PWD/build/openrc
if [ ! -e "$target/.done" ]; then
    for tool in apt-get dpkg-deb; do
        command -v "$tool" >/dev/null ||
            { echo "error: OpenRC is unpacked from Debian's packages, and there is no $tool here" >&2; exit 1; }
    done
    rm -rf "$target"
    mkdir -p "$target/packages" "$target/etc" "$target/usr/lib"
    (
        cd "$target/packages"
        # The lists may be absent or older than the archive.
        get() { apt-get -o APT::Sandbox::User=root download --quiet openrc libeinfo1 librc1 >&2; }
        get || { apt-get update --quiet >&2 && get; }
    )
    for package in "$target"/packages/*.deb; do dpkg-deb --extract "$package" "$target/packages/all"; done
    cp -a "$target/packages/all/etc/." "$target/etc"
    for directory in bin sbin lib; do
        mkdir -p "$target/usr/$directory"
        cp -a "$target/packages/all/$directory/." "$target/usr/$directory"
    done
    rm -rf "$target/packages"
    touch "$target/.done"
fi
echo "$target"
