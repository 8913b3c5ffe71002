#!/bin/busybox sh
# The kernel runs this to load a module.
exec chroot /root /sbin/modprobe -d /run/kernel "$@"
