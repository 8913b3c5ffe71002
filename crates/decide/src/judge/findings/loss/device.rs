//! Findings on packets that a NIC or its receive ring could not hold.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Knob as _, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::drivers::counters;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::ethtool::Limit;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::loss::lost::{all_of, grown};
use crate::judge::findings::relief::spread;
use crate::judge::ledger::{Ledger, StageLosses};
use crate::judge::moderation::Moderation;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let netdevs = judged.analysis.after().netdevs.iter();
    let own = netdevs.filter_map(|netdev| drops(judged, netdev));
    own.chain(elsewhere(judged.analysis, &judged.ledger)).collect()
}

/// The devices of other network namespaces. Their queues are not read.
fn elsewhere(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let places = [LossStage::Nic, LossStage::Ring];
    let mut devices: BTreeMap<&Subject, u64> = BTreeMap::new();
    for (subject, lost) in
        places.into_iter().filter_map(|it| ledger.stage(it)).flat_map(StageLosses::by_subject)
    {
        if matches!(subject, Subject::InNetns { .. }) {
            let most = devices.entry(subject).or_default();
            *most = (*most).max(lost);
        }
    }
    let finding = |(subject, lost): (&Subject, u64)| Finding {
        id: FindingId::NicDrops,
        severity: Severity::Critical,
        subject: subject.clone(),
        title: format!("{lost} packets dropped by the NIC or its ring"),
        evidence: places.into_iter().flat_map(|place| grown(ledger, place, subject)).collect(),
        remedies: vec![Remedy::new(
            "find the cpus that poll it, and whether its ring is short: run netsilo check in that \
             network namespace (nsenter -t PID -n)",
            all_of(analysis, lost, "all packets that the device lost"),
        )],
    };
    devices.into_iter().map(finding).collect()
}

fn drops(judged: &Judged<'_>, netdev: &Netdev) -> Option<Finding> {
    let Judged { analysis, ledger, .. } = judged;
    let places = [LossStage::Nic, LossStage::Ring];
    let of = |place: LossStage| {
        ledger.stage(place).and_then(|stage| {
            stage.by_subject().get(&Subject::Netdev(netdev.name.clone())).copied()
        })
    };
    // While a NIC waits for a descriptor, it drops what its own buffer cannot hold. Both stages may
    // count the same packets.
    let lost = places.into_iter().filter_map(of).max()?;
    let mut evidence: Vec<Evidence> = places
        .into_iter()
        .flat_map(|place| grown(ledger, place, &Subject::Netdev(netdev.name.clone())))
        .collect();
    let ring = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rings.value()?.rx);
    evidence.extend(ring.map(|ring| {
        let text = format!("{} of at most {}", ring.current, ring.max);
        Evidence::new("descriptors in a receive ring", Measure::Text(text), "ethtool -g")
    }));
    let wait = Wait::of(analysis, netdev);
    evidence.extend(wait.as_ref().map(Wait::evidence));
    let pollers: Vec<CpuWork<'_>> = pollers(analysis, netdev);
    for load in &pollers {
        let of_cpu = |evidence: Evidence| Evidence {
            quantity: format!("{}: {}", load.subject(), evidence.quantity),
            ..evidence
        };
        evidence.extend(load.evidence().into_iter().map(of_cpu));
    }
    let full = pollers.iter().find(|load| load.is_full());
    let is_known = !analysis.after().is_since_boot()
        && !pollers.is_empty()
        && pollers.iter().all(|load| load.idle().is_some());
    let before_ring = of(LossStage::Ring).is_none() && counters::ring_apart(netdev);
    let mut remedies = vec![if before_ring {
        not_its_ring(analysis, lost)
    } else {
        larger_ring(analysis, netdev, ring, lost, full)
    }];
    let fills = |(wait, ring): (Wait, Limit)| wait.shorter(analysis, netdev, ring, lost);
    let is_late = full.is_none() && !before_ring;
    let shorter = wait.zip(ring).filter(|_| is_late).and_then(fills);
    if let Some(shorter) = shorter {
        remedies.insert(0, shorter);
    }
    if analysis.after().is_since_boot() {
        // a full CPU needs other CPUs, not a ring
        remedies.iter_mut().for_each(|remedy| remedy.changes.clear());
    }
    if let Some(load) = full {
        // A larger ring holds bursts, but does not help a saturated CPU.
        remedies.insert(
            0,
            Remedy {
                gain: all_of(analysis, lost, "all packets that the device lost"),
                ..spread(judged, load)
            },
        );
    }
    Some(Finding {
        id: FindingId::NicDrops,
        severity: Severity::Critical,
        subject: Subject::Netdev(netdev.name.clone()),
        title: match full {
            Some(load) => format!(
                "{lost} packets dropped by the NIC or its ring: {}, which polls it, has no idle \
                 time",
                load.subject()
            ),
            None if is_known => format!(
                "{lost} packets dropped by the NIC or its ring in bursts: the cpus that poll it \
                 have idle time"
            ),
            None => format!(
                "{lost} packets dropped by the NIC or its ring: whether the cpus that poll it had \
                 idle time is not known"
            ),
        },
        evidence,
        remedies,
    })
}

/// The wait before a poll of the netdev's busiest queue.
struct Wait {
    moderation: Moderation,
    /// Packets per second of that queue.
    per_s: f64,
    /// Packets that come while it waits.
    packets: f64,
}

