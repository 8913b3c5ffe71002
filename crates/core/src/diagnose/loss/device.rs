//! Packets that a NIC or its ring had no room for.

use super::{all_of, grown};
use crate::change::{Change, Knob, NetdevIdentity, knobs};
use crate::diagnose::ledger::{Ledger, Place};
use crate::diagnose::softirq::{Load, spread};
use crate::diagnose::nic_counters;
use crate::diagnose::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::ethtool::Limit;
use crate::host::Netdev;

pub(super) fn find(seen: &Seen<'_>, ledger: &Ledger) -> Vec<Finding> {
    seen.observation.after.netdevs.iter().filter_map(|netdev| drops(seen, ledger, netdev)).collect()
}

fn drops(seen: &Seen<'_>, ledger: &Ledger, netdev: &Netdev) -> Option<Finding> {
    let places = [Place::Nic, Place::Ring];
    let of = |place: Place| ledger.stage(place).and_then(|stage| stage.by_subject().get(netdev.name.as_str()).copied());
    // A NIC that waits for a descriptor drops what its own buffer cannot take: the two may be the
    // same packets.
    let lost = places.into_iter().filter_map(of).max()?;
    let mut evidence: Vec<Evidence> = places.into_iter().flat_map(|place| grown(ledger, place, &netdev.name)).collect();
    let ring = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rings.value()?.rx);
    evidence.extend(ring.map(|ring| {
        let text = format!("{} of at most {}", ring.current, ring.max);
        Evidence::new("descriptors of a receive ring", Measure::Text(text), "ethtool -g")
    }));
    let pollers: Vec<Load<'_>> = pollers(seen, netdev);
    for load in &pollers {
        let of_cpu = |evidence: Evidence| Evidence { what: format!("{}: {}", load.subject(), evidence.what), ..evidence };
        evidence.extend(load.evidence().into_iter().map(of_cpu));
    }
    let full = pollers.iter().find(|load| load.is_full());
    let before_ring =
        of(Place::Ring).is_none() && nic_counters::ring_apart(netdev.driver.as_deref().unwrap_or_default());
    let mut remedies =
        vec![if before_ring { not_its_ring(seen, lost) } else { larger_ring(seen, netdev, ring, lost, full) }];
    if let Some(load) = full {
        // What a cpu cannot keep up with is no burst.
        remedies.insert(0, Remedy { gain: all_of(seen, lost, "all that the device lost"), ..spread(seen, load) });
    }
    Some(Finding {
        id: FindingId::NicDrops,
        severity: Severity::Critical,
        subject: netdev.name.clone(),
        title: match full {
            Some(load) => format!("no room for {lost} packets: {}, which polls it, has no time left", load.subject()),
            None => format!("no room for {lost} packets, though the cpus that poll it have time: bursts"),
        },
        evidence,
        remedies,
    })
}

/// The CPUs that poll its queues.
fn pollers<'a>(seen: &Seen<'a>, netdev: &Netdev) -> Vec<Load<'a>> {
    let online = seen.observation.after.topology.online.iter();
    online.map(|cpu| Load::of(seen, cpu)).filter(|load| load.netdevs().contains(&netdev.name)).collect()
}

/// Descriptors were free: the NIC could not hand its packets over, or its owner limits it.
fn not_its_ring(seen: &Seen<'_>, lost: u64) -> Remedy {
    Remedy {
        what: "look before the ring, which had room: the width and speed of its PCIe link, memory bandwidth, pause frames, \
               limits of a virtual machine or cloud instance"
            .into(),
        gain: all_of(seen, lost, "all that the device lost"),
        cost: None,
        not_when: None,
        changes: Vec::new(),
        interrupts_traffic: false,
    }
}

fn larger_ring(seen: &Seen<'_>, netdev: &Netdev, ring: Option<Limit>, lost: u64, full: Option<&Load<'_>>) -> Remedy {
    let wanted = ring.filter(|ring| ring.current < ring.max).map(|ring| (ring.current, ring.current.saturating_mul(2).min(ring.max)));
    let reason = format!("{} had no room for {lost} packets", netdev.name);
    let changes = match (wanted, full) {
        (Some((_, wanted)), None) => rings(seen, netdev, wanted, &reason),
        _ => Vec::new(),
    };
    Remedy {
        what: match (wanted, ring) {
            (Some((current, wanted)), _) => format!("a receive ring of {wanted} descriptors instead of {current}"),
            (None, Some(ring)) => format!("nothing by its ring: it has the {} descriptors that it can have", ring.max),
            (None, None) => "a larger receive ring, where the device has one: this one does not tell its own".into(),
        },
        gain: match (wanted, full) {
            (None, _) => Gain::Nothing("its ring cannot be larger".into()),
            (_, Some(_)) => Gain::Nothing("the cpu that polls it is at its limit: any ring fills".into()),
            _ => all_of(seen, lost, "all that the device lost; what comes in bursts may wait"),
        },
        cost: Some("more memory that packets go through than the cache holds, and packets that wait longer".into()),
        not_when: Some("the cpu that polls it has no idle time, or the device drops before its ring (PCIe, limits of a cloud)".into()),
        interrupts_traffic: !changes.is_empty(),
        changes,
    }
}

fn rings(seen: &Seen<'_>, netdev: &Netdev, wanted: u32, reason: &str) -> Vec<Change> {
    let knob = knobs::Rings { netdev: NetdevIdentity::of(netdev) };
    let Some(old) = knob.value_in(&seen.observation.after) else { return Vec::new() };
    let new = old.clone().with("rx", wanted);
    vec![Change::new(knob, old, new, reason)]
}
