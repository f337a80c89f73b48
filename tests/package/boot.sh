#!/usr/bin/env bash
# Boots a Debian under ROOT with its own systemd: in namespaces of its own, on a copy that is written to WORK and lost at the end.
# Network: loopback only. It runs until this process is killed.   boot.sh ROOT WORK
set -euo pipefail

root=$1 work=$2

# A cgroup of its own, whose namespace then begins there.
if [ "${3:-}" != inside ]; then
    hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    mkdir -p "$hierarchy/freshet-test-$$"
    echo $$ >"$hierarchy/freshet-test-$$/cgroup.procs"
    exec unshare --mount --pid --fork --uts --ipc --cgroup --net --kill-child "$0" "$root" "$work" inside
fi

mount --make-rprivate /
mkdir -p "$work"/{upper,overlay,root}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/overlay" "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
ip link set lo up
hostname debian
mkdir -p run/before
pivot_root . run/before
umount -l /run/before
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
