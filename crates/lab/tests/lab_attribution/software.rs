//! Netdevs without hardware in the guest: what polls them, and whether the kernel reads their RPS
//! settings, compared with netsilo's table.
//!
//! Not tested: DSA ports (no switch), IPsec, PPP, GTP and L2TP (no peer), team (no program).

use std::collections::BTreeMap;
use std::path::PathBuf;

use netsilo_lab::{Kernel, Lab};
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::snapshot::host::Snapshot;

use crate::{TRACEPOINTS, traced_with};

/// The CPU in their RPS masks, and how many datagrams each receives. They are sent on another one.
const TARGET: u32 = 6;
const DATAGRAMS: u64 = 25;

/// The netdevs, and where datagrams are sent to.
const NETDEVS: [(&str, &str); 20] = [
    ("veth20", "10.90.20.1"),
    ("vxlan1", "10.90.1.1"),
    ("geneve2", "10.90.2.1"),
    ("gre3", "10.90.3.1"),
    ("gretap4", "10.90.4.1"),
    ("ipip5", "10.90.5.1"),
    ("sit6", "10.90.6.1"),
    ("wg7", "10.90.7.1"),
    ("macsec8", "10.90.8.1"),
    ("macvlan9", "10.90.9.1"),
    (BROADCASTS, "10.90.9.255"),
    ("ipvlan10", "10.90.10.1"),
    ("bond11", "10.90.11.1"),
    ("br12", "10.90.12.1"),
    ("vlan13", "10.90.13.1"),
    ("vrf14", "10.90.14.1"),
    ("veth15", "10.90.15.1"),
    ("tap16", "10.90.16.1"),
    ("tapnapi17", "10.90.17.1"),
    ("netkit18", "10.90.18.1"),
];

/// What the macvlan receives by a worker.
const BROADCASTS: &str = "broadcasts";

/// The netdevs of one end, by `ip -batch`; `near` and `far` are the last numbers of the addresses.
/// Each netdev that takes over the one below it has a veth of its own.
fn batch(near: u32, far: u32) -> String {
    let tunnel = format!("local 10.90.0.{near} remote 10.90.0.{far}");
    let key = "000102030405060708090a0b0c0d0e0f";
    let mut lines = vec![
        format!("address add 10.90.0.{near}/24 dev veth0"),
        format!("address add 10.90.21.{near}/24 dev veth0"),
        format!("link add vxlan1 type vxlan id 1 dstport 4789 {tunnel}"),
        format!("link add geneve2 type geneve id 2 remote 10.90.0.{far}"),
        format!("link add gre3 type gre {tunnel}"),
        format!("link add gretap4 type gretap {tunnel}"),
        format!("link add ipip5 type ipip {tunnel}"),
        format!("link add sit6 type sit local 10.90.21.{near} remote 10.90.21.{far} mode ipip"),
        "link add link veth8 name macsec8 type macsec".to_owned(),
        format!("macsec add macsec8 tx sa 0 pn 1 on key 00 {key}"),
        format!("macsec add macsec8 rx port 1 address 02:00:00:00:08:0{far}"),
        format!(
            "macsec add macsec8 rx port 1 address 02:00:00:00:08:0{far} sa 0 pn 1 on key 00 {key}"
        ),
        "link add link veth9 name macvlan9 type macvlan".to_owned(),
        "link add link veth10 name ipvlan10 type ipvlan mode l2".to_owned(),
        "link add bond11 type bond mode active-backup".to_owned(),
        "link set veth11 master bond11".to_owned(),
        "link add br12 type bridge".to_owned(),
        "link set veth12 master br12".to_owned(),
        "link add link veth13 name vlan13 type vlan id 13".to_owned(),
    ];
    let devices = [
        "vxlan1", "geneve2", "gre3", "gretap4", "ipip5", "sit6", "wg7", "macsec8", "macvlan9",
        "ipvlan10", "bond11", "br12", "vlan13", "veth14", "veth15", "veth20",
    ];
    for device in devices {
        let number = device.trim_start_matches(|letter: char| letter.is_alphabetic());
        let address = format!("10.90.{number}.{near}/24");
        lines.push(format!("address add {address} broadcast + dev {device}"));
    }
    let veths = [0, 8, 9, 10, 12, 13].map(|number| format!("veth{number}"));
    let up = veths.into_iter().chain(["veth11".to_owned()]).chain(devices.map(str::to_owned));
    lines.extend(up.map(|device| format!("link set {device} up")));
    lines.join("\n")
}

