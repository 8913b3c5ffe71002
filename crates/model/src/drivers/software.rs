//! Netdevs without hardware, by kind: what polls them, whether the kernel reads their RPS settings,
//! and where their losses are counted. Guests of Linux 6.1, 6.12 and 7.2 test the kinds that
//! `crates/lab/tests/lab_attribution/software.rs` lists; the others follow from the functions that
//! are named.

use std::fmt::Write as _;

use crate::drivers::loss_stage::LossStage;
use crate::drivers::name::has_driver;
use crate::snapshot::netdev::Netdev;

/// A kind of netdev without hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftwareNetdev {
    /// Its names: of ethtool, of rtnetlink (which ethtool shows from 5.13 on), and of `uevent`.
    pub names: &'static [&'static str],
    /// Where it processes received packets if no NAPI polls it.
    pub receive: SoftwareReceive,
    /// The kernel function that determines this.
    pub function: &'static str,
    /// Packets that go to the backlog of a CPU instead (`netif_rx`), which reads its RPS; empty if
    /// there are none.
    pub on_backlog: &'static str,
    /// The counters of its losses.
    losses: &'static str,
}

/// Where a netdev without hardware processes received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftwareReceive {
    /// On the backlog of the CPU that hands a packet to it, in NET_RX. RPS is applied first
    /// (`netif_rx`).
    Backlog,
    /// In the program that writes packets into it, as its system time. RPS is applied first
    /// (`netif_receive_skb`).
    Writer,
    /// While its ports receive. What it delivers to this host enters the stack a second time
    /// (`netif_receive_skb`), where its own RPS is applied. What it forwards does not.
    Reentry,
    /// While the netdevs below it receive. The stack continues with the same packet
    /// (`RX_HANDLER_ANOTHER`, `another_round`), and does not apply its RPS.
    SamePass,
    /// In a tasklet of the CPU that redirected them, which gives them back to the netdev that they
    /// came from (`netif_receive_skb`): RPS of that netdev is applied again, its own never.
    Tasklet,
    /// In its GRO cells: a NAPI without an id for each CPU, which the CPU that received the outer
    /// packet polls. Then RPS is applied (`napi_gro_receive`). With GRO off, as [`Self::Backlog`].
    GroCells,
    /// In a NAPI of its own without an id. Then RPS is applied (`napi_gro_receive`).
    Napi,
    /// A program reads them from a queue, which is filled while the netdev below receives. RPS is
    /// not applied.
    Reader,
    /// It receives nothing.
    Nothing,
}

use SoftwareReceive::{
    Backlog, GroCells, Napi, Nothing, Reader, Reentry, SamePass, Tasklet, Writer,
};

/// Flag of `/sys/class/net/*/tun_flags`: a NAPI polls the packets that a program writes.
const IFF_NAPI: u32 = 0x10;

const BY_BACKLOG: &str = "`rx_dropped`, and `dropped` of softnet_stat: the backlog was full";
const BY_CELL: &str = "`rx_dropped`: a cell had `netdev_max_backlog` packets";
const BELOW: &str = "those of the netdev below";
const BESIDES: &str =
    "multicasts and broadcasts, and packets of other such netdevs above the same one";
const BELOW_OR_WORKER: &str = "`rx_dropped` of the netdev below: the worker's queue was full";

