//! Compares settings, for a machine that was observed.

use std::collections::BTreeMap;
use std::fmt;

use netsilo_model::cost::weights::CostSource;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::seen_costs::seen_ipis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_trial::stats::Estimate;
use serde::{Serialize, Serializer};

use crate::interval::{Draws, ObservedErrors, estimate};
use crate::live::completions::{self, Moved};
pub use crate::live::loads::Path;
use crate::live::loads::{self, Loads};
use crate::live::placement::Placement;
use crate::live::prices::Prices;
use crate::live::proposal::Proposal;
use crate::live::work::Work;
use crate::parameters::Values;
use crate::prediction::CpuTime;

/// What settings would do to the load that was observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forecast {
    /// Packets per second of all queues, at the load that is asked for.
    pub packets_per_s: f64,
    /// The load, as a multiple of the observed one.
    pub load: f64,
    /// What was not measured, in words.
    pub assumed: Vec<String>,
    /// The machine as it is, then each setting.
    pub settings: Vec<Expected>,
}

/// What one setting would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Expected {
    /// Its name.
    pub name: String,
    /// How many times this load fits before the limit is full.
    pub fits: Estimate,
    /// Relative change of `fits` against the machine as it is; absent for that one, and where the
    /// model knows none of the knobs that change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Estimate>,
    /// Whether the change is clear: its interval does not hold zero.
    pub is_clear: bool,
    /// Knobs of the setting that the model does not know: their effect is not in here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_modeled: Vec<String>,
    /// CPU time of everything, in CPUs.
    pub cpu_time: Estimate,
    /// Inter-processor interrupts per second of RPS and of wakeups.
    pub ipis_per_s: f64,
    /// Interrupts per second of the queues; absent where they have none, or none was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts_per_s: Option<f64>,
    /// What is full first.
    pub limit: Limit,
    /// Time of one packet at each stage (ns): poll and protocol as measured, the rest as priced.
    pub path: Path,
    /// How each CPU spends its time. Above 1 in sum: the load does not fit.
    pub cpus: BTreeMap<CpuId, CpuTime>,
}

/// What is full first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Limit {
    /// The interrupts, softirqs and NAPI kthreads of one CPU.
    Cpu(CpuId),
    /// All CPUs together.
    Cpus,
    /// The CPUs to which readers are pinned.
    Pinned(CpuSet),
    /// The link of a netdev.
    Link(String),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "softirq of cpu {cpu}"),
            Self::Cpus => f.write_str("the CPUs"),
            Self::Pinned(cpus) => write!(f, "pinned readers on {cpus}"),
            Self::Link(netdev) => write!(f, "the link of {netdev}"),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name of the machine as it is.
pub const AS_IT_IS: &str = "as it is";

/// Predicts what each setting would do to the observed work, at `load` times the observed load.
pub fn forecast(observed: &Work<'_>, load: f64, settings: &[Proposal], draws: &Draws) -> Forecast {
    let work = observed.clone().times(load);
    let mut assumed = assumed(&work);
    let machine = Drawings::new(&work, draws);
    let mut all = vec![machine.expected(AS_IT_IS, &work, None)];
    for proposal in settings {
        let mut not_modeled = proposal.not_modeled.clone();
        not_modeled.extend(proposal.unknown_senders(&work));
        let supposed = proposal.other_queues(observed).unwrap_or_else(|unknown| {
            not_modeled.push(unknown);
            None
        });
        let expected = match &supposed {
            None => {
                let placed = Placed::new(&work, &proposal.after);
                not_modeled.extend(proposal.xps().filter(|_| !placed.moves_sent()));
                add_new(&mut assumed, placed.assumes());
                let mut expected = machine.expected(&proposal.name, &work, Some(&placed));
                if !not_modeled.is_empty() && placed.is_as_observed(&machine.present) {
                    expected.gain = None;
                }
                expected
            }
            Some(supposed) => {
                let analysis = Analysis::new(&supposed.observation, work.analysis.costs);
                let Ok(other) = supposed.work(&analysis) else { continue };
                let other = other.times(load);
                add_new(&mut assumed, supposed.assumed.iter().cloned());
                let after = proposal.rest(supposed);
                let placed = Placed::new(&other, &after);
                not_modeled.extend(proposal.xps().filter(|_| !placed.moves_sent()));
                add_new(&mut assumed, placed.assumes());
                Drawings::new(&other, draws).expected(&proposal.name, &work, Some(&placed))
            }
        };
        all.push(Expected { not_modeled, ..expected });
    }
    Forecast { packets_per_s: work.packets_per_s(), load, assumed, settings: all }
}

