//! [`MeasuredOutcome`]: what a search measured, for plans of the same workload and machine.

use std::collections::BTreeSet;
use std::time::Duration;

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words::plural;
use netsilo_model::snapshot::netdev::NapiThread;
use netsilo_model::snapshot::subject::Subject;
use netsilo_trial::stats::Estimate;
use serde::{Deserialize, Serialize};

/// The newest schema of [`MeasuredOutcome`] that this netsilo reads; the one that it writes.
pub const SCHEMA: u32 = 1;

/// The outcome of a search: the best state measured, and how it compares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MeasuredOutcome {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of netsilo.
    pub netsilo: String,
    /// When the search ended, in seconds since 1970.
    pub ended_s: u64,
    /// The machine.
    pub machine: MachineIdentity,
    /// Name of the objective (`cpu-per-megabyte`, `latency`).
    pub objective: String,
    /// The command that was measured; empty for the live workload.
    pub load: Vec<String>,
    /// Number of windows measured.
    pub windows: usize,
    /// Whether a candidate won; otherwise the present state was as good as each of them.
    pub won: bool,
    /// The winner; otherwise the best of the others.
    pub best: BestCandidate,
    /// The workload: before the search, and with the winner in effect if it looks different then.
    pub workloads: Vec<Signature>,
    /// The best state: with the winner, or the present one of then.
    pub state: MeasuredState,
}

/// A candidate of a search, compared with the present state of then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BestCandidate {
    /// Its name.
    pub name: String,
    /// The change of the objective from the present state to this candidate; `None` if it was out
    /// before there was an interval (a guard rail).
    pub change: Option<Estimate>,
    /// Whether the change is relative; otherwise it is a difference.
    pub relative: bool,
}

/// A state of the settings: where queues are polled, and knobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MeasuredState {
    /// The queues that carried packets or were moved.
    pub places: Vec<MeasuredPlace>,
    /// What the winner changed besides these places.
    pub changes: Vec<Change>,
    /// The values of knobs that other candidates tried.
    pub others: Vec<KnobValue>,
}

/// Where a queue was polled, by name: interrupts have other numbers after a reboot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MeasuredPlace {
    /// An rx queue, or a tx queue with an interrupt of its own.
    pub queue: Subject,
    /// The CPU of its interrupt; `None` if it has none, or may arrive on several.
    pub irq: Option<CpuId>,
    /// The CPUs of its NAPI's kthread; `None` if it is not threaded.
    pub kthread: Option<CpuSet>,
}

/// A knob and its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KnobValue {
    /// The knob.
    pub target: Target,
    /// Its value.
    pub value: Value,
}

/// What a plan rests on, if that is a measured outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredBasis {
    /// The outcome's id.
    pub outcome: String,
    /// Time since the search ended, in seconds.
    pub age_s: u64,
    /// Name of the objective.
    pub objective: String,
    /// The command that was measured; empty for the live workload.
    pub load: Vec<String>,
    /// Number of windows measured.
    pub windows: usize,
    /// Whether a candidate won; otherwise the state of then is the best one.
    pub won: bool,
    /// The winner; otherwise the best of the others.
    pub best: BestCandidate,
}

impl MeasuredOutcome {
    /// How the workload differs from one; `None` if it is the same.
    pub fn differs_in_workload(&self, now: &Signature) -> Option<String> {
        let mut why = self.workloads.iter().map(|then| then.differs_from(now));
        let first = why.next().unwrap_or_else(|| Some("no workload is recorded".into()))?;
        why.all(|it| it.is_some()).then_some(first)
    }

    /// How the machine differs from one; `None` if it is the same with the same kernel.
    pub fn differs_in_machine(&self, machine: &MachineIdentity) -> Option<String> {
        let (then, now) = (&self.machine.kernel, &machine.kernel);
        let of_kernel = || (then != now).then(|| format!("its kernel was {then}, not {now}"));
        self.machine.differs_from(machine).or_else(of_kernel)
    }

    /// Checks an outcome that comes from a file.
    pub fn check(&self) -> Result<(), String> {
        if self.won && self.best.change.is_none() {
            return Err("a winner without an interval".into());
        }
        for it in &self.state.places {
            if !matches!(it.queue, Subject::Queue(..) | Subject::TxQueue(..)) {
                return Err(format!("{} is not a queue", it.queue));
            }
        }
        for KnobValue { target, value } in &self.state.others {
            target.check(value).map_err(|wrong| wrong.to_string())?;
        }
        self.workloads.iter().try_for_each(Signature::check)
    }

    /// Time since the search ended, where `since_1970` is the time now.
    pub fn age(&self, since_1970: Duration) -> Duration {
        since_1970.saturating_sub(Duration::from_secs(self.ended_s))
    }

    /// What a plan rests on that uses this outcome, which has this id and age.
    pub fn basis(&self, id: &str, age: Duration) -> MeasuredBasis {
        MeasuredBasis {
            outcome: id.to_owned(),
            age_s: age.as_secs(),
            objective: self.objective.clone(),
            load: self.load.clone(),
            windows: self.windows,
            won: self.won,
            best: self.best.clone(),
        }
    }
}