/// All kinds. One with IFF_NAPI comes after the same kind without.
const KINDS: &[SoftwareNetdev] = &[
    kind(&["lo"], Backlog, "drivers/net/loopback.c:loopback_xmit", BY_BACKLOG),
    kind(
        &["veth"],
        Backlog,
        "drivers/net/veth.c:veth_forward_skb",
        "`rx_dropped`, `dropped` of softnet_stat, and `tx_dropped` of the peer: the backlog, or \
         the ring of its NAPI, was full",
    ),
    kind(
        &["netkit"],
        Backlog,
        "drivers/net/netkit.c:netkit_xmit",
        "`rx_dropped`, and `dropped` of softnet_stat: the backlog was full; `tx_dropped` of the \
         peer: its program dropped them",
    ),
    kind(&["sit"], Backlog, "net/ipv6/sit.c:ipip6_rcv", BY_BACKLOG),
    kind(&["ppp"], Backlog, "drivers/net/ppp/ppp_generic.c:ppp_receive_nonmp_frame", BY_BACKLOG),
    kind(&["gtp"], Backlog, "drivers/net/gtp.c:gtp_rx", BY_BACKLOG),
    kind(&["l2tp_eth", "l2tpeth"], Backlog, "net/l2tp/l2tp_eth.c:l2tp_eth_dev_recv", BY_BACKLOG),
    kind(
        &["tun"],
        Writer,
        "drivers/net/tun.c:tun_rx_batched",
        "`tx_dropped`: its program reads too slowly; `rx_dropped`: what the program wrote",
    ),
    kind(
        &["tun"],
        Napi,
        "drivers/net/tun.c:tun_napi_poll",
        "`tx_dropped`: its program reads too slowly; `rx_dropped`: what the program wrote",
    ),
    kind(
        &["wireguard"],
        Napi,
        "drivers/net/wireguard/receive.c:wg_packet_rx_poll",
        "none if its queues are full (1024 packets), and no event; `rx_errors`: packets of wrong \
         length or sender",
    ),
    kind(&["vxlan"], GroCells, "drivers/net/vxlan/vxlan_core.c:vxlan_rcv", BY_CELL),
    kind(&["geneve"], GroCells, "drivers/net/geneve.c:geneve_rx", BY_CELL),
    kind(&["bareudp"], GroCells, "drivers/net/bareudp.c:bareudp_udp_encap_recv", BY_CELL),
    kind(
        &["gre", "gretap", "erspan", "ipip"],
        GroCells,
        "net/ipv4/ip_tunnel.c:ip_tunnel_rcv",
        BY_CELL,
    ),
    kind(
        &["ip6gre", "ip6gretap", "ip6erspan", "ip6tnl"],
        GroCells,
        "net/ipv6/ip6_tunnel.c:__ip6_tnl_rcv",
        BY_CELL,
    ),
    kind(&["macsec"], GroCells, "drivers/net/macsec.c:macsec_handle_frame", BY_CELL),
    kind(
        &["xfrm", "vti", "vti6"],
        GroCells,
        "net/xfrm/xfrm_input.c:xfrm_input",
        "`rx_dropped`: a cell had `netdev_max_backlog` packets; `/proc/net/xfrm_stat`",
    ),
    kind(&["dsa"], GroCells, "net/dsa/tag.c:dsa_switch_rcv", BY_CELL),
    kind(
        &["bridge"],
        Reentry,
        "net/bridge/br_input.c:br_pass_frame_up",
        "those of its ports; what it delivers to this host: `rx_dropped`",
    ),
    kind(
        &["bonding", "bond"],
        SamePass,
        "drivers/net/bonding/bond_main.c:bond_handle_frame",
        "those of its ports; `rx_nohandler` of a port: it is not the active one",
    ),
    kind(
        &["team"],
        SamePass,
        "drivers/net/team/team_core.c:team_handle_frame",
        "those of its ports; `rx_nohandler`: the port is not the active one",
    ),
    kind(
        &["802.1Q VLAN Support", "vlan"],
        SamePass,
        "net/8021q/vlan_core.c:vlan_do_receive",
        BELOW,
    ),
    SoftwareNetdev {
        on_backlog: "packets of this host to itself",
        ..kind(&["vrf"], SamePass, "drivers/net/vrf.c:vrf_l3_rcv", BELOW)
    },
    SoftwareNetdev {
        on_backlog: BESIDES,
        ..kind(
            &["macvlan"],
            SamePass,
            "drivers/net/macvlan.c:macvlan_handle_frame",
            BELOW_OR_WORKER,
        )
    },
    SoftwareNetdev {
        on_backlog: BESIDES,
        ..kind(
            &["ipvlan"],
            SamePass,
            "drivers/net/ipvlan/ipvlan_core.c:ipvlan_handle_frame",
            BELOW_OR_WORKER,
        )
    },
    kind(
        &["macvtap", "ipvtap"],
        Reader,
        "drivers/net/tap.c:tap_handle_frame",
        "`rx_dropped`: its program reads too slowly",
    ),
    kind(
        &["ifb"],
        Tasklet,
        "drivers/net/ifb.c:ifb_ri_tasklet",
        "`rx_dropped`: not redirected to it; `tx_dropped`: the netdev that redirected is gone; its \
         qdisc",
    ),
    kind(&["dummy"], Nothing, "drivers/net/dummy.c:dummy_xmit", "none: all packets end here"),
    kind(&["nlmon"], Nothing, "drivers/net/nlmon.c:nlmon_xmit", "none: all packets end here"),
];

