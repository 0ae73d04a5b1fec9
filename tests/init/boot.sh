#!/bin/sh
# The first program in a machine's namespaces: builds its file system and becomes its init system.
#
#   boot.sh STATE OVER_USR INIT...
#
# STATE has `etc`, `var` and `usr/local`, which outlive the machine. All else is empty at each boot, as /run is on any
# machine, or the host's and read-only. OVER_USR, if it is not empty, has files that are in /usr besides the host's.
set -eu
state=$1
over=$2
shift 2

mount --make-rprivate /
mount -t tmpfs -o mode=755 machine /mnt
cd /mnt
mkdir -p usr etc var proc sys dev run tmp root old
if [ -n "$over" ]; then
    mount -t overlay -o "ro,lowerdir=$over:/usr" usr usr
else
    mount --bind /usr usr
    mount -o remount,bind,ro usr
fi
for link in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$link" ]; then cp -P "/$link" "$link"; fi
done
mount --bind "$state/etc" etc
mount --bind "$state/var" var
mount --bind "$state/root" root
mount --bind "$state/usr/local" usr/local
mount -t tmpfs -o mode=755,nosuid,nodev run run
mount -t tmpfs -o mode=1777,nosuid,nodev tmp tmp

# Settings of the kernel that are not of a namespace are the host's: nobody in here may write them.
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
if [ -e proc/sysrq-trigger ]; then mount --bind /dev/null proc/sysrq-trigger; fi
mount -t sysfs -o ro sys sys
mount -t cgroup2 -o rw,nosuid,nodev,noexec cgroup sys/fs/cgroup

mount -t tmpfs -o mode=755,nosuid dev dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr

pivot_root . old
umount --lazy /old
rmdir /old
cd /
# `container` tells systemd that hardware, clocks and modules are somebody else's; it gets no right to them either.
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=tulle-test \
    setpriv --bounding-set=-sys_module,-sys_rawio,-sys_time,-sys_boot,-syslog,-mac_admin,-mac_override "$@"