/// Adds what is not in the list.
fn add_new(list: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

/// Where the work runs under a setting.
struct Placed {
    /// Each queue's packets.
    queues: Vec<Placement>,
    /// What another XPS moves; `None` if that is not known.
    sent: Option<Moved>,
}

impl Placed {
    fn new(work: &Work<'_>, settings: &Snapshot) -> Self {
        let queues = 0..work.queues.len();
        Self {
            queues: queues.map(|number| Placement::new(work, number, settings)).collect(),
            sent: completions::moved(work, settings),
        }
    }

    /// Whether another XPS moves something, as far as that is known.
    fn moves_sent(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| !sent.is_nothing())
    }

    fn is_as_observed(&self, present: &[Placement]) -> bool {
        self.queues == present && !self.moves_sent()
    }

    /// What was not measured.
    fn assumes(&self) -> impl Iterator<Item = String> {
        let what = "that packets are sent where data is read";
        self.moves_sent().then(|| what.to_owned()).into_iter()
    }
}

/// Where each queue's packets run now.
fn present(work: &Work<'_>) -> Vec<Placement> {
    (0..work.queues.len()).map(|number| Placement::present(work, number)).collect()
}

/// A machine under each draw of the parameters.
struct Drawings<'a> {
    present: Vec<Placement>,
    fitted: Drawn<'a>,
    drawn: Vec<(Drawn<'a>, ObservedErrors)>,
}

impl<'a> Drawings<'a> {
    fn new(work: &'a Work<'a>, draws: &'a Draws) -> Self {
        let present = present(work);
        let drawn = draws.each().map(|(values, error)| (Drawn::new(work, &present, values), error));
        Self { fitted: Drawn::new(work, &present, draws.fitted()), drawn: drawn.collect(), present }
    }
}

/// The observed work under one draw of the parameters: what all settings have in common.
struct Drawn<'a> {
    work: &'a Work<'a>,
    present: Vec<Placement>,
    prices: Prices<'a>,
    /// The loads as it is.
    before: Loads,
}

impl<'a> Drawn<'a> {
    fn new(work: &'a Work<'a>, present: &[Placement], values: &'a Values) -> Self {
        let prices = Prices::new(work.analysis, values);
        let present = present.to_vec();
        let drawn = Self { work, present, prices, before: Loads::default() };
        let before = drawn.loads(&drawn.present);
        Self { before, ..drawn }
    }

    fn after(&self, placed: &Placed) -> Loads {
        let mut loads = self.loads(&placed.queues);
        if let Some(sent) = &placed.sent {
            sent.add(self.work, &self.prices, &mut loads);
        }
        loads
    }

    fn loads(&self, to: &[Placement]) -> Loads {
        let mut loads = Loads::default();
        for ((queue, now), placed) in self.work.queues.iter().zip(&self.present).zip(to) {
            loads::add(&mut loads, self.work, &self.prices, queue, (now, placed));
        }
        loads
    }
}

/// The machine under a setting, in one draw of the parameters.
struct State {
    cpus: BTreeMap<CpuId, CpuTime>,
    ipis: f64,
    path: Path,
    fits: f64,
    limit: Limit,
    cpu_time: f64,
}

impl State {
    /// Under a setting that places the queues so; `None`: as it is.
    fn new(drawn: &Drawn<'_>, placed: Option<&Placed>) -> Self {
        let (work, before) = (drawn.work, &drawn.before);
        let mut cpus = work.cpus.clone();
        let after = placed.map(|placed| drawn.after(placed));
        if let Some(after) = &after {
            for (cpu, time) in &mut cpus {
                let old = before.cpus.get(cpu).copied().unwrap_or_default();
                let new = after.cpus.get(cpu).copied().unwrap_or_default();
                time.softirq = (time.softirq + (new.softirq - old.softirq)).max(0.0);
                time.sys = (time.sys + (new.task - old.task)).max(0.0);
            }
        }
        let (fits, limit) = limit(work, &cpus);
        let cpu_time = cpus.values().map(|cpu| cpu.usr + cpu.sys + cpu.softirq).sum();
        let loads = after.as_ref().unwrap_or(before);
        State { cpus, ipis: loads.ipis, path: loads.path, fits, limit, cpu_time }
    }
}

