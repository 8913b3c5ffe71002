//! The time that reports of another collector cover: since boot, or between two of one boot.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::machine::counts::Counts;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::audit::Qdisc;
use netsilo_model::snapshot::host::{CpuStat, Gap, PRESENT_RATES, Snapshot, Softnet};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::thread_time::ThreadTime;

/// Counters of CPUs and interrupts start again from 0 after this many.
const WRAP: u64 = 1 << 32;

/// The time in which they may: no CPU receives more than a million packets a second.
const WRAP_TIME: Duration = Duration::from_secs(WRAP / 1_000_000);

/// How far the boot times that two reports print may be apart, in seconds: the clock is adjusted.
const SAME_BOOT_S: u64 = 10;

/// Why two reports are not the start and the end of one interval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntervalError {
    /// They are of different machines.
    #[error("the reports are of different hosts: {0} and {1}")]
    Hosts(String, String),
    /// The machine has booted in between.
    #[error("the reports are of different boots of {0}: give one of them, or two of one boot")]
    Boots(String),
    /// Neither says which boot it is of.
    #[error(
        "whether the reports are of the same boot is not known: record \
         /proc/sys/kernel/random/boot_id (sysctl -a), or /proc/stat, in both"
    )]
    Unknown,
    /// The second is older.
    #[error("the second report is older than the first: give them in the order of time")]
    Order,
}

/// The time from one report to the next. `btimes` are the boot times that `/proc/stat` prints.
pub(super) fn between(
    mut before: Snapshot,
    after: Snapshot,
    btimes: [Option<u64>; 2],
) -> Result<Observation, IntervalError> {
    let [old, new] = [&before.machine, &after.machine];
    if old.hostname != new.hostname {
        return Err(IntervalError::Hosts(old.hostname.clone(), new.hostname.clone()));
    }
    let is_same = match (old.boot_id.as_str(), new.boot_id.as_str(), btimes) {
        (old, new, _) if !old.is_empty() && !new.is_empty() => old == new,
        (_, _, [Some(old), Some(new)]) => old.abs_diff(new) <= SAME_BOOT_S,
        _ => return Err(IntervalError::Unknown),
    };
    if !is_same {
        return Err(IntervalError::Boots(new.hostname.clone()));
    }
    if after.at <= before.at {
        return Err(IntervalError::Order);
    }
    before.machine.boot_id.clone_from(&after.machine.boot_id);
    Ok(observation(before, after))
}

/// The time from boot to a report: averages, from totals.
pub(super) fn since_boot(mut after: Snapshot) -> Observation {
    let hours = after.at.as_secs_f64() / 3600.0;
    let time = if hours < 1.0 {
        format!("{:.0} minutes", hours * 60.0)
    } else if hours < 48.0 {
        format!("{hours:.1} hours")
    } else {
        format!("{:.1} days", hours / 24.0)
    };
    let why = format!(
        "one report has totals since boot ({time}): what it shows are averages of that time; a \
         second report of this boot gives rates: --from FIRST --from SECOND"
    );
    after.gaps.insert(0, Gap { what: PRESENT_RATES.into(), why });
    observation(at_boot(&after), after)
}

fn observation(mut before: Snapshot, mut after: Snapshot) -> Observation {
    let packets = packets(&after).saturating_sub(packets(&before));
    let elapsed = after.at.saturating_sub(before.at);
    let is_counted = |netdev: &Netdev| !netdev.up || netdev.statistics.contains_key("rx_packets");
    let is_known = !after.netdevs.is_empty() && after.netdevs.iter().all(is_counted);
    let wrapped = if packets >= WRAP {
        Some(format!("netdevs counted {packets} packets in this time"))
    } else {
        let why = "not recorded: ip -s -s -d link, which tells whether they did";
        (!is_known && elapsed >= WRAP_TIME).then(|| why.to_owned())
    };
    if let Some(wrapped) = wrapped {
        before.irqs.clear();
        before.arch_interrupts.clear();
        for cpu in before.cpus.values_mut() {
            cpu.softirqs = Counts::default();
            cpu.softnet = cpu.softnet.map(|softnet| Softnet { processed: None, ..softnet });
        }
        let why = format!(
            "their counters have 32 bits and may have wrapped around: {wrapped}; two reports with \
             less time between them give rates"
        );
        let what = "interrupts, softirqs and packets of each CPU".to_owned();
        after.gaps.insert(0, Gap { what, why });
    }
    let attribution = Attribution { elapsed, ..Attribution::default() };
    Observation { before, after, attribution }
}

