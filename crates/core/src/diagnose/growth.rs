//! What the audit's families ask of all that was seen: counters that grew, rates, shares; and how
//! their findings are made.

use std::collections::BTreeMap;

use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::audit::{Audit, Connection, NetdevAudit, Qdisc};
use crate::change::{Change, Knob};
use crate::cpuset::CpuId;
use crate::host::{Netdev, Snapshot};
use crate::part::Part;
use crate::stages::Stage;

impl<'a> Seen<'a> {
    /// The later snapshot.
    pub(super) fn after(&self) -> &'a Snapshot {
        &self.observation.after
    }

    /// The audit of both looks.
    pub(super) fn audits(&self) -> Option<(&'a Audit, &'a Audit)> {
        Some((self.observation.before.audit.as_ref()?, self.observation.after.audit.as_ref()?))
    }

    /// What the audit read of a netdev.
    pub(super) fn audit_of(&self, netdev: &Netdev) -> Option<&'a NetdevAudit> {
        self.observation.after.audit.as_ref()?.netdevs.get(&netdev.name)
    }

    /// Netdevs that are up.
    pub(super) fn running(&self) -> impl Iterator<Item = &'a Netdev> {
        self.observation
            .after
            .netdevs
            .iter()
            .filter(|netdev| netdev.up && netdev.carrier != Some(false))
    }

    /// One of a netdev's statistics, per second.
    pub(super) fn rate(&self, netdev: &Netdev, statistic: &str) -> Option<f64> {
        self.rates.netdevs.get(&netdev.name)?.get(statistic).copied()
    }

    /// How often something happened per second that grew by this.
    pub(super) fn per_s(&self, growth: u64) -> f64 {
        let seconds = self.rates.elapsed.as_secs_f64();
        if seconds > 0.0 { growth as f64 / seconds } else { 0.0 }
    }

    /// By how much the driver's counters grew whose names fit, by name; those that stood still are
    /// left out.
    pub(super) fn driver_counters(
        &self,
        netdev: &Netdev,
        fits: impl Fn(&str) -> bool,
    ) -> BTreeMap<&'a str, u64> {
        let same = |old: &&Netdev| old.ifindex == netdev.ifindex && old.name == netdev.name;
        let old = self.observation.before.netdevs.iter().find(same);
        let new = self.observation.after.netdevs.iter().find(same);
        let mut grown = BTreeMap::new();
        let Some((old, new)) = old.and_then(stats).zip(new.and_then(stats)) else { return grown };
        if old.len() != new.len() {
            return grown;
        }
        // Names may repeat; their places do not move while the list is as long.
        for ((name, before), (again, after)) in old.iter().zip(new) {
            if name == again && fits(name) && after > before {
                let sum: &mut u64 = grown.entry(again.as_str()).or_default();
                *sum = sum.saturating_add(after - before);
            }
        }
        grown
    }

    /// The queueing disciplines of a netdev: each as it was, how it is now. New ones are not in it.
    pub(super) fn qdiscs(&self, netdev: &Netdev) -> Vec<(&'a Qdisc, &'a Qdisc)> {
        let Some((Part::Value(old), Part::Value(new))) =
            self.audits().map(|(old, new)| (&old.qdiscs, &new.qdiscs))
        else {
            return Vec::new();
        };
        let same = |new: &Qdisc, old: &&Qdisc| {
            (old.ifindex, old.handle, old.parent) == (new.ifindex, new.handle, new.parent)
                && old.kind == new.kind
        };
        let own = new.iter().filter(|qdisc| qdisc.ifindex == netdev.ifindex);
        own.filter_map(|new| Some((old.iter().find(|old| same(new, old))?, new))).collect()
    }

    /// Connections that were there at both looks.
    pub(super) fn connections(&self) -> Vec<(&'a Connection, &'a Connection)> {
        let Some((Part::Value(old), Part::Value(new))) =
            self.audits().map(|(old, new)| (&old.connections, &new.connections))
        else {
            return Vec::new();
        };
        let old: BTreeMap<u64, &Connection> =
            old.kept.iter().map(|old| (old.cookie, old)).collect();
        new.kept.iter().filter_map(|new| Some((*old.get(&new.cookie)?, new))).collect()
    }

    /// The share of a CPU's time in softirqs: measured, else by its clock ticks; and where that is
    /// from.
    pub(super) fn softirq(&self, cpu: CpuId) -> Option<(f64, &'static str)> {
        let attribution = &self.observation.attribution;
        let elapsed = attribution.elapsed.as_secs_f64();
        if let Some(time) = attribution.cpu_time.get(&cpu).filter(|_| elapsed > 0.0) {
            return Some((
                (time.softirq_ns() as f64 / 1e9 / elapsed).min(1.0),
                "irq:softirq_entry, softirq_exit",
            ));
        }
        Some((self.rates.cpus.get(&cpu)?.shares?.softirq, "/proc/stat"))
    }

    /// The CPUs that poll a netdev's queues, with the share of their time in softirqs.
    pub(super) fn polling(&self, netdev: &Netdev) -> BTreeMap<CpuId, f64> {
        let silos = self.silos.queues.iter().filter(|silo| silo.netdev.is(netdev));
        let polled = silos.flat_map(|silo| silo.polls.keys());
        polled.filter_map(|cpu| Some((*cpu, self.softirq(*cpu)?.0))).collect()
    }

    /// The share of the receive work's samples that fell in these stages; `None` where there are
    /// too few to tell.
    pub(super) fn stages(&self, wanted: &[Stage]) -> Option<f64> {
        let samples = self
            .observation
            .attribution
            .stages
            .as_ref()
            .filter(|samples| samples.refused.is_none())?;
        let all = || samples.cpus.values().flatten();
        let total = sum(all().map(|(_, count)| *count));
        let of_wanted =
            sum(all().filter(|(stage, _)| wanted.contains(stage)).map(|(_, count)| *count));
        (total >= ENOUGH_SAMPLES).then(|| of_wanted as f64 / total as f64)
    }

    /// The change of a knob to a value, if the knob exists and has another value.
    pub(super) fn change<K: Knob>(&self, knob: K, new: K::Value, reason: &str) -> Vec<Change> {
        Change::of(self.after(), knob, new, reason).into_iter().collect()
    }
}