impl BestCandidate {
    /// The change and its interval: `-12.0% (-18.0% .. -6.0%)`.
    pub fn change_in_words(&self) -> String {
        let Some(Estimate { value, low, high }) = self.change else {
            return "no interval, as it was out early".into();
        };
        if self.relative {
            let percent = |share: f64| format!("{:+.1}%", share * 100.0);
            format!("{} ({} .. {})", percent(value), percent(low), percent(high))
        } else {
            format!("{value:+.3} ({low:+.3} .. {high:+.3})")
        }
    }
}

impl MeasuredBasis {
    /// The measurement in one clause: its age, objective and interval.
    pub fn in_words(&self) -> String {
        let Self { objective, best, .. } = self;
        let (age, change) = (age_in_words(self.age_s), best.change_in_words());
        if self.won {
            format!("measured {age} ago by tune: {objective} {change}")
        } else {
            format!(
                "measured {age} ago by tune: no candidate was better; the best, {}: {objective} \
             {change}",
                best.name
            )
        }
    }
}

/// An age in its largest whole unit: `3 h`.
pub fn age_in_words(age_s: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match age_s {
        ..MINUTE => format!("{age_s} s"),
        MINUTE..HOUR => format!("{} min", age_s / MINUTE),
        HOUR..DAY => format!("{} h", age_s / HOUR),
        _ => plural((age_s / DAY) as usize, "day"),
    }
}

impl MeasuredState {
    /// The state now, in which the changes of the winner are in effect; `workload` has the queues
    /// that carry packets, and `tried` all changes of all candidates.
    pub fn new(
        now: &Analysis<'_>,
        workload: &Signature,
        winner: &[Change],
        tried: &[Change],
    ) -> Self {
        let after = now.after();
        let carrying: BTreeSet<Subject> =
            workload.queues.iter().map(|it| Subject::Queue(it.netdev.clone(), it.queue)).collect();
        let polled = all_polled(now);
        let kept: Vec<&Polled<'_>> = polled
            .iter()
            .filter(|it| it.irq.is_some() || it.kthread.is_some())
            .filter(|it| {
                carrying.contains(&it.queue) || winner.iter().any(|change| it.is_moved_by(change))
            })
            .collect();
        let is_place = |change: &Change| kept.iter().any(|it| it.is_placed_by(change));
        let mut others: Vec<KnobValue> = Vec::new();
        for target in tried.iter().map(|change| &change.target) {
            let is_known = winner.iter().any(|change| change.target == *target)
                || others.iter().any(|it| it.target == *target);
            let value = target.value_in(after).filter(|_| !is_known && !is_placement(target));
            others.extend(value.map(|value| KnobValue { target: target.clone(), value }));
        }
        Self {
            places: kept.iter().map(|it| it.place(now)).collect(),
            changes: winner.iter().filter(|change| !is_place(change)).cloned().collect(),
            others,
        }
    }
}

/// Whether a knob is where an interrupt or kthread runs.
fn is_placement(target: &Target) -> bool {
    matches!(target, Target::IrqAffinity(_) | Target::NapiThread(_))
}

/// A queue with what polls it.
pub(super) struct Polled<'a> {
    pub(super) queue: Subject,
    pub(super) irq: Option<Irq>,
    pub(super) kthread: Option<&'a NapiThread>,
}

impl Polled<'_> {
    fn is_moved_by(&self, change: &Change) -> bool {
        match &change.target {
            Target::IrqAffinity(knob) => self.irq == Some(knob.irq),
            Target::NapiThread(knob) => self.kthread.is_some_and(|it| it.pid == knob.pid),
            _ => false,
        }
    }

    /// Whether its place says as much as a change: an interrupt's is one CPU.
    fn is_placed_by(&self, change: &Change) -> bool {
        let single = matches!(&change.new, Value::Cpus(cpus) if cpus.len() == 1);
        self.is_moved_by(change) && (single || self.kthread.is_some())
    }

    fn place(&self, now: &Analysis<'_>) -> MeasuredPlace {
        MeasuredPlace {
            queue: self.queue.clone(),
            irq: self.irq.and_then(|irq| now.rates.cpu_of_irq(now.after(), irq)),
            kthread: self.kthread.map(|thread| thread.cpus.clone()),
        }
    }
}

/// All rx queues, and the tx queues with interrupts of their own.
pub(super) fn all_polled<'a>(analysis: &'a Analysis<'_>) -> Vec<Polled<'a>> {
    let rx = analysis.silos.queues.iter().filter(|silo| silo.queue.is_some());
    let rx = rx.map(|silo| Polled {
        queue: silo.subject(),
        irq: silo.irq.as_ref().map(|edge| edge.to),
        kthread: silo.kthread.as_ref(),
    });
    let mut all: Vec<Polled<'a>> = rx.collect();
    for netdev in &analysis.after().netdevs {
        for tx in &netdev.tx_queues {
            let irq = tx.irq.as_ref().map(|edge| edge.to);
            let is_own = irq.is_some() && !all.iter().any(|it| it.irq == irq);
            let queue = Subject::TxQueue(netdev.name.clone(), tx.index);
            all.extend(is_own.then_some(Polled { queue, irq, kthread: None }));
        }
    }
    all
}
