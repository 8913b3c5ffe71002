#!/bin/sh
# Written by `netsilo export irqbalance-policy --suggest`: irqbalance balances, on the node that
# netsilo suggests. Arguments from irqbalance: the device's path below /sys and the interrupt's
# number. irqbalance runs this script once for each interrupt; after new hints, send it SIGHUP to
# run it again. irqbalance knows nodes and not CPUs: to follow hints exactly, use another balancer
# (docs/export.md).
hint=/run/netsilo/irq/$2/affinity_hint
[ -r "$hint" ] || exit 0
mask=$(cat "$hint")

# The lowest CPU of the kernel's mask: groups of 32 CPUs, the lowest last.
cpu=0
while [ "$mask" ]; do
    group=$((0x${mask##*,}))
    case $mask in
    *,*) mask=${mask%,*} ;;
    *) mask= ;;
    esac
    if [ "$group" -eq 0 ]; then
        cpu=$((cpu + 32))
        continue
    fi
    while [ $((group & 1)) -eq 0 ]; do
        group=$((group >> 1))
        cpu=$((cpu + 1))
    done
    for node in "/sys/devices/system/cpu/cpu$cpu"/node[0-9]*; do
        [ -e "$node" ] && echo "numa_node=${node##*node}"
    done
    echo balance_level=core
    exit 0
done
exit 0
