//! The table of `bpf/arrive.bpf.c`: which rx queue received which flow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netsilo_model::snapshot::attribution::Poll;
use netsilo_model::snapshot::flow::{Ends, Flow, Outer, assign_numbers};

use crate::bpf::layout;
use crate::bpf::table::{create_options, mappable_array};

/// Maximum number of flows. An entry is 72 bytes, 128 with the kernel's overhead: 2 MB in total.
const FLOWS: u32 = 16384;
/// Entries per batch lookup; the kernel refuses a batch smaller than a hash bucket (`ENOSPC`).
const BATCH: u32 = 4096;

/// Counts flows by rx queue, and the packets whose flow did not fit into the table.
pub(crate) struct Arrived {
    flows: MapHandle,
    missed: MapHandle,
    missed_before: u64,
}

impl Arrived {
    /// Creates a table of full size, or a minimal placeholder if flows are not requested.
    pub(crate) fn new(wanted: bool) -> libbpf_rs::Result<Self> {
        let entries = if wanted { FLOWS } else { 1 };
        let name = Some("netsilo_arrived");
        let flows = MapHandle::create(
            MapType::Hash,
            name,
            layout::SIZEOF_ARRIVED as u32,
            layout::SIZEOF_TRAFFIC as u32,
            entries,
            &create_options(),
        )?;
        Ok(Self { flows, missed: mappable_array("netsilo_missed", 8, 1)?, missed_before: 0 })
    }

    /// The maps, by the names that the program uses.
    pub(crate) fn maps(&self) -> libbpf_rs::Result<[(&'static str, MapHandle); 2]> {
        let copy = MapHandle::try_from;
        Ok([("arrived", copy(&self.flows)?), ("arrived_missed", copy(&self.missed)?)])
    }

    /// Returns the flows since the last call, largest first, and the number of packets that were
    /// missed.
    ///
    /// If a packet arrives while its flow is being removed, it may not be counted.
    pub(crate) fn drain(&mut self, polls: &[Poll]) -> libbpf_rs::Result<(Vec<Flow>, u64)> {
        let entries = self.flows.lookup_and_delete_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
        let mut flows: Vec<Flow> =
            entries.filter_map(|(key, value)| flow(&key, &value, polls)).collect();
        flows.sort_unstable_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.cmp(b)));
        assign_numbers(&mut flows);
        let value = self.missed.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        let missed = value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let since = missed - self.missed_before;
        self.missed_before = missed;
        Ok((flows, since))
    }
}

/// Decodes `struct arrived` and `struct traffic`; `None` if the bytes are malformed.
fn flow(key: &[u8], value: &[u8], polls: &[Poll]) -> Option<Flow> {
    let bytes = |at: usize| key.get(at..).and_then(<[u8]>::first_chunk::<4>).copied();
    let word = |at| bytes(at).map(u32::from_ne_bytes);
    let half = |at: usize| Some(*key.get(at..)?.first_chunk::<2>()?);
    let sum = |at: usize| Some(u64::from_ne_bytes(*value.get(at..)?.first_chunk::<8>()?));
    let [protocol, flags] = half(layout::ARRIVED_PROTOCOL)?;
    let has = |flag| usize::from(flags) & flag != 0;
    let (v6, fragments) = (has(layout::FLAG_IPV6), has(layout::FLAG_FRAGMENT));
    let address = |at: usize| {
        Some(if !v6 {
            IpAddr::V4(Ipv4Addr::from(bytes(at)?))
        } else {
            IpAddr::V6(Ipv6Addr::from(*key.get(at..)?.first_chunk::<16>()?))
        })
    };
    let port = |at| half(at).map(u16::from_be_bytes);
    let ends = Ends {
        source: SocketAddr::new(
            address(layout::ARRIVED_SOURCE)?,
            port(layout::ARRIVED_SOURCE_PORT)?,
        ),
        target: SocketAddr::new(
            address(layout::ARRIVED_TARGET)?,
            port(layout::ARRIVED_TARGET_PORT)?,
        ),
    };
    let (hash, ifindex, netns) =
        (word(layout::ARRIVED_HASH)?, word(layout::ARRIVED_IFINDEX)?, word(layout::ARRIVED_NETNS)?);
    let ethertype = half(layout::ARRIVED_ETHERTYPE).map(u16::from_ne_bytes)?;
    let is_ip = has(layout::FLAG_IP);
    let named = polls.iter().find(|poll| poll.ifindex == ifindex && poll.netns == netns);
    Some(Flow {
        netdev: named.map_or_else(String::new, |poll| poll.netdev.clone()),
        ifindex,
        netns,
        queue: u32::from(half(layout::ARRIVED_QUEUE).map(u16::from_ne_bytes)?).checked_sub(1),
        hash: (hash != 0).then_some(hash),
        outer: if is_ip {
            Outer::of_ip(protocol, ends.target.port())
        } else {
            Outer::of_ethernet(ethertype)
        },
        v6,
        fragments,
        ends: is_ip.then_some(ends),
        packets: sum(layout::TRAFFIC_PACKETS)?,
        bytes: sum(layout::TRAFFIC_BYTES)?,
        ..Flow::default()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_flow_or_none(
            key in prop::collection::vec(any::<u8>(), 0..64),
            value in prop::collection::vec(any::<u8>(), 0..24),
        ) {
            let whole = key.len() >= 54 && value.len() >= 16;
            prop_assert_eq!(flow(&key, &value, &[]).is_some(), whole);
        }
    }

    #[test]
    fn a_flow_is_read_from_the_programs_struct() {
        let mut key = vec![0; layout::SIZEOF_ARRIVED];
        key[..4].copy_from_slice(&[10, 0, 0, 1]);
        key[16..20].copy_from_slice(&[10, 0, 0, 2]);
        key[32..36].copy_from_slice(&[0x9c, 0x40, 0x12, 0xb5]);
        key[36..40].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        key[40..44].copy_from_slice(&2_u32.to_ne_bytes());
        key[48..50].copy_from_slice(&4_u16.to_ne_bytes());
        key[50..52].copy_from_slice(&0x0800_u16.to_ne_bytes());
        key[52..54].copy_from_slice(&[17, layout::FLAG_IP as u8]);
        let value: Vec<u8> = [7_u64, 700].iter().flat_map(|sum| sum.to_ne_bytes()).collect();
        let flow = flow(&key, &value, &[]).unwrap();
        assert_eq!(flow.ends.unwrap().to_string(), "10.0.0.1:40000-10.0.0.2:4789");
        assert_eq!((flow.outer, flow.queue, flow.hash), (Outer::Vxlan, Some(3), Some(0xdead_beef)));
        assert_eq!((flow.ifindex, flow.packets, flow.bytes), (2, 7, 700));
        assert_eq!(super::flow(&key[..40], &value, &[]), None);
    }
}
