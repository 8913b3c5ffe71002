//! The addresses at both ends of each cable.

use std::net::Ipv4Addr;

/// Returns the address of `eth<nic>` in the guest, in a /24 shared with its peer.
pub(crate) fn guest(nic: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, nic, 2)
}

/// Returns the address of the peer of `eth<nic>`.
pub(crate) fn peer(nic: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, nic, 1)
}
