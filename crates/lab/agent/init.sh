#!/bin/busybox sh
# First process of a lab's guest: mounts the host's root (read-only, by 9p) with the guest's own
# proc, sys, dev, tmp and run, and runs the agent in it. When the agent ends, the guest ends.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /host /root
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
loaded=
load() {
	while read -r module; do
		case "$loaded" in *" $module "*) continue ;; esac
		insmod "/modules/$module" || echo "lab: cannot load $module"
		loaded="$loaded $module "
	done <"/modules/$1"
}
for name in virtio_pci virtio_console 9pnet_virtio 9p; do
	load $name
done
read -r cmdline </proc/cmdline
for word in $cmdline; do
	case $word in
	lab.drivers=*) drivers=${word#lab.drivers=} ;;
	lab.init=*) init=${word#lab.init=} ;;
	lab.disk=*) disk=${word#lab.disk=} ;;
	esac
done
IFS=,
for name in $drivers; do
	load $name
done
unset IFS

p9=trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro
mount -t 9p -o $p9 hostroot /host || echo "lab: cannot mount the host's root"
mount --bind /host /root
mount -t tmpfs -o mode=1777 tmp /root/tmp
mount -t tmpfs -o mode=755 run /root/run
mkdir -p /root/run/host /root/run/kernel /root/run/lab /root/run/lock
mount --bind /host /root/run/host
mount -t 9p -o $p9 kernel /root/run/kernel || echo "lab: cannot mount the kernel's modules"

# What survives a reboot.
if [ "$disk" ]; then
	load virtio_blk
	load ext4
	mkdir -p /disk
	mount -t ext4 "$disk" /disk || echo "lab: cannot mount the disk"
	mount --bind /disk/etc /root/etc
	mount --bind /disk/var /root/var
fi

mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for dir in proc sys dev; do
	mount --rbind /$dir /root/$dir
done
cp /agent /root/run/lab/agent

for port in /sys/class/virtio-ports/*; do
	read -r name <"$port/name"
	[ "$name" = lab ] && port=/dev/${port##*/} && break
done
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
export MODPROBE_OPTIONS="-d /run/kernel"
echo 1 >/proc/sys/kernel/printk
hostname lab
ip link set lo up
# The first process becomes systemd, with the agent as a service. The services of the host stay off.
if [ "$init" = systemd ]; then
	units=/root/run/systemd/system
	mkdir -p $units
	lib=/host/lib/systemd/system
	for unit in $lib/sysinit.target.wants/* $lib/multi-user.target.wants/* \
		/host/etc/systemd/system/*.wants/*; do
		unit=${unit##*/}
		[ "$unit" = systemd-journald.service ] || ln -sf /dev/null "$units/$unit"
	done
	for target in sysinit basic; do
		printf '[Unit]\nDefaultDependencies=no\n' >$units/$target.target
	done
	# With a disk, units that were enabled start at boot.
	printf '[Unit]\nRequires=lab-agent.service\n' >$units/lab.target
	[ -z "$disk" ] || echo "Wants=multi-user.target" >>$units/lab.target
	mkdir -p $units/network-online.target.wants
	ln -s ../lab-network.service $units/network-online.target.wants
	cat >$units/lab-network.service <<-END
		[Unit]
		DefaultDependencies=no
		Before=network-online.target
		[Service]
		Type=oneshot
		ExecStart=/bin/sh -c "until [ -e /run/lab/network ]; do sleep 0.1; done"
	END
	cat >$units/lab-agent.service <<-END
		[Unit]
		DefaultDependencies=no
		FailureAction=poweroff-immediate
		SuccessAction=poweroff-immediate
		[Service]
		ExecStart=/run/lab/agent $port
		Environment="PATH=$PATH" "HOME=$HOME" "LANG=$LANG" "MODPROBE_OPTIONS=$MODPROBE_OPTIONS"
	END
	# The kernel loads modules by a program of its root, which is the host's now.
	printf '#!/bin/sh\nexec /sbin/modprobe -d /run/kernel "$@"\n' >/root/run/lab/modprobe
	chmod +x /root/run/lab/modprobe
	echo /run/lab/modprobe >/proc/sys/kernel/modprobe
	# The root of the host may be a container's, and then systemd takes its own arguments for the
	# kernel's command line.
	# shellcheck disable=SC2086
	exec switch_root /root /lib/systemd/systemd --unit=lab.target $cmdline
fi
# As the first process this shell also reaps orphans of the commands.
chroot /root /run/lab/agent "$port"
poweroff -f