const fn kind(
    names: &'static [&'static str],
    receive: SoftwareReceive,
    function: &'static str,
    losses: &'static str,
) -> SoftwareNetdev {
    SoftwareNetdev { names, receive, function, on_backlog: "", losses }
}

impl SoftwareNetdev {
    /// Whether the kernel does not apply RPS, RFS and threaded NAPI of the netdev itself, except
    /// for [`Self::on_backlog`].
    pub fn is_never_steered(&self) -> bool {
        matches!(self.receive, SamePass | Tasklet | Reader | Nothing)
    }

    /// Whether this is a name of a kind in the table.
    pub fn is_kind(name: &str) -> bool {
        KINDS.iter().any(|kind| kind.names.contains(&name))
    }

    /// The kind of a netdev; `None` for hardware, and for kinds that are not in the table.
    pub fn from_netdev(netdev: &Netdev) -> Option<Self> {
        // the loopback has no driver
        let driver = if netdev.name == "lo" { Some("lo") } else { netdev.driver.as_deref() };
        // the port of a switch has the device of the switch
        let is_port = has_driver(netdev, &["dsa"])
            || netdev.bus.as_deref().is_some_and(|bus| bus.starts_with("mdio"));
        let has_napi = netdev.tun_flags.is_some_and(|flags| flags & IFF_NAPI != 0);
        let is_kind = |kind: &&Self| match (is_port, netdev.device_path.is_some()) {
            (true, _) => kind.names == ["dsa"],
            (false, true) => false,
            (false, false) => {
                driver.is_some_and(|driver| kind.names.contains(&driver))
                    && (kind.names != ["tun"] || has_napi == (kind.receive == Napi))
            }
        };
        KINDS.iter().find(is_kind).copied()
    }

    /// Whether no NAPI polls a netdev of this kind. Then its packets are on the backlogs of the
    /// CPUs that send them. The loopback's are not told from all others.
    pub fn is_on_backlogs(netdev: &Netdev) -> bool {
        netdev.name != "lo" && Self::from_netdev(netdev).is_some_and(|kind| kind.receive == Backlog)
    }

    /// Whether its ports are one link to the outside: a bond or a team.
    pub fn is_bond(&self) -> bool {
        matches!(self.names, ["bonding", ..] | ["team"])
    }

