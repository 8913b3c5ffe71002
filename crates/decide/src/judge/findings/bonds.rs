//! A bond or team is one subject: what is found of several of its ports is said once.
//!
//! Their queues have one purpose, so a remedy sets those of all ports alike. The bond itself has no
//! receive work, and nothing to set.

use std::collections::BTreeMap;

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::software::SoftwareNetdev;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::Finding;
use crate::judge::verdict::RemedyVerdict;

/// The bond or team of each of its ports.
#[derive(Debug)]
pub(super) struct Bonds<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Bonds<'a> {
    pub(super) fn new(analysis: &Analysis<'a>) -> Self {
        let netdevs = &analysis.after().netdevs;
        let is_bond = |name: &str| {
            let kind = netdevs.named(name).and_then(SoftwareNetdev::from_netdev);
            kind.is_some_and(|kind| kind.is_bond())
        };
        let of_port = |port: &'a Netdev| Some((port.name.as_str(), port.master.as_deref()?));
        let ports = netdevs.iter().filter_map(of_port).filter(|(_, master)| is_bond(master));
        Self(ports.collect())
    }

    /// One finding for those of one kind on ports of one bond, at the place of the first.
    pub(super) fn findings(&self, findings: Vec<Finding>) -> Vec<Finding> {
        self.once(findings, |it| &mut it.subject, |a, b| a.id == b.id, with_finding)
    }

    /// The same for verdicts with one claim on one remedy that was judged for all ports together.
    pub(super) fn verdicts(&self, verdicts: Vec<RemedyVerdict>) -> Vec<RemedyVerdict> {
        let alike = |a: &RemedyVerdict, b: &RemedyVerdict| {
            a.remedy.is_judged_with_ports() && (a.remedy, a.claim) == (b.remedy, b.claim)
        };
        self.once(verdicts, |it| &mut it.subject, alike, with_verdict)
    }

    fn once<T>(
        &self,
        all: Vec<T>,
        subject: fn(&mut T) -> &mut Subject,
        alike: impl Fn(&T, &T) -> bool,
        with: fn(T, &[String], T, &str) -> T,
    ) -> Vec<T> {
        let mut once: Vec<(Option<&str>, Vec<String>, T)> = Vec::new();
        for mut item in all {
            let port = match subject(&mut item) {
                Subject::Netdev(name) => name.clone(),
                _ => String::new(),
            };
            let bond = self.0.get(port.as_str()).copied();
            let same = once.iter().position(|(of, ports, it)| {
                of.is_some() && *of == bond && !ports.contains(&port) && alike(it, &item)
            });
            match same {
                None => once.push((bond, vec![port], item)),
                Some(at) => {
                    let (_, mut ports, first) = once.remove(at);
                    let merged = with(first, &ports, item, &port);
                    ports.push(port);
                    once.insert(at, (bond, ports, merged));
                }
            }
        }
        let named = |(bond, ports, mut item): (Option<&str>, Vec<String>, T)| {
            if let Some(bond) = bond.filter(|_| ports.len() > 1) {
                let names = std::iter::once(bond.to_owned()).chain(ports);
                *subject(&mut item) = Subject::Netdevs(names.collect());
            }
            item
        };
        once.into_iter().map(named).collect()
    }
}

fn with_finding(mut first: Finding, ports: &[String], other: Finding, port: &str) -> Finding {
    first.title = both(&first.title, ports, &other.title, port);
    first.severity = first.severity.max(other.severity);
    first.evidence = evidence(first.evidence, ports, other.evidence, port);
    for remedy in other.remedies {
        match first.remedies.iter_mut().find(|it| it.what == remedy.what) {
            Some(same) => with_remedy(same, remedy),
            None => first.remedies.push(remedy),
        }
    }
    first
}

fn with_remedy(first: &mut Remedy, other: Remedy) {
    let is_joint = first.changes == other.changes;
    with_changes(&mut first.changes, other.changes);
    first.interrupts_traffic |= other.interrupts_traffic;
    first.gain = match (first.gain.forecast(), other.gain.forecast()) {
        (Some(_), Some(_)) if !is_joint => {
            Gain::Unknown("what the changes of all ports gain together was not forecast".into())
        }
        _ => least(first.gain.clone(), other.gain),
    };
}

fn with_verdict(
    mut first: RemedyVerdict,
    ports: &[String],
    other: RemedyVerdict,
    port: &str,
) -> RemedyVerdict {
    first.reason = both(&first.reason, ports, &other.reason, port);
    first.reasons = evidence(first.reasons, ports, other.reasons, port);
    with_changes(&mut first.changes, other.changes);
    first.gain = least(first.gain, other.gain);
    first
}

fn with_changes(first: &mut Vec<Change>, other: Vec<Change>) {
    for change in other {
        if !first.iter().any(|known| known.target == change.target) {
            first.push(change);
        }
    }
}

