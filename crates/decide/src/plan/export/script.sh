#!/bin/sh
# Written by `netsilo export script`. Sets where network interrupts and queues are processed; run
# it as root. It writes only what differs, so it can run repeatedly. It finds interrupts by action
# name and netdevs by device path, never by number, and reports what it does not find. Exit code:
# 0, or 1 if something was missing or refused.
# shellcheck disable=SC2317 # not every plan needs every function
set -u
failed=0

fail() {
    echo "netsilo-placement: $*" >&2
    failed=1
}

# same A B: whether two masks, numbers or lists are equal, apart from commas, leading zeros and
# the kind of blanks.
same() {
    plain "$1"
    first=$plain
    plain "$2"
    [ "$first" = "$plain" ]
}

plain() {
    # shellcheck disable=SC2086 # blanks of any kind become one space
    set -- $1
    plain=$*
    while [ "$plain" != "${plain#*,}" ]; do
        plain=${plain%%,*}${plain#*,}
    done
    plain=${plain#"${plain%%[!0]*}"}
}

# put FILE VALUE WHAT
put() {
    if ! now=$(cat "$1" 2>/dev/null); then
        fail "$3: cannot read $1"
    elif same "$now" "$2"; then
        echo "$3: is $now already"
    elif (printf '%s\n' "$2" >"$1") 2>/dev/null; then
        echo "$3: $now -> $2"
    else
        fail "$3: the kernel refuses $2 (root? an interrupt that it manages?)"
    fi
}

# interrupt ACTION MASK CPUS
interrupt() {
    files=$(grep -Flx -e "$1" /sys/kernel/irq/*/actions 2>/dev/null)
    case $files in
    '') fail "no interrupt is called $1" ;;
    *actions*actions) fail "more than one interrupt is called $1: none is moved" ;;
    *)
        irq=${files#/sys/kernel/irq/}
        irq=${irq%/actions}
        put "/proc/irq/$irq/smp_affinity" "$2" "irq $irq ($1) to cpus $3"
        ;;
    esac
}

# netdev NAME DEVICE_PATH: prints its folder; a netdev on a bus is found by its path, even if it
# was renamed.
netdev() {
    for net in /sys/class/net/*; do
        here=$(readlink -f "$net")
        there=/sys/devices/virtual/net/$1
        if [ "$2" ]; then
            here=${here%/net/*}
            there=/sys$2
        fi
        if [ "$here" = "$there" ]; then
            echo "$net"
            return
        fi
    done
    return 1
}

# queue NAME DEVICE_PATH FILE VALUE WHAT
queue() {
    if net=$(netdev "$1" "$2"); then
        put "$net/queues/$3" "$4" "$5"
    else
        fail "$5: its netdev is not here"
    fi
}

# setting NAME DEVICE_PATH FILE VALUE WHAT
setting() {
    if net=$(netdev "$1" "$2"); then
        put "$net/$3" "$4" "$5"
    else
        fail "$5: its netdev is not here"
    fi
}

# device NAME DEVICE_PATH WHAT OPTION ARGUMENT...: ethtool writes only what differs, except with
# -K, -N and -X.
device() {
    name=$1
    path=$2
    what=$3
    option=$4
    shift 4
    if ! net=$(netdev "$name" "$path"); then
        fail "$what: its netdev is not here"
    elif ethtool "$option" "${net##*/}" "$@"; then
        echo "$what: $*"
    else
        fail "$what: the driver refuses $*"
    fi
}

# kthread NAME MASK CPUS
kthread() {
    pid=
    for comm in /proc/[0-9]*/comm; do
        if [ "$(cat "$comm" 2>/dev/null)" = "$1" ]; then
            [ -z "$pid" ] || { fail "more than one thread is called $1: none is moved"; return; }
            pid=${comm#/proc/}
            pid=${pid%/comm}
        fi
    done
    [ "$pid" ] || { fail "no thread is called $1"; return; }
    now=$(sed -n 's/^Cpus_allowed:[[:space:]]*//p' "/proc/$pid/status")
    if same "$now" "$2"; then
        echo "kthread $1: is on cpus $3 already"
    elif taskset -p -c "$3" "$pid" >/dev/null; then
        echo "kthread $1: to cpus $3"
    else
        fail "kthread $1: cannot be moved to cpus $3"
    fi
}