/// How many times the load fits, and what is full then: the busiest resource (Denning and Buzen
/// 1978).
fn limit(work: &Work<'_>, cpus: &BTreeMap<CpuId, CpuTime>) -> (f64, Limit) {
    let room = |cpu: &CpuId| work.room.get(cpu).copied().unwrap_or(1.0);
    let share = |is_in: &dyn Fn(CpuId) -> bool| {
        let these = || cpus.iter().filter(|(cpu, _)| is_in(**cpu));
        let time: f64 = these().map(|(_, cpu)| cpu.usr + cpu.sys + cpu.softirq).sum();
        time / these().map(|(cpu, _)| room(cpu)).sum::<f64>().max(0.05)
    };
    let mut fullest = (share(&|_| true), Limit::Cpus);
    for pinned in &work.pinned {
        let share = share(&|cpu| pinned.contains(cpu));
        if share > fullest.0 {
            fullest = (share, Limit::Pinned(pinned.clone()));
        }
    }
    for (cpu, time) in cpus {
        let share = time.softirq / room(cpu);
        if share > fullest.0 {
            fullest = (share, Limit::Cpu(*cpu));
        }
    }
    let analysis = work.analysis;
    for netdev in analysis.running() {
        let share = work.load * analysis.link_use(netdev).unwrap_or(0.0);
        if share > fullest.0 {
            fullest = (share, Limit::Link(netdev.name.clone()));
        }
    }
    (1.0 / fullest.0.max(1e-6), fullest.1)
}

impl Drawings<'_> {
    /// Interrupts per second of the queues: as counted, one for each poll more or less.
    fn interrupts(&self, placed: Option<&Placed>) -> Option<f64> {
        let work = self.fitted.work;
        let mut sum = None;
        for (number, queue) in work.queues.iter().enumerate() {
            let Some(counted) = &queue.silo.interrupts_per_s else { continue };
            let new = placed.map_or(&self.present[number], |placed| &placed.queues[number]);
            let polls = self.present[number].batch / new.batch;
            let counted = counted.values().sum::<f64>() * work.load;
            sum = Some(sum.unwrap_or(0.0) + counted * polls);
        }
        sum
    }

    /// Whether a setting moves packets of a netdev without NAPI.
    fn moves_backlog(&self, placed: &Placed) -> bool {
        let queues = self.fitted.work.queues.iter().zip(&self.present).zip(&placed.queues);
        let mut moved = queues.filter(|((_, now), then)| now != then);
        moved.any(|((queue, _), _)| queue.is_backlog)
    }

    /// What a setting would do that places the queues so, against the machine as it is, which was
    /// measured; `None`: as it is.
    fn expected(&self, name: &str, as_it_is: &Work<'_>, placed: Option<&Placed>) -> Expected {
        let state = State::new(&self.fitted, placed);
        // The times as it is were measured: no draw changes them.
        let present = limit(as_it_is, &as_it_is.cpus).0;
        let (mut fits, mut gains, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let moves_backlog = placed.is_some_and(|placed| self.moves_backlog(placed));
        for (drawn, errors) in &self.drawn {
            let error = if moves_backlog { errors.backlog } else { errors.usual };
            let state = State::new(drawn, placed);
            gains.push(state.fits / present * error - 1.0);
            fits.push(state.fits);
            times.push(state.cpu_time);
        }
        let gain = if state.cpus == as_it_is.cpus {
            estimate(0.0, Vec::new())
        } else {
            estimate(state.fits / present - 1.0, gains)
        };
        Expected {
            name: name.to_owned(),
            fits: estimate(state.fits, fits),
            is_clear: !gain.contains(0.0),
            gain: placed.map(|_| gain),
            not_modeled: Vec::new(),
            cpu_time: estimate(state.cpu_time, times),
            ipis_per_s: state.ipis,
            interrupts_per_s: self.interrupts(placed),
            path: state.path.times(1e9 / self.fitted.work.packets_per_s()),
            limit: state.limit,
            cpus: state.cpus,
        }
    }
}

/// What was not measured.
fn assumed(work: &Work<'_>) -> Vec<String> {
    let mut assumed = Vec::new();
    if work.protocol_share.is_none() {
        assumed.push(
            "the division of softirq time into poll and protocol (netsilo show --stages samples \
             it)"
            .to_owned(),
        );
    }
    if work.analysis.costs.source == CostSource::Default {
        let what = match seen_ipis(work.analysis) {
            Some(_) => "cache lines",
            None => "IPIs and cache lines",
        };
        assumed.push(format!("the cost of {what} (netsilo calibrate measures it)"));
    }
    let unknown = work.queues.iter().filter(|queue| queue.ns.is_none()).count();
    if unknown > 0 {
        assumed.push(format!("that {unknown} queues without measured time cost nothing"));
    }
    assumed
}
