//! Two observations side by side: what is set otherwise, where work runs elsewhere, which rates
//! differ.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::{Target, only_read};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::host::{Snapshot, boot_parameters};
use serde::{Deserialize, Serialize};

use crate::report::{CpuLine, NetdevLine, Report};

/// Part of a rate, or share of a CPU's time, by which two observations must differ to be notable.
/// Loads of two observations are rarely more equal than this.
const NOTABLE: f64 = 0.1;

/// Rates per second that are too small to be notable, except losses.
const RARE_PER_S: f64 = 10.0;

/// What differs between an observation and another one, which is the older or the better one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// The machines, as `host name, kernel release`: of the other observation, and of this one.
    pub machines: [String; 2],
    /// Length of both observations in seconds.
    pub elapsed_s: [f64; 2],
    /// Settings with two values, by name.
    pub settings: BTreeMap<String, [Option<String>; 2]>,
    /// Where queues are polled and read, if that differs.
    pub places: BTreeMap<String, [Option<String>; 2]>,
    /// All rates that were counted in one of the two.
    pub rates: Vec<RatePair>,
}

/// A rate in two observations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RatePair {
    /// What was counted.
    pub name: String,
    /// What its values mean.
    pub unit: RateUnit,
    /// Its value in the other observation, and in this one; `null` if it was not counted.
    pub values: [Option<f64>; 2],
}

/// What a value of a rate means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RateUnit {
    /// Bytes per second.
    BytesPerSecond,
    /// A count per second.
    PerSecond,
    /// Lost packets per second.
    LostPerSecond,
    /// A share, from 0 to 1.
    Share,
}

impl Difference {
    /// Compares an observation with another one.
    pub fn of(analysis: &Analysis<'_>, other: &Analysis<'_>) -> Self {
        let both = [other, analysis];
        let reports = both.map(Report::of);
        let snapshots = both.map(|it| it.after());
        let is_same_boot = snapshots[0].machine.boot_id == snapshots[1].machine.boot_id;
        Self {
            machines: snapshots
                .map(|it| format!("{}, {}", it.machine.hostname, it.machine.release)),
            elapsed_s: [0, 1].map(|at| reports[at].elapsed_s),
            settings: unequal(snapshots.map(|snapshot| settings(snapshot, is_same_boot))),
            places: unequal(both.map(places)),
            rates: rates(&reports),
        }
    }
}

impl RatePair {
    /// Whether the values differ by more than two observations of one load usually do.
    pub fn is_notable(&self) -> bool {
        let [Some(old), Some(new)] = self.values else { return false };
        match self.unit {
            RateUnit::Share => (old - new).abs() > NOTABLE,
            unit => {
                let (most, apart) = (old.max(new), (old - new).abs());
                let is_rare = most <= RARE_PER_S && unit != RateUnit::LostPerSecond;
                !is_rare && apart > NOTABLE * most
            }
        }
    }
}

/// Values by name, in two observations.
fn unequal([old, mut new]: [BTreeMap<String, String>; 2]) -> BTreeMap<String, [Option<String>; 2]> {
    let mut all: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    for (name, value) in old {
        let other = new.remove(&name);
        if other.as_ref() != Some(&value) {
            all.insert(name, [Some(value), other]);
        }
    }
    all.extend(new.into_iter().map(|(name, value)| (name, [None, Some(value)])));
    all
}

/// All settings of a host and the facts about it that decide what they do. Another boot may give
/// other numbers to interrupts: then their names identify them.
fn settings(snapshot: &Snapshot, is_same_boot: bool) -> BTreeMap<String, String> {
    let mut all = only_read(snapshot);
    // A bundle has others in their places.
    all.retain(|name, _| !name.ends_with(" address"));
    for target in Target::all_in(snapshot) {
        let Some(value) = target.value_in(snapshot) else { continue };
        let name = match &target {
            Target::IrqAffinity(knob) if !is_same_boot && !knob.action.is_empty() => {
                format!("irq {}", knob.action)
            }
            _ => target.to_string(),
        };
        all.insert(name, value.to_string());
    }
    all.insert("kernel".into(), snapshot.machine.release.clone());
    for word in boot_parameters(&snapshot.machine.cmdline) {
        let (name, value) = word.split_once('=').unwrap_or((word, "set"));
        all.insert(format!("boot parameter {name}"), value.into());
    }
    all.insert("online cpus".into(), snapshot.topology.online.to_string());
    for owner in &snapshot.knob_owners {
        all.insert(owner.name.clone(), "runs".into());
    }
    all
}

/// The CPUs that poll each queue with traffic, and those that read its data.
fn places(analysis: &Analysis<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for silo in analysis.silos.queues.iter().filter(|silo| silo.has_traffic()) {
        let polled = silo.polling_cpus();
        if !polled.is_empty() {
            all.insert(format!("{} is polled on", silo.label()), format!("cpus {polled}"));
        }
        if let Some(readers) = readers(silo) {
            all.insert(format!("{} is read by", silo.label()), readers);
        }
    }
    all
}