impl Wait {
    fn of(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Self> {
        let moderation = Moderation::of(netdev)?;
        let rates = analysis.silos_of(&netdev.name).filter_map(Silo::received_per_s);
        let per_s = rates.max_by(f64::total_cmp)?;
        let packets = moderation.packets(per_s).filter(|packets| *packets >= 1.0)?;
        Some(Self { moderation, per_s, packets })
    }

    fn evidence(&self) -> Evidence {
        let text = format!("{:.0} ({})", self.packets, self.moderation.in_words());
        let what = "packets that come before a poll, at its mean rate";
        Evidence::new(what, Measure::Text(text), self.moderation.source())
    }

    /// A wait in which an eighth of the ring fills; `None` if now less than half of it does.
    fn shorter(
        &self,
        analysis: &Analysis<'_>,
        netdev: &Netdev,
        ring: Limit,
        lost: u64,
    ) -> Option<Remedy> {
        let ring = f64::from(ring.current);
        if self.packets < ring / 2.0 {
            return None;
        }
        let usecs = (ring / 8.0 / self.per_s * 1e6) as u32;
        let reason =
            format!("{:.0} packets come before a poll, and the ring holds {ring:.0}", self.packets);
        let (identity, now) = (NetdevIdentity::from_netdev(netdev), &analysis.observation.after);
        let change = match self.moderation {
            Moderation::Adaptive => None,
            Moderation::Device { .. } => {
                let knob = knobs::Coalesce { netdev: identity };
                let old = knob.value_in(now)?;
                Some(Change::new(knob, old.clone(), old.with("rx-usecs", usecs), &reason))
            }
            Moderation::Timer { .. } => {
                let knob = knobs::GroFlushTimeout { netdev: identity };
                let old = knob.value_in(now)?;
                Some(Change::new(knob, old, usecs.saturating_mul(1000), &reason))
            }
        };
        let gain = all_of(analysis, lost, "all packets that the device lost, if it waited then");
        let what = format!("a wait of {usecs} us: {reason}");
        Some(Remedy::new(what, gain).costs("more interrupts").by(change.into_iter().collect()))
    }
}

/// The CPUs that poll a netdev's queues.
fn pollers<'a>(analysis: &'a Analysis<'_>, netdev: &Netdev) -> Vec<CpuWork<'a>> {
    let online = analysis.observation.after.topology.online.iter();
    online
        .map(|cpu| CpuWork::of(analysis, cpu))
        .filter(|load| load.netdevs().contains(&netdev.name))
        .collect()
}

/// The remedy if descriptors were free: the NIC could not transfer its packets, or the host of a
/// virtual machine limits it.
fn not_its_ring(analysis: &Analysis<'_>, lost: u64) -> Remedy {
    Remedy {
        what: "the ring had free descriptors, so check the stages before it: width and speed of \
               the PCIe link, memory bandwidth, pause frames, limits of a virtual machine or cloud \
               instance"
            .into(),
        gain: all_of(analysis, lost, "all packets that the device lost"),
        cost: None,
        not_when: None,
        changes: Vec::new(),
        interrupts_traffic: false,
    }
}

fn larger_ring(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    ring: Option<Limit>,
    lost: u64,
    full: Option<&CpuWork<'_>>,
) -> Remedy {
    let wanted = ring
        .filter(|ring| ring.current < ring.max)
        .map(|ring| (ring.current, ring.current.saturating_mul(2).min(ring.max)));
    let reason = format!("{} dropped {lost} packets because its ring was full", netdev.name);
    let changes = match (wanted, full) {
        (Some((_, wanted)), None) => rings(analysis, netdev, wanted, &reason),
        _ => Vec::new(),
    };
    Remedy {
        what: match (wanted, ring) {
            (Some((current, wanted)), _) => {
                format!("a receive ring of {wanted} descriptors instead of {current}")
            }
            (None, Some(ring)) => format!(
                "leave the ring as it is: it already has the maximum of {} descriptors",
                ring.max
            ),
            (None, None) => "a larger receive ring, if the device supports it: this driver does \
                             not report its ring size"
                .into(),
        },
        gain: match (wanted, full) {
            (None, _) => Gain::Nothing("its ring cannot be larger".into()),
            (_, Some(_)) => Gain::Nothing(
                "the cpu that polls it is saturated: a ring of any size fills up".into(),
            ),
            _ => all_of(
                analysis,
                lost,
                "all packets that the device lost, if bursts filled the ring",
            ),
        },
        cost: Some("the ring's buffers may not fit into the cache, and packets wait longer".into()),
        not_when: Some(
            "the cpu that polls it has no idle time, or the device drops packets before its ring \
             (PCIe, cloud limits)"
                .into(),
        ),
        interrupts_traffic: !changes.is_empty(),
        changes,
    }
}

fn rings(analysis: &Analysis<'_>, netdev: &Netdev, wanted: u32, reason: &str) -> Vec<Change> {
    let knob = knobs::Rings { netdev: NetdevIdentity::from_netdev(netdev) };
    let Some(old) = knob.value_in(&analysis.observation.after) else { return Vec::new() };
    let new = old.clone().with("rx", wanted);
    vec![Change::new(knob, old, new, reason)]
}