/// A share of fewer samples than these is off by more than a tenth.
const ENOUGH_SAMPLES: u64 = 100;

/// Counts of a bundle may be anything: their sum stops at the largest number.
pub(super) fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

fn stats(netdev: &Netdev) -> Option<&[(String, u64)]> {
    netdev.ethtool.as_ref()?.stats.value().map(Vec::as_slice)
}

impl Remedy {
    /// Something to do, of which nothing else is known yet.
    pub(super) fn new(what: impl Into<String>, gain: Gain) -> Self {
        Self {
            what: what.into(),
            gain,
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }
    }

    pub(super) fn costs(self, cost: impl Into<String>) -> Self {
        Self { cost: Some(cost.into()), ..self }
    }

    pub(super) fn not_when(self, not_when: impl Into<String>) -> Self {
        Self { not_when: Some(not_when.into()), ..self }
    }

    pub(super) fn by(self, changes: Vec<Change>) -> Self {
        Self { changes, ..self }
    }
}

/// That a family looked and found all well; `None` where it had nothing to look at.
pub(super) fn all_well(id: FindingId, title: &str, evidence: Vec<Evidence>) -> Option<Finding> {
    let looked = !evidence.is_empty();
    looked.then(|| Finding {
        id,
        severity: Severity::Ok,
        subject: "machine".into(),
        title: title.to_owned(),
        evidence,
        remedies: Vec::new(),
    })
}

/// A setting as evidence.
pub(super) fn setting(
    what: impl Into<String>,
    text: impl Into<String>,
    source: impl Into<String>,
) -> Evidence {
    Evidence::new(what, Measure::Text(text.into()), source)
}
