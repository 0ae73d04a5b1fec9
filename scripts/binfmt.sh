#!/usr/bin/env bash
# Runs a command while this kernel hands programs of another architecture to qemu's user mode, which imitates the processor and
# hands system calls to this kernel. As root: the kernel has to be told (binfmt_misc). That is undone at the end, if it was done here.
#
#   scripts/binfmt.sh arm64|armv7|riscv64 COMMAND…
set -euo pipefail

usage() {
    echo "error: $*" >&2
    exit 64
}

arch=${1:-}
# Who imitates it; class (32 or 64 bits) and machine of an ELF file.
case $arch in
arm64) qemu=qemu-aarch64-static class='\x02' machine='\xb7' ;;
armv7) qemu=qemu-arm-static class='\x01' machine='\x28' ;;
riscv64) qemu=qemu-riscv64-static class='\x02' machine='\xf3' ;;
*) usage "the architecture is arm64, armv7 or riscv64" ;;
esac
shift
(($#)) || usage "name the command that is to run"
[[ $(uname -m) == x86_64 ]] || usage "this machine is $(uname -m): qemu would imitate another one here"
interpreter=$(command -v "$qemu") || usage "there is no $qemu (Debian: qemu-user-static)"

registry=/proc/sys/fs/binfmt_misc
name=tulle-test-$arch
mine=
# shellcheck disable=SC2317 # the trap calls it
forget() {
    [[ ! $mine ]] || echo -1 >"$registry/$name"
}
trap forget EXIT
[[ -e $registry/register ]] || mount -t binfmt_misc binfmt_misc $registry
if ! grep -qs "^interpreter.*${qemu%-static}" $registry/*; then
    # The head of an ELF file, little-endian, EXEC or DYN. F: the interpreter is opened now, so that it is there in every mount
    # namespace.
    head='\x7fELF'$class'\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'$machine'\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":$name:M::$head:$mask:$interpreter:F" >$registry/register
    mine=1
fi
"$@"