/// What a reader of such an observation must know, in a sentence.
pub(super) fn caveat(observation: &Observation) -> Option<String> {
    let gaps = &observation.after.gaps;
    let rates = gaps.iter().find(|gap| gap.what == PRESENT_RATES).map(|gap| gap.why.clone());
    let missing = gaps.iter().filter(|gap| gap.why.starts_with("not recorded")).count();
    let missing = (missing > 0)
        .then(|| format!("{missing} parts were not recorded: netsilo show names them"));
    let parts: Vec<String> = rates.into_iter().chain(missing).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Packets of all netdevs in both directions.
fn packets(snapshot: &Snapshot) -> u64 {
    let netdevs = snapshot.netdevs.iter();
    let counts =
        netdevs.flat_map(|it| ["rx_packets", "tx_packets"].map(|name| it.statistics.get(name)));
    counts.flatten().fold(0, |all, count| all.saturating_add(*count))
}

/// The machine when all counters were 0. Settings of that time are not known.
fn at_boot(after: &Snapshot) -> Snapshot {
    let mut boot = after.clone();
    boot.at = Duration::ZERO;
    for irq in boot.irqs.values_mut() {
        irq.counts.clear();
        irq.requested = None;
    }
    boot.arch_interrupts.values_mut().flat_map(BTreeMap::values_mut).for_each(|it| *it = 0);
    for cpu in boot.cpus.values_mut() {
        cpu.stat = CpuStat::default();
        cpu.softirqs = cpu.softirqs.iter().map(|(name, _)| (name.clone(), 0)).collect();
        cpu.softnet = cpu.softnet.map(|_| Softnet { processed: Some(0), ..Softnet::default() });
    }
    boot.net_threads.values_mut().for_each(|it| it.time = it.time.map(|_| ThreadTime::default()));
    for netdev in boot.netdevs.iter_mut() {
        netdev.statistics.values_mut().for_each(|count| *count = 0);
        if let Some(Reading::Value(stats)) = netdev.ethtool.as_mut().map(|it| &mut it.stats) {
            stats.iter_mut().for_each(|(_, count)| *count = 0);
        }
    }
    boot.protocols.values_mut().for_each(|count| *count = 0);
    if let Some(audit) = &mut boot.audit {
        if let Reading::Value(qdiscs) = &mut audit.qdiscs {
            for qdisc in qdiscs {
                let Qdisc { ifindex, handle, parent, .. } = *qdisc;
                *qdisc = Qdisc {
                    kind: std::mem::take(&mut qdisc.kind),
                    ifindex,
                    handle,
                    parent,
                    ..Qdisc::default()
                };
            }
        }
        let tx = audit.netdevs.values_mut().flat_map(|netdev| netdev.tx_queues.values_mut());
        tx.for_each(|queue| queue.tx_timeouts = queue.tx_timeouts.map(|_| 0));
        let states = audit.cpus.values_mut().flat_map(|cpu| &mut cpu.idle_states);
        states.for_each(|state| (state.usage, state.time_usecs) = (0, 0));
    }
    boot
}

#[cfg(test)]
mod tests {
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::snapshot::host::{CpuCounters, HostIdentity, IrqState};

    use super::*;

    fn at(seconds: u64, boot_id: &str, packets: u64) -> Snapshot {
        let machine = HostIdentity {
            hostname: "host".into(),
            boot_id: boot_id.into(),
            ..HostIdentity::default()
        };
        let softnet = Some(Softnet { processed: Some(9), dropped: 4, ..Softnet::default() });
        let netdev = Netdev {
            name: "eth0".into(),
            statistics: [("rx_packets".to_owned(), packets)].into(),
            ..Netdev::default()
        };
        let irq = IrqState { counts: [(CpuId(0), 7)].into(), ..IrqState::default() };
        Snapshot {
            machine,
            at: Duration::from_secs(seconds),
            netdevs: vec![netdev].into(),
            irqs: [(Irq(1), irq)].into(),
            cpus: [(CpuId(0), CpuCounters { softnet, ..CpuCounters::default() })].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn two_reports_are_of_one_boot_and_in_order() {
        let none = [None, None];
        let error = |before, after, btimes| between(before, after, btimes).unwrap_err();
        let other = HostIdentity { hostname: "other".into(), ..HostIdentity::default() };
        let other = Snapshot { machine: other, ..at(9, "a", 0) };
        assert!(matches!(error(at(1, "a", 0), other, none), IntervalError::Hosts(..)));
        assert!(matches!(error(at(1, "a", 0), at(9, "b", 0), none), IntervalError::Boots(_)));
        assert_eq!(error(at(1, "", 0), at(9, "b", 0), none), IntervalError::Unknown);
        let far = [Some(1000), Some(9000)];
        assert!(matches!(error(at(1, "", 0), at(9, "b", 0), far), IntervalError::Boots(_)));
        assert_eq!(error(at(9, "a", 0), at(1, "a", 0), none), IntervalError::Order);
        let observation = between(at(1, "", 0), at(9, "b", 0), [Some(1000), Some(1001)]).unwrap();
        assert!(observation.after.follows(&observation.before));
    }

    #[test]
    fn totals_since_boot_grew_from_zero() {
        let Observation { before, after, attribution } = since_boot(at(100, "a", 50));
        assert!(after.follows(&before) && attribution.elapsed == Duration::from_secs(100));
        assert_eq!(before.netdevs[0].statistics["rx_packets"], 0);
        assert_eq!(before.cpus[&CpuId(0)].softnet.unwrap().processed, Some(0));
        assert!(before.irqs[&Irq(1)].counts.is_empty());
        assert!(after.gaps[0].why.contains("totals since boot"));
    }

    #[test]
    fn counters_of_32_bits_that_may_have_wrapped_have_no_rate_and_losses_have() {
        let Observation { before, after, .. } = since_boot(at(1_000_000, "a", WRAP));
        assert!(before.irqs.is_empty());
        let softnet = before.cpus[&CpuId(0)].softnet.unwrap();
        assert_eq!((softnet.processed, softnet.dropped), (None, 0));
        assert!(after.gaps[0].why.contains("may have wrapped"));
    }

    #[test]
    fn without_packets_of_netdevs_a_long_time_may_have_wrapped_them() {
        let is_known = |seconds, change: fn(&mut Netdev)| {
            let mut after = at(seconds, "a", 5);
            after.netdevs.iter_mut().for_each(change);
            !since_boot(after).before.irqs.is_empty()
        };
        let uncounted = |it: &mut Netdev| (it.up, it.statistics) = (true, BTreeMap::new());
        assert!(is_known(1_000_000, |it| it.up = true) && is_known(4000, uncounted));
        assert!(is_known(1_000_000, |it| it.statistics.clear()), "it is down");
        assert!(!is_known(1_000_000, uncounted));
        let without = Snapshot { netdevs: Vec::new().into(), ..at(1_000_000, "a", 5) };
        let Observation { before, after, .. } = since_boot(without);
        assert!(before.irqs.is_empty() && after.gaps[0].why.contains("not recorded: ip -s"));
    }
}
