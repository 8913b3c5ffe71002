//! Makes a guest forward between the peers of its first two NICs: as a router, a NAT or a bridge.

use crate::lab::Lab;
use anyhow::Result;

impl Lab {
    /// Makes the guest a router between the networks of eth0 and eth1. Their peers use it.
    pub fn route(&self) -> Result<()> {
        self.sh("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
        for (nic, other) in [(0, 1), (1, 0)] {
            let via = Self::guest_address(nic);
            let route = format!("ip route replace 10.77.{other}.0/24 via {via}");
            self.peer(nic.into())?.sh(&route)?;
        }
        Ok(())
    }

    /// Gives the guest's own address to packets that a router sends by eth1, until
    /// [`Lab::end_nat`].
    pub fn nat(&self) -> Result<()> {
        self.sh("nft 'add table ip nat; \
             add chain ip nat out { type nat hook postrouting priority 100; }; \
             add rule ip nat out oifname eth1 masquerade'")
            .map(drop)
    }

    /// Ends [`Lab::nat`].
    pub fn end_nat(&self) -> Result<()> {
        self.sh("nft delete table ip nat").map(drop)
    }

    /// Turns a router into a bridge without addresses. The peer of eth1 is then 10.77.0.3. This
    /// cannot be reverted.
    pub fn bridge(&self) -> Result<()> {
        self.sh("echo 0 >/proc/sys/net/ipv4/ip_forward; \
             ip link add br0 type bridge; ip link set br0 up; \
             for eth in eth0 eth1; do \
                 ip address flush dev $eth; ip link set $eth master br0; \
             done")?;
        self.peer(0)?.sh("ip route flush 10.77.1.0/24")?;
        let moved = "ip route flush 10.77.0.0/24; ip address add 10.77.0.3/24 dev tap1";
        self.peer(1)?.sh(moved).map(drop)
    }
}
