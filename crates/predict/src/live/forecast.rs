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

use crate::live::claim::Claim;
use crate::live::completions::{self, Moved};
pub use crate::live::loads::Path;
use crate::live::loads::{self, Loads};
use crate::live::placement::Placement;
use crate::live::prices::Prices;
use crate::live::proposal::Proposal;
use crate::live::unknowns::{Assumptions, End, Unknown};
use crate::live::work::Work;
use crate::parameters::Table;
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
    /// What is claimed of the gain; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
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

/// Standard deviations of an interval that holds nine of ten values.
const NINE_OF_TEN: f64 = 1.645;

/// The name of the machine as it is.
pub const AS_IT_IS: &str = "as it is";

/// Predicts what each setting would do to the observed work, at `load` times the observed load.
pub fn forecast(observed: &Work<'_>, load: f64, settings: &[Proposal]) -> Forecast {
    let work = observed.clone().times(load);
    let mut assumed = assumed(&work);
    let machine = Judge::new(&work);
    let mut all = vec![machine.expected(AS_IT_IS, &machine, None)];
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
                let mut expected = machine.expected(&proposal.name, &machine, Some(&placed));
                if !not_modeled.is_empty() && placed.is_as_observed(&machine.present) {
                    (expected.gain, expected.claim) = (None, None);
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
                Judge::new(&other).expected(&proposal.name, &machine, Some(&placed))
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
    /// Each queue's packets, with flows as uneven as they may be, as likely, as even as may be.
    ways: [Vec<Placement>; 3],
    /// What another XPS moves; `None` if that is not known.
    sent: Option<Moved>,
}

impl Placed {
    fn new(work: &Work<'_>, settings: &Snapshot) -> Self {
        let way = |flows| {
            let queues = 0..work.queues.len();
            queues.map(|number| Placement::new(work, number, settings, flows)).collect()
        };
        Self {
            ways: [End::Worst, End::Likely, End::Best].map(way),
            sent: completions::moved(work, settings),
        }
    }

    fn queues(&self, flows: End) -> &[Placement] {
        let [worst, likely, best] = &self.ways;
        match flows {
            End::Worst => worst,
            End::Likely => likely,
            End::Best => best,
        }
    }

    /// Whether another XPS moves something, as far as that is known.
    fn moves_sent(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| !sent.is_nothing())
    }

    fn is_as_observed(&self, present: &[Placement]) -> bool {
        self.queues(End::Likely) == present && !self.moves_sent()
    }

    /// What was not measured.
    fn assumes(&self) -> impl Iterator<Item = String> {
        let what = "that packets are sent where data is read";
        self.moves_sent().then(|| what.to_owned()).into_iter()
    }
}

/// The observed work under one set of assumptions: what all settings have in common.
struct Assumed<'a> {
    assumptions: Assumptions,
    prices: Prices<'a>,
    /// What the receive work takes as it is.
    before: Loads,
    /// The same where each poll takes as many packets as it may.
    full: Loads,
}

/// A machine, with the likely assumptions and with each unknown quantity at its ends.
struct Judge<'a> {
    work: &'a Work<'a>,
    /// Where each queue's packets run now.
    present: Vec<Placement>,
    likely: Assumed<'a>,
    ends: Vec<[Assumed<'a>; 2]>,
}

impl<'a> Judge<'a> {
    fn new(work: &'a Work<'a>) -> Self {
        let values = Table::shipped().values();
        let queues = 0..work.queues.len();
        let present: Vec<Placement> =
            queues.map(|number| Placement::present(work, number)).collect();
        let assume = |assumptions| {
            let prices = Prices::new(work.analysis, values, assumptions);
            let before = loads(work, &prices, &present, &present);
            let full = loads(work, &prices, &present, &full(&present));
            Assumed { assumptions, prices, before, full }
        };
        let ends = Unknown::ALL.map(|unknown| unknown.ends(work.analysis).map(assume));
        Self { work, likely: assume(Assumptions::default()), ends: ends.into(), present }
    }

    /// The loads where queues are placed so.
    fn loads(&self, it: &Assumed<'_>, to: &[Placement], sent: Option<&Moved>) -> Loads {
        let mut loads = loads(self.work, &it.prices, &self.present, to);
        if let Some(sent) = sent {
            sent.add(self.work, &it.prices, &mut loads);
        }
        loads
    }

