//! Where netdevs without hardware process the packets that they receive, by kind of netdev.

use crate::snapshot::netdev::Netdev;

/// A kind of netdev without hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftwareNetdev {
    /// Where it processes received packets if no NAPI polls it.
    pub receive: SoftwareReceive,
    /// The kernel function that determines this.
    pub function: &'static str,
}

/// Where a netdev without hardware processes received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftwareReceive {
    /// On the backlog of the CPU that sends to it, in NET_RX. RPS is applied first (`netif_rx`).
    Backlog,
    /// In the program that writes packets into it, as its system time. RPS is applied first
    /// (`netif_receive_skb`).
    Writer,
    /// While its ports receive. What it delivers to this host enters the stack a second time
    /// (`netif_receive_skb`), where its own RPS is applied. What it forwards does not.
    Reentry,
    /// While the netdevs below it receive. The stack continues with the same packet
    /// (`RX_HANDLER_ANOTHER`, `another_round`), and never applies its RPS.
    SamePass,
    /// In a tasklet of the CPU that redirected them, which gives them back to the netdev that they
    /// came from (`netif_receive_skb`): RPS of that netdev is applied again, its own never.
    Tasklet,
}

/// Driver names from ethtool, and device types from `uevent`.
const KINDS: [(&[&str], SoftwareNetdev); 8] = [
    (&["veth"], kind(SoftwareReceive::Backlog, "drivers/net/veth.c:veth_forward_skb")),
    (&["tun"], kind(SoftwareReceive::Writer, "drivers/net/tun.c:tun_rx_batched")),
    (&["bridge"], kind(SoftwareReceive::Reentry, "net/bridge/br_input.c:br_pass_frame_up")),
    (
        &["bonding", "bond"],
        kind(SoftwareReceive::SamePass, "drivers/net/bonding/bond_main.c:bond_handle_frame"),
    ),
    (&["team"], kind(SoftwareReceive::SamePass, "drivers/net/team/team_core.c:team_handle_frame")),
    (
        &["802.1Q VLAN Support", "vlan"],
        kind(SoftwareReceive::SamePass, "net/8021q/vlan_core.c:vlan_do_receive"),
    ),
    (&["macvlan"], kind(SoftwareReceive::SamePass, "drivers/net/macvlan.c:macvlan_handle_frame")),
    (&["ifb"], kind(SoftwareReceive::Tasklet, "drivers/net/ifb.c:ifb_ri_tasklet")),
];

const fn kind(receive: SoftwareReceive, function: &'static str) -> SoftwareNetdev {
    SoftwareNetdev { receive, function }
}

impl SoftwareNetdev {
    /// The loopback, which has no driver.
    pub const LOOPBACK: Self =
        kind(SoftwareReceive::Backlog, "drivers/net/loopback.c:loopback_xmit");

    /// Whether the kernel never applies RPS, RFS and threaded NAPI of the netdev itself.
    pub fn is_never_steered(&self) -> bool {
        matches!(self.receive, SoftwareReceive::SamePass | SoftwareReceive::Tasklet)
    }

    /// The kind of a netdev; `None` for hardware, and for kinds that are not in the table.
    pub fn from_netdev(netdev: &Netdev) -> Option<Self> {
        let driver = netdev.driver.as_deref().filter(|_| netdev.device_path.is_none())?;
        let known = KINDS.iter().find(|(names, _)| names.contains(&driver))?;
        Some(known.1)
    }

    /// Whether no NAPI polls a netdev of this kind. Then its packets are on the backlogs of the
    /// CPUs that send them.
    pub fn is_on_backlogs(netdev: &Netdev) -> bool {
        Self::from_netdev(netdev).is_some_and(|kind| kind.receive == SoftwareReceive::Backlog)
    }

    /// The last part of [`Self::function`].
    pub fn function_name(&self) -> &'static str {
        self.function.rsplit(':').next().unwrap_or(self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_netdevs_without_a_device_are_of_a_software_kind() {
        let of = |driver: &str, device_path: Option<&str>| {
            let netdev = Netdev {
                driver: Some(driver.into()),
                device_path: device_path.map(str::to_owned),
                ..Netdev::default()
            };
            SoftwareNetdev::from_netdev(&netdev).map(|kind| kind.receive)
        };
        assert_eq!(of("802.1Q VLAN Support", None), Some(SoftwareReceive::SamePass));
        assert_eq!(of("bridge", None), Some(SoftwareReceive::Reentry));
        assert_eq!(of("tun", None), Some(SoftwareReceive::Writer));
        assert_eq!(of("ifb", None), Some(SoftwareReceive::Tasklet));
        assert_eq!(of("veth", Some("/devices/virtual")), None);
        assert_eq!(of("virtio_net", None), None);
    }
}