pub(crate) fn netdevs_are_what_the_table_says(lab: &Lab, kernel: Kernel) {
    let has_netkit = kernel != Kernel::V6_1;
    setup(lab, has_netkit);
    let netdevs = NETDEVS.iter().filter(|(name, _)| has_netkit || *name != "netkit18");
    let arguments: Vec<String> = netdevs.map(|(name, to)| format!("{name}={to}")).collect();
    let script = include_str!("software.py");
    lab.sh(&format!("cat > /tmp/software.py <<'END'\n{script}\nEND")).unwrap();
    let mut processed: BTreeMap<String, u64> = BTreeMap::new();
    let options = format!("{TRACEPOINTS} --snapshot");
    let attribution = traced_with(lab, &options, || {
        let send = "/usr/bin/python3 /tmp/software.py";
        let command = format!("{send} {TARGET} {DATAGRAMS} {}", arguments.join(" "));
        processed = serde_json::from_str(&lab.sh(&command).unwrap()).unwrap();
    });
    let snapshot: Snapshot = serde_json::from_str(&lab.sh("cat /tmp/snapshot").unwrap()).unwrap();
    let polled = |name: &str| {
        let polls = attribution.polls.iter().filter(|it| it.napi.0 == 0 && it.netdev == name);
        polls.map(|it| it.packets).sum::<u64>()
    };
    let all = DATAGRAMS - attribution.lost_events.min(DATAGRAMS / 2)..;
    let [of_tap, of_cpu, of_veth] = ["tap16 tx_dropped", "cpu dropped", "veth20 rx_dropped"]
        .map(|counter| processed.remove(counter).unwrap());
    println!("dropped: {of_tap} of 20 by the tap, {of_veth} by the veth, {of_cpu} by the backlog");
    assert!(of_tap >= 15, "its queue has room for 5 of 20");
    assert!(of_veth > 0 && of_veth == of_cpu, "both count a full backlog");
    let mut wrong = Vec::new();
    for (name, on_target) in processed {
        let netdev = match name.as_str() {
            BROADCASTS => "macvlan9",
            name => name,
        };
        let netdev = snapshot.netdevs.named(netdev).unwrap();
        let Some(kind) = SoftwareNetdev::from_netdev(netdev) else {
            wrong.push(format!("{name}: no kind: {:?}", netdev.driver));
            continue;
        };
        let by_napi = polled(&name);
        let line = format!(
            "{name}: {:?}: {by_napi} packets polled without an id, {on_target} processed on cpu \
             {TARGET}",
            kind.receive
        );
        println!("{line}");
        let is_polled = all.contains(&by_napi) == kind.is_polled_without_id();
        // ifb15 has the packets of veth15, whose mask is empty
        let steers = !kind.is_never_steered() && name != "veth15" || name == BROADCASTS;
        let is_steered = if steers { on_target >= DATAGRAMS } else { on_target < DATAGRAMS / 2 };
        if !is_polled || !is_steered {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?} of {:#?}", attribution.polls);
    let kind = |name: &str| SoftwareNetdev::from_netdev(snapshot.netdevs.named(name).unwrap());
    let receive = |name| kind(name).map(|kind| kind.receive);
    assert_eq!(receive("macvtap19"), Some(SoftwareReceive::Reader));
    assert_eq!(receive("ifb15"), Some(SoftwareReceive::Tasklet));
    let threaded = snapshot.netdevs.named("wg7").unwrap().threaded;
    assert_eq!(threaded, Some(u32::from(kernel == Kernel::Newest)), "WireGuard, from 6.16 on");
    lab.sh("ip netns del far; ip link del tap16; ip link del tapnapi17; ip link del ifb15; \
            ip link del br12; ip link del bond11; ip link del vrf14; ip link del wg7; \
            for n in vxlan1 geneve2 gre3 gretap4 ipip5 sit6; do ip link del $n; done")
        .unwrap();
}

fn setup(lab: &Lab, has_netkit: bool) {
    let netkit = if has_netkit {
        "ip link add netkit18 type netkit && ip link set nk0 name netkit18 netns far && \
         for at in '' '-n far'; do ip $at link set netkit18 up; done && \
         ip address add 10.90.18.1/24 dev netkit18 && \
         ip -n far address add 10.90.18.2/24 dev netkit18"
    } else {
        "true"
    };
    // A guest of another architecture has its own.
    let own = lab.sh("command -v wg || true").unwrap();
    let wg = Some(own.trim()).filter(|own| !own.is_empty()).map(PathBuf::from);
    let wg = wg.unwrap_or_else(|| netsilo_lab::wg().unwrap());
    let wg = wg.display();
    lab.sh(&format!(
        "modprobe -a vxlan geneve ip_gre ipip sit wireguard macsec macvlan macvtap ipvlan bonding \
         bridge 8021q vrf ifb tun act_mirred; ip netns add far && \
         for n in 0 8 9 10 11 12 13 14 15 20; do h=$(printf %02x $n); \
             echo link add veth$n address 02:00:00:00:$h:01 type veth peer name veth$n \
                 address 02:00:00:00:$h:02 netns far; \
         done | ip -batch - && \
         for at in '' '-n far'; do ip $at link add wg7 type wireguard; done && \
         a=$('{wg}' genkey) && b=$('{wg}' genkey) && \
         echo $a > /tmp/a && echo $b > /tmp/b && \
         '{wg}' set wg7 listen-port 5182 private-key /tmp/a \
             peer $('{wg}' pubkey < /tmp/b) allowed-ips 0.0.0.0/0 && \
         ip netns exec far '{wg}' set wg7 private-key /tmp/b \
             peer $('{wg}' pubkey < /tmp/a) allowed-ips 0.0.0.0/0 endpoint 10.90.0.1:5182 && \
         ip link add vrf14 type vrf table 14 && ip link set vrf14 up && \
         ip link set veth14 master vrf14 && echo 1 > /proc/sys/net/ipv4/udp_l3mdev_accept && \
         ip -batch - <<'END' && ip -n far -batch - <<'END'\n{}\nEND\n{}\nEND",
        batch(1, 2),
        batch(2, 1)
    ))
    .unwrap();
    lab.sh(&format!(
        "{netkit} && ip link add ifb15 numrxqueues 1 numtxqueues 1 type ifb && \
         ip link set ifb15 up && tc qdisc add dev veth15 clsact && \
         tc filter add dev veth15 ingress matchall action mirred egress redirect dev ifb15 && \
         ip link add link veth9 name macvtap19 type macvtap && \
         for n in 16:tap16 17:tapnapi17; do d=${{n#*:}}; \
             ip tuntap add dev $d mode tap && ip link set $d txqueuelen 5 up && \
             ip address add 10.90.${{n%:*}}.1/24 dev $d && \
             ip neigh add 10.90.${{n%:*}}.2 lladdr 02:00:00:00:00:09 dev $d || exit 1; \
         done && \
         for q in /sys/class/net/*/queues/rx-0/rps_cpus; do case $q in \
             */eth*|*/lo/*|*/veth*) ;; *) echo {:x} > $q || exit 1;; \
         esac; done && echo {:x} > /sys/class/net/veth20/queues/rx-0/rps_cpus",
        1 << TARGET,
        1 << TARGET
    ))
    .unwrap();
}