    /// How each CPU spends its time if its receive work changes from what it was to this.
    fn cpus(&self, it: &Assumed<'_>, to: &Loads) -> BTreeMap<CpuId, CpuTime> {
        let mut cpus = self.work.cpus.clone();
        for (cpu, time) in &mut cpus {
            let old = it.before.cpus.get(cpu).copied().unwrap_or_default();
            let new = to.cpus.get(cpu).copied().unwrap_or_default();
            time.softirq = (time.softirq + (new.softirq - old.softirq)).max(0.0);
            time.sys = (time.sys + (new.task - old.task)).max(0.0);
        }
        cpus
    }

    /// The set of assumptions that corresponds to one of another machine.
    fn like(&self, assumptions: Assumptions) -> &Assumed<'a> {
        let mut all = self.ends.iter().flatten();
        all.find(|it| it.assumptions == assumptions).unwrap_or(&self.likely)
    }
}

/// What the work takes of each CPU where its queues are placed so.
fn loads(work: &Work<'_>, prices: &Prices<'_>, now: &[Placement], to: &[Placement]) -> Loads {
    let mut loads = Loads::default();
    for ((queue, now), placed) in work.queues.iter().zip(now).zip(to) {
        loads::add(&mut loads, work, prices, queue, (now, placed));
    }
    loads
}

/// The same placements on CPUs that are full: there, each poll takes as many packets as it may.
fn full(placements: &[Placement]) -> Vec<Placement> {
    placements.iter().map(Placement::on_full_cpus).collect()
}

/// The machine under a setting and one set of assumptions.
struct State {
    cpus: BTreeMap<CpuId, CpuTime>,
    loads: Loads,
    fits: f64,
    limit: Limit,
    cpu_time: f64,
    /// How many times the load fits as it is.
    fits_now: f64,
}

impl State {
    /// Under a setting that places the queues so, compared with the machine as it is; `None`: as it
    /// is.
    fn new(judge: &Judge<'_>, as_it_is: &Judge<'_>, it: &Assumed<'_>, to: Option<&Placed>) -> Self {
        let loads_with =
            |placed: &Placed, queues: &[Placement]| judge.loads(it, queues, placed.sent.as_ref());
        let to = to.map(|placed| (placed, placed.queues(it.assumptions.flows)));
        let of_setting = to.map(|(placed, queues)| {
            (loads_with(placed, queues), loads_with(placed, &full(queues)))
        });
        let (loads, full) = of_setting.unwrap_or_else(|| (it.before.clone(), it.full.clone()));
        let now = as_it_is.like(it.assumptions);
        let receives = now.before.cpus.keys().chain(loads.cpus.keys()).copied();
        let stay = if it.assumptions.tasks_stay { receives.collect() } else { CpuSet::new() };
        let cpus = judge.cpus(it, &loads);
        let (fits, limit) = limit(judge.work, &judge.cpus(it, &full), &stay);
        let (fits_now, _) = self::limit(as_it_is.work, &as_it_is.cpus(now, &now.full), &stay);
        let cpu_time = cpus.values().map(|cpu| cpu.usr + cpu.sys + cpu.softirq).sum();
        State { cpus, loads, fits, limit, cpu_time, fits_now }
    }

    /// The ratio of the load that fits to the one that fits as it is.
    fn ratio(&self) -> f64 {
        self.fits / self.fits_now
    }
}

