#!/bin/busybox sh
# What the kernel itself calls when it wants a module.
exec chroot /root /sbin/modprobe -d /run/kernel "$@"