/// `eth0: a; eth1: b`, or what both say.
fn both(first: &str, ports: &[String], other: &str, port: &str) -> String {
    match ports {
        _ if first == other => first.to_owned(),
        [only] => format!("{only}: {first}; {port}: {other}"),
        _ => format!("{first}; {port}: {other}"),
    }
}

fn evidence(
    mut first: Vec<Evidence>,
    ports: &[String],
    other: Vec<Evidence>,
    port: &str,
) -> Vec<Evidence> {
    if first == other {
        return first;
    }
    let of =
        |port: &str, it: Evidence| Evidence { quantity: format!("{port}: {}", it.quantity), ..it };
    if let [only] = ports {
        first = first.into_iter().map(|it| of(only, it)).collect();
    }
    first.extend(other.into_iter().map(|it| of(port, it)));
    first
}

/// The gain of both ports: counts add up; of two forecasts for one port alone, the lower one.
fn least(first: Gain, other: Gain) -> Gain {
    use Measure::{Count, PerSecond};
    match (first, other) {
        (
            Gain::Forecast { load_that_fits: a, limit: _ },
            Gain::Forecast { load_that_fits: b, limit },
        ) if b.value < a.value => Gain::Forecast { load_that_fits: b, limit },
        (Gain::AtMost { measure, of, basis }, Gain::AtMost { measure: other, .. }) => {
            let measure = match (measure, other) {
                (Count(a), Count(b)) => Count(a.saturating_add(b)),
                (PerSecond(a), PerSecond(b)) => PerSecond(a + b),
                (measure, _) => measure,
            };
            Gain::AtMost { measure, of, basis }
        }
        (first, _) => first,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::{CpuId, CpuSet};
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

    use super::*;
    use crate::judge::findings::{Check, FindingId, check};
    use crate::judge::fix::fix;
    use crate::judge::verdict::RemedyName;

    /// Two NICs whose only queues fill one CPU each, ports of `master`.
    fn host(master: &str, driver: &str) -> (Check, BTreeSet<String>) {
        let reader = |cpu| Reader {
            comm: format!("worker-{cpu}"),
            cpu: CpuId(cpu),
            bytes_per_s: 1_000_000,
            ..Reader::default()
        };
        let port = |n: u32| SceneNetdev {
            name: format!("eth{n}"),
            driver: "virtio_net".into(),
            master: Some(master.into()),
            queues: vec![SceneQueue {
                irq: Some(30 + n),
                cpus: CpuSet::from_cpu(CpuId(n)),
                rps_cpus: Some(CpuSet::new()),
                packets_per_s: 400_000,
                packets_per_poll: 32,
                load: 0.95,
                readers: (2..10).map(reader).collect(),
                ..SceneQueue::default()
            }],
            per_s: BTreeMap::from([("rx_packets".to_owned(), 400_000)]),
            ..SceneNetdev::default()
        };
        let bond = SceneNetdev {
            name: master.into(),
            driver: driver.into(),
            software: true,
            queues: vec![SceneQueue { rps_cpus: Some(CpuSet::new()), ..SceneQueue::default() }],
            per_s: BTreeMap::from([("rx_packets".to_owned(), 800_000)]),
            ..SceneNetdev::default()
        };
        let netdevs = vec![port(0), port(1), bond];
        let grid = Grid { l2s: 16, ..Grid::default() };
        let scene = Scene { grid, netdevs, virtual_machine: Some(false), ..Scene::default() };
        let observation = scene.observation();
        let check = check(&Analysis::new(&observation, &Costs::default()));
        let request = ["rps-would-help:eth0".parse().unwrap()];
        let plan = fix(&check, &request, &observation.after, false);
        (check, plan.changes.iter().map(|it| it.target.to_string()).collect())
    }

    #[test]
    fn what_is_found_of_both_ports_of_a_bond_is_said_once() {
        let subjects = |check: &Check| -> Vec<String> {
            let all = check.findings.iter().filter(|it| it.id == FindingId::RpsWouldHelp);
            all.map(|it| it.subject.to_string()).collect()
        };
        let rps = |check: &Check| -> Vec<String> {
            let all = check.verdicts.iter().filter(|it| it.remedy == RemedyName::Rps);
            all.map(|it| it.subject.to_string()).collect()
        };
        let (bonded, changed) = host("bond0", "bonding");
        assert_eq!(subjects(&bonded), ["bond0 eth0 eth1"]);
        assert_eq!(rps(&bonded), ["bond0 eth0 eth1", "bond0"]);
        let has = |netdev: &str| changed.iter().any(|target| target.contains(netdev));
        assert!(has("eth0") && has("eth1") && !has("bond0"), "{changed:?}");
        // Each alone gains nothing: the other one stays full.
        let (bridged, changed) = host("br0", "bridge");
        assert_eq!(rps(&bridged), ["eth0", "eth1", "br0"]);
        assert!(subjects(&bridged).is_empty() && changed.is_empty(), "{changed:?}");
    }
}