/// How many times the load fits, and what is full then: the busiest resource (Denning and Buzen
/// 1978); `cpus` are loads with full polls. Tasks leave a CPU that softirqs fill, but not those on CPUs in `stay`, nor pinned ones.
fn limit(work: &Work<'_>, cpus: &BTreeMap<CpuId, CpuTime>, stay: &CpuSet) -> (f64, Limit) {
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
        let tasks = if stay.contains(*cpu) { time.usr + time.sys } else { 0.0 };
        let share = (time.softirq + tasks) / room(cpu);
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

/// A likely value, and its interval from the values with each unknown quantity at its ends: the
/// differences are independent, so that their squares add up. All values are positive.
fn interval(likely: f64, ends: impl Iterator<Item = [f64; 2]>) -> Estimate {
    let (mut down, mut up) = (0.0, 0.0);
    for ends in ends {
        let [a, b] = ends.map(|end| (end / likely).ln());
        down += a.min(b).min(0.0).powi(2);
        up += a.max(b).max(0.0).powi(2);
    }
    Estimate { value: likely, low: likely * (-down.sqrt()).exp(), high: likely * up.sqrt().exp() }
}

impl Judge<'_> {
    /// Interrupts per second of the queues: as counted, one for each poll more or less.
    fn interrupts(&self, placed: Option<&Placed>) -> Option<f64> {
        let mut sum = None;
        for (number, queue) in self.work.queues.iter().enumerate() {
            let Some(counted) = &queue.silo.interrupts_per_s else { continue };
            let now = &self.present[number];
            let new = placed.map_or(now, |placed| &placed.queues(End::Likely)[number]);
            let counted = counted.values().sum::<f64>() * self.work.load;
            sum = Some(sum.unwrap_or(0.0) + counted * now.batch / new.batch);
        }
        sum
    }

    /// The ratios of loads that fit between which nine of ten measured ones were, beyond what the
    /// unknown quantities explain.
    ///
    /// How far a placement of polls is off depends on how many of them move. Steering that costs
    /// load costs up to some times what it is expected to: it also moves wakeups and the tasks that
    /// wake. Steering that gains is off by how much work it moves.
    fn model_ends(&self, state: &State, placed: &Placed) -> [f64; 2] {
        let (error, ratio) = (&Table::shipped().error, state.ratio());
        let polls = self.work.queues.iter().zip(&self.present).zip(placed.queues(End::Likely));
        let moved = polls.filter(|((_, now), then)| now.poll != then.poll);
        let packets: f64 = moved.map(|((queue, _), _)| queue.packets).sum();
        let deviation = if packets > 0.0 {
            error.polls * packets / self.work.packets_per_s()
        } else if ratio < 1.0 {
            return [ratio.powf(error.loss), ratio.powf(error.loss.recip())];
        } else {
            error.steering * self.steered(state)
        };
        [ratio * (-NINE_OF_TEN * deviation).exp(), ratio * (NINE_OF_TEN * deviation).exp()]
    }

    /// The softirq time that a setting brings to one CPU or takes from it, in CPUs that are full as
    /// the limit is: at most 1.
    fn steered(&self, state: &State) -> f64 {
        let before = &self.likely.before;
        let of = |loads: &Loads, cpu| loads.cpus.get(cpu).map_or(0.0, |load| load.softirq);
        let cpus = before.cpus.keys().chain(state.loads.cpus.keys());
        let change = |cpu| (of(&state.loads, cpu) - of(before, cpu)).abs();
        (cpus.map(change).fold(0.0, f64::max) * state.fits_now).min(1.0)
    }

    /// What a setting would do that places the queues so, against the machine as it is, which was
    /// measured; `None`: as it is.
    fn expected(&self, name: &str, as_it_is: &Judge<'_>, placed: Option<&Placed>) -> Expected {
        let state = |assumed| State::new(self, as_it_is, assumed, placed);
        let likely = state(&self.likely);
        let ends: Vec<[State; 2]> = self.ends.iter().map(|[a, b]| [state(a), state(b)]).collect();
        let of = |value: fn(&State) -> f64| {
            interval(value(&likely), ends.iter().map(|[a, b]| [value(a), value(b)]))
        };
        let gain = if likely.cpus == as_it_is.work.cpus {
            Estimate { value: 0.0, low: 0.0, high: 0.0 }
        } else {
            let model = placed.map(|placed| self.model_ends(&likely, placed));
            let ends = ends.iter().map(|[a, b]| [a.ratio(), b.ratio()]);
            interval(likely.ratio(), ends.chain(model)).map(|ratio| ratio - 1.0)
        };
        Expected {
            name: name.to_owned(),
            fits: of(|state| state.fits),
            claim: placed.map(|_| Claim::of(gain, likely.fits_now, likely.fits)),
            gain: placed.map(|_| gain),
            not_modeled: Vec::new(),
            cpu_time: of(|state| state.cpu_time),
            ipis_per_s: likely.loads.ipis,
            interrupts_per_s: self.interrupts(placed),
            path: likely.loads.path.times(1e9 / self.work.packets_per_s()),
            limit: likely.limit,
            cpus: likely.cpus,
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