/// The processes that read a queue's data.
fn readers(silo: &Silo) -> Option<String> {
    let names: BTreeSet<&str> = silo.consumers.iter().map(|it| it.comm.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn rates([old, new]: &[Report; 2]) -> Vec<RatePair> {
    let mut all = Vec::new();
    let mut add = |name: String, unit: RateUnit, values: [Option<f64>; 2]| {
        if values != [None; 2] {
            all.push(RatePair { name, unit, values });
        }
    };
    let totals = [&old.totals, &new.totals];
    add("bytes read".into(), RateUnit::BytesPerSecond, totals.map(|it| it.bytes_per_s));
    add("packets polled".into(), RateUnit::PerSecond, totals.map(|it| it.packets_per_s));
    add("interrupts".into(), RateUnit::PerSecond, totals.map(|it| Some(it.interrupts_per_s)));
    let near = totals.map(|it| {
        let near = it.locality.shares.get(&Distance::SameCpu).copied().unwrap_or(0.0);
        (it.locality.bytes_per_s > 0.0).then_some(near)
    });
    add("read on the cpu that ran the protocol".into(), RateUnit::Share, near);
    for netdev in &new.netdevs {
        let Some(before) = old.netdevs.iter().find(|it| it.name == netdev.name) else { continue };
        for (what, unit, of) in OF_NETDEVS {
            add(format!("{} {what}", netdev.name), unit, [before, netdev].map(of));
        }
    }
    for cpu in &new.cpus {
        let Some(before) = old.cpus.iter().find(|it| it.cpu == cpu.cpu) else { continue };
        for (what, unit, of) in OF_CPUS {
            add(format!("cpu {} {what}", cpu.cpu), unit, [before, cpu].map(of));
        }
    }
    all
}

/// A rate of each part of the host.
type RateOf<T> = (&'static str, RateUnit, fn(&T) -> Option<f64>);

const OF_NETDEVS: [RateOf<NetdevLine>; 4] = [
    ("rx_bytes", RateUnit::BytesPerSecond, |it| it.rx_bytes_per_s),
    ("rx_packets", RateUnit::PerSecond, |it| it.rx_packets_per_s),
    ("rx_dropped", RateUnit::LostPerSecond, |it| it.rx_dropped_per_s),
    ("rx_missed_errors", RateUnit::LostPerSecond, |it| it.rx_missed_errors_per_s),
];

const OF_CPUS: [RateOf<CpuLine>; 4] = [
    ("busy", RateUnit::Share, |it| it.shares.as_ref().map(|shares| 1.0 - shares.idle)),
    ("in softirqs", RateUnit::Share, |it| {
        it.softirq_share.or_else(|| it.shares.as_ref().map(|shares| shares.softirq))
    }),
    ("packets dropped by its backlog", RateUnit::LostPerSecond, |it| it.dropped_per_s),
    ("packets steered to it", RateUnit::PerSecond, |it| it.received_rps_per_s),
];

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::{CpuId, CpuSet};
    use netsilo_model::machine::ids::Irq;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    use super::*;

    fn scene(cpu: u32, packets_per_s: u64) -> Scene {
        let queue = SceneQueue {
            irq: Some(100),
            cpus: CpuSet::from_cpu(CpuId(cpu)),
            packets_per_s,
            load: 0.3,
            ..SceneQueue::default()
        };
        let eth0 = SceneNetdev { name: "eth0".into(), queues: vec![queue], ..Default::default() };
        let grid = Grid { cores: 2, ..Grid::default() };
        Scene { grid, netdevs: vec![eth0], ..Scene::default() }
    }

    #[test]
    fn settings_places_and_rates_that_differ_are_named_with_both_values() {
        let costs = Costs::default();
        let [old, mut new] = [scene(0, 1000), scene(1, 2000)].map(|it| it.observation());
        let of = |old: &_, new: &_| {
            Difference::of(&Analysis::new(new, &costs), &Analysis::new(old, &costs))
        };
        let found = of(&old, &new);
        let settings: Vec<_> = found.settings.values().collect();
        assert_eq!(settings, [&[Some("0".to_owned()), Some("1".to_owned())]], "{found:#?}");
        assert_eq!(
            found.places["eth0 rx-0 is polled on"],
            [Some("cpus 0".to_owned()), Some("cpus 1".to_owned())]
        );
        let notable: Vec<_> = found.rates.iter().filter(|it| it.is_notable()).collect();
        let polled = notable.iter().find(|it| it.name == "packets polled").unwrap();
        assert_eq!(polled.values, [Some(1000.0), Some(2000.0)]);
        assert!(notable.iter().any(|it| it.name == "cpu 0 in softirqs"), "{notable:#?}");
        let is_notable = |unit, values: [f64; 2]| {
            RatePair { name: String::new(), unit, values: values.map(Some) }.is_notable()
        };
        assert!(is_notable(RateUnit::LostPerSecond, [0.0, 0.5]));
        assert!(!is_notable(RateUnit::PerSecond, [0.0, 0.5]));
        // The same observation has no difference.
        let same = of(&old, &old);
        assert!(same.settings.is_empty() && same.places.is_empty());
        assert!(!same.rates.iter().any(RatePair::is_notable) && !same.rates.is_empty());
        // After a reboot, an interrupt is known by its name.
        let state = new.after.irqs.remove(&Irq(100)).unwrap();
        new.after.irqs.insert(Irq(90), state);
        new.after.netdevs[0].irqs = vec![Irq(90)];
        new.after.netdevs[0].rx_queues[0].irq.as_mut().unwrap().to = Irq(90);
        new.after.machine.boot_id = "another".into();
        assert_eq!(of(&old, &new).settings.len(), 1);
    }
}
