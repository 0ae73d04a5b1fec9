#!/bin/sh
# Links programs of armv7 with Rust's own lld: GNU ld (2.40, of Debian 12) forgets in programs of more than 16 MB that the functions
# by which glibc chooses its memchr and others are Thumb code, and they end at their first instruction.
sysroot=$(rustc --print sysroot) || exit
host=$(rustc --version --verbose | sed -n 's/^host: //p')
exec arm-linux-gnueabihf-gcc -B"$sysroot/lib/rustlib/$host/bin/gcc-ld" -fuse-ld=lld "$@"