    /// What lets it be polled, and where, if NAPIs without an id poll it.
    pub fn polled_without_id(&self) -> Option<&'static str> {
        Some(match (self.receive, self.names) {
            (GroCells, _) => {
                "the cpu that receives the outer packet polls its GRO cell, a NAPI without an id"
            }
            (Napi, ["wireguard"]) => {
                "workers decrypt its packets (wg-crypt, on all cpus in turn), and each lets the \
                 NAPI of the peer be polled on its own cpu"
            }
            (Napi, _) => "the program that writes into it lets its NAPI be polled on its own cpu",
            _ => return None,
        })
    }

    /// Whether NAPIs without an id poll it.
    pub fn is_polled_without_id(&self) -> bool {
        self.polled_without_id().is_some()
    }

    /// The stage at which its `rx_dropped` counts, and why it is no loss of its own; empty for a
    /// loss.
    pub fn rx_dropped(&self) -> (LossStage, &'static str) {
        match self.receive {
            Backlog => (LossStage::Protocol, "by the backlog of a CPU, or no protocol handler"),
            GroCells => (LossStage::Protocol, "by its GRO cells, or without a protocol handler"),
            Reader => (LossStage::VirtualDevice, ""),
            _ => (
                LossStage::Protocol,
                "by the backlog, by the driver, or without a protocol handler",
            ),
        }
    }

    /// The last part of [`Self::function`].
    pub fn function_name(&self) -> &'static str {
        self.function.rsplit(':').next().unwrap_or(self.function)
    }

    /// What processes its packets, in words.
    fn polled_by(&self) -> &'static str {
        match self.receive {
            Backlog if self.names == ["veth"] => {
                "the backlog of the CPU that sends; with GRO or XDP its own NAPI"
            }
            Backlog if matches!(self.names, ["lo"] | ["netkit"]) => {
                "the backlog of the CPU that sends"
            }
            Backlog => "the backlog of the CPU that received the outer packet",
            Writer => "the program that writes, in its system time",
            Reentry => "the CPUs that receive for its ports",
            SamePass if self.names == ["macvlan"] => {
                "the CPUs that receive for the netdev below; broadcasts and multicasts by a worker \
                 (`macvlan_process_broadcast`; from 6.4 on not multicasts for one macvlan)"
            }
            SamePass if self.names == ["ipvlan"] => {
                "the CPUs that receive for the netdev below; broadcasts and multicasts by a worker \
                 (`ipvlan_process_multicast`)"
            }
            SamePass => "the CPUs that receive for the netdevs below",
            Tasklet => "a tasklet of the CPU that redirects: TASKLET softirq time",
            GroCells => {
                "GRO cells: a NAPI without an id on the CPU that received the outer packet; with \
                 GRO off the backlog of that CPU"
            }
            Napi if self.names == ["tun"] => {
                "with `IFF_NAPI`: a NAPI without an id on the CPU that writes"
            }
            Napi => {
                "a NAPI without an id for each peer, after workers (`wg-crypt`, all CPUs in turn) \
                 decrypted; in kthreads from 6.16 on"
            }
            Reader => "the CPUs that receive for the netdev below, until its program reads",
            Nothing => "nothing: it receives no packets",
        }
    }

    fn rps(&self) -> String {
        let text = match self.receive {
            Backlog | Writer => "read, before that",
            GroCells | Napi => "read, after that",
            Reentry => "read for what it delivers to this host",
            Tasklet => "never read; that of the netdev that redirects, twice",
            SamePass | Reader | Nothing => "never read",
        };
        match self.on_backlog {
            "" => text.to_owned(),
            others => format!("{text}, save for {others}: `netif_rx`"),
        }
    }

    fn threaded_napi(&self) -> &'static str {
        match self.receive {
            GroCells | Napi => "yes",
            Backlog if self.names == ["veth"] => "with GRO or XDP",
            _ => "no NAPI",
        }
    }

    /// The table of `docs/drivers.md`, as markdown.
    pub(super) fn as_markdown() -> String {
        let mut text = "| netdev | polled by | RPS and RFS on it | threaded NAPI | losses counted \
                        by | source |\n|---|---|---|---|---|---|\n"
            .to_owned();
        for kind in KINDS {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | `{}` |",
                kind.names.join(", "),
                kind.polled_by(),
                kind.rps(),
                kind.threaded_napi(),
                kind.losses,
                kind.function
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(driver: &str) -> Netdev {
        Netdev { driver: Some(driver.into()), ..Netdev::default() }
    }

    #[test]
    fn only_netdevs_without_a_device_are_of_a_software_kind() {
        let of = |netdev: Netdev| SoftwareNetdev::from_netdev(&netdev).map(|kind| kind.receive);
        assert_eq!(of(netdev("802.1Q VLAN Support")), Some(SamePass));
        assert_eq!(of(netdev("bridge")), Some(Reentry));
        assert_eq!(of(netdev("tun")), Some(Writer));
        assert_eq!(of(netdev("ifb")), Some(Tasklet));
        assert_eq!(of(netdev("virtio_net")), None);
        assert_eq!(of(Netdev { tun_flags: Some(0x1012), ..netdev("tun") }), Some(Napi));
        assert_eq!(of(Netdev { tun_flags: Some(0x1002), ..netdev("tun") }), Some(Writer));
        assert_eq!(of(Netdev { name: "lo".into(), ..Netdev::default() }), Some(Backlog));
        assert_eq!(of(Netdev { name: "tap0".into(), ..Netdev::default() }), None);
        let of_device = |netdev| Netdev { device_path: Some("/devices/x".into()), ..netdev };
        assert_eq!(of(of_device(netdev("veth"))), None);
        let bus = Some("mdio_bus.0:1f".to_owned());
        assert_eq!(of(of_device(Netdev { bus, ..netdev("mv88e6085") })), Some(GroCells));
        assert_eq!(of(of_device(netdev("dsa"))), Some(GroCells));
    }

    #[test]
    fn each_name_has_one_row() {
        let mut names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        names.sort_unstable();
        let twice = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        assert_eq!(twice.collect::<Vec<_>>(), ["tun"]);
    }
}
