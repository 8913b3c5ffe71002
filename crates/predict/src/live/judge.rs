//! The judge of an observed machine: what settings would do to the load that it had.
//!
//! Everything that asks what a change would do asks here: `predict`, `plan` and `tune`, and the
//! verdicts and findings of `check`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_trial::stats::Estimate;

use crate::assumptions::{Assumptions, End};
use crate::limit::{Limit, Used, fullest};
use crate::live::claim::{Claim, is_near_full};
use crate::live::completions::{self, Moved};
use crate::live::expected::{AS_IT_IS, Expected};
use crate::live::loads;
use crate::live::proposal::Proposal;
use crate::live::unknowns::Unknown;
use crate::live::work::{Queue, Work};
use crate::loads::{Loads, Parts};
use crate::parameters::Table;
use crate::placement::Placement;
use crate::prediction::CpuTime;
use crate::prices::Prices;

/// Standard deviations of an interval that holds nine of ten values.
const NINE_OF_TEN: f64 = 1.645;

/// Where the work runs under a setting.
struct Placed {
    /// The queues whose packets run elsewhere than now, by number: with flows as uneven and polls
    /// as small as they may be, as likely, and at best.
    moved: BTreeMap<usize, [Placement; 3]>,
    /// What another XPS moves; `None` if that is not known.
    sent: Option<Moved>,
}

impl Placed {
    /// The placement of the judge's work under `settings`, which `changes` made of the present
    /// ones; `None`: anything may differ.
    fn new(judge: &Judge<'_>, settings: &Snapshot, changes: Option<&[Change]>) -> Self {
        let Judge { work, present, .. } = judge;
        let ways = |number| {
            let way = |arrivals| Placement::new(work, number, settings, arrivals);
            (number, [End::Worst, End::Likely, End::Best].map(way))
        };
        let placed = judge.touched(settings, changes).map(ways);
        let is_moved = |(number, ways): &(usize, [Placement; 3])| {
            ways.iter().any(|way| *way != present[*number])
        };
        let is_xps = |change: &Change| matches!(change.target, Target::XpsCpus(_));
        let sent = if changes.is_some_and(|changes| !changes.iter().any(is_xps)) {
            Some(Moved::default())
        } else {
            completions::moved(work, settings)
        };
        Self { moved: placed.filter(is_moved).collect(), sent }
    }

    /// The queues whose packets run elsewhere than now.
    fn moved(&self, arrivals: End) -> impl Iterator<Item = (usize, &Placement)> {
        self.moved.iter().map(move |(number, ways)| (*number, arrivals.of(ways.each_ref())))
    }

    /// Whether another XPS moves something, as far as that is known.
    fn moves_sent(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| !sent.is_nothing())
    }

    /// Whether all work stays on its CPUs, however many packets gather there.
    fn keeps_cpus(&self, present: &[Placement]) -> bool {
        let cpus = |it: &Placement| (it.poll.clone(), it.protocol.clone(), it.steered);
        let mut moved = self.moved(End::Likely);
        moved.all(|(number, it)| cpus(it) == cpus(&present[number])) && !self.moves_sent()
    }

    fn is_as_observed(&self, present: &[Placement]) -> bool {
        self.moved(End::Likely).all(|(number, it)| *it == present[number]) && !self.moves_sent()
    }

    /// What was not measured.
    fn assumes(&self) -> impl Iterator<Item = String> {
        let what = "that packets are sent where data is read";
        self.moves_sent().then(|| what.to_owned()).into_iter()
    }
}

/// The observed work under one set of assumptions: what all settings have in common.
#[derive(Debug)]
struct Assumed {
    assumptions: Assumptions,
    prices: Prices,
    /// The parts of each queue's packets.
    parts: Vec<Parts>,
    /// What the receive work takes as it is.
    before: Loads,
    /// The same where each poll takes as many packets as it may.
    full: Loads,
}

/// A machine, with the likely assumptions and with each unknown quantity at its ends.
#[derive(Debug)]
pub struct Judge<'a> {
    /// As it was observed.
    observed: Work<'a>,
    /// At the load that is asked for.
    work: Work<'a>,
    /// Where each queue's packets run now.
    present: Vec<Placement>,
    /// The queues that the last snapshot places otherwise than they were observed.
    others: BTreeSet<usize>,
    /// The queues that each CPU polls.
    polled_on: BTreeMap<CpuId, Vec<usize>>,
    likely: Assumed,
    ends: Vec<[Assumed; 2]>,
}

impl<'a> Judge<'a> {
    /// The machine of this work, at `load` times the observed load.
    pub fn new(observed: Work<'a>, load: f64) -> Self {
        let work = observed.clone().times(load);
        let values = Table::shipped().values();
        let queues = 0..work.queues.len();
        let present: Vec<Placement> =
            queues.map(|number| Placement::present(&work, number)).collect();
        let both = || work.queues.iter().zip(&present);
        let on_full =
            |(queue, now): (&Queue<'_>, &Placement)| now.on_full_cpus(&work, queue, &work.cpus);
        let full: Vec<Placement> = both().map(on_full).collect();
        let assume = |assumptions| {
            let prices = Prices::observed(work.analysis, values, assumptions);
            let parts: Vec<Parts> =
                both().map(|(queue, now)| loads::parts(&work, &prices, queue, now)).collect();
            let loads = |placed: &[Placement]| {
                let placed = placed.iter().enumerate();
                loads_of(&work, &prices, &parts, &present, placed)
            };
            let [before, full] = [loads(&present), loads(&full)];
            Assumed { assumptions, prices, parts, before, full }
        };
        let ends = Unknown::ALL.map(|unknown| unknown.ends(work.analysis).map(assume));
        let likely = assume(Assumptions::default());
        let mut polled_on: BTreeMap<CpuId, Vec<usize>> = BTreeMap::new();
        for (number, queue) in work.queues.iter().enumerate() {
            queue.polled.keys().for_each(|cpu| polled_on.entry(*cpu).or_default().push(number));
        }
        let is_other = |number: &usize| {
            let after = Placement::new(&work, *number, work.analysis.after(), End::Likely);
            after != present[*number]
        };
        let others = (0..work.queues.len()).filter(is_other).collect();
        Self { likely, ends: ends.into(), present, others, polled_on, observed, work }
    }

    /// The queues that these changes may move, with those that are not as they were observed.
    fn touched(
        &self,
        settings: &Snapshot,
        changes: Option<&[Change]>,
    ) -> impl Iterator<Item = usize> {
        let targets = || changes.into_iter().flatten().map(|change| &change.target);
        let netdevs: HashSet<&str> =
            targets().filter_map(|it| Some(it.netdev()?.name.as_str())).collect();
        let irqs: HashSet<Irq> = targets()
            .filter_map(|it| match it {
                Target::IrqAffinity(knob) => Some(knob.irq),
                _ => None,
            })
            .collect();
        let has_kthread = targets().any(|it| matches!(it, Target::NapiThread(_)));
        let has_table = targets().any(|it| matches!(it, Target::RpsSockFlowEntries(_)));
        let has_flows = |netdev: &&Netdev| {
            has_table && netdev.rx_queues.iter().any(|rx| rx.rps_flow_cnt.unwrap_or(0) > 0)
        };
        let with_flows: HashSet<&str> =
            settings.netdevs.iter().filter(has_flows).map(|it| it.name.as_str()).collect();
        let is_touched = move |number: &usize| {
            let silo = &self.work.queues[*number].silo;
            let name = silo.netdev.name.as_str();
            changes.is_none()
                || self.others.contains(number)
                || netdevs.contains(name)
                || with_flows.contains(name)
                || silo.irq.as_ref().is_some_and(|irq| irqs.contains(&irq.to))
                || has_kthread && silo.kthread.is_some()
        };
        let all = (0..self.work.queues.len()).filter(is_touched);
        all.collect::<Vec<usize>>().into_iter()
    }

    /// The loads where the work is placed so.
    fn loads(&self, it: &Assumed, placed: &Placed) -> Loads {
        let moved = || placed.moved(it.assumptions.arrivals);
        let now = &self.present;
        let gone = self.loads_of(it, moved().map(|(number, _)| (number, &now[number])));
        let mut loads = it.before.changed(&gone, &self.loads_of(it, moved()));
        self.add_sent(it, placed, &mut loads);
        loads
    }

    /// The same where each poll takes as many packets as it may; `cpus` spend their time so before
    /// that.
    fn full_loads(&self, it: &Assumed, placed: &Placed, loads: &Loads) -> Loads {
        let (work, cpus) = (&self.work, self.cpus(it, loads));
        let moved: BTreeMap<usize, &Placement> = placed.moved(it.assumptions.arrivals).collect();
        let changed =
            self.polled_on.iter().filter(|(cpu, _)| loads.on(**cpu) != it.before.on(**cpu));
        let mut numbers: BTreeSet<usize> = moved.keys().copied().collect();
        numbers.extend(changed.flat_map(|(_, numbers)| numbers));
        let on_full = |number: usize, placed: &Placement, cpus: &BTreeMap<CpuId, CpuTime>| {
            (number, placed.on_full_cpus(work, &work.queues[number], cpus))
        };
        let present = |number: usize| &self.present[number];
        let old = numbers.iter().map(|it| on_full(*it, present(*it), &work.cpus));
        let new = numbers
            .iter()
            .map(|it| on_full(*it, moved.get(it).copied().unwrap_or_else(|| present(*it)), &cpus));
        let [old, new] = [old.collect::<Vec<_>>(), new.collect()];
        let [gone, come] = [&old, &new]
            .map(|all| all.iter().map(|(number, placed)| (*number, placed)))
            .map(|all| self.loads_of(it, all));
        let mut full = it.full.changed(&gone, &come);
        self.add_sent(it, placed, &mut full);
        full
    }

    fn loads_of<'p>(
        &self,
        it: &Assumed,
        placed: impl Iterator<Item = (usize, &'p Placement)>,
    ) -> Loads {
        loads_of(&self.work, &it.prices, &it.parts, &self.present, placed)
    }

    fn add_sent(&self, it: &Assumed, placed: &Placed, loads: &mut Loads) {
        if let Some(sent) = &placed.sent {
            sent.add(&self.work, &it.prices, loads);
        }
    }

    /// How each CPU spends its time if its receive work changes from what it was to this.
    fn cpus(&self, it: &Assumed, to: &Loads) -> BTreeMap<CpuId, CpuTime> {
        let mut cpus = self.work.cpus.clone();
        for (cpu, time) in &mut cpus {
            let (old, new) = (it.before.on(*cpu), to.on(*cpu));
            time.softirq = (time.softirq + (new.softirq - old.softirq)).max(0.0);
            time.sys = (time.sys + (new.task - old.task)).max(0.0);
        }
        cpus
    }

    /// The set of assumptions that corresponds to one of another machine.
    fn like(&self, assumptions: Assumptions) -> &Assumed {
        let mut all = self.ends.iter().flatten();
        all.find(|it| it.assumptions == assumptions).unwrap_or(&self.likely)
    }
}

/// What these queues take of each CPU, each placed so; `now` is where all run, and `parts` those of
/// their packets.
fn loads_of<'p>(
    work: &Work<'_>,
    prices: &Prices,
    parts: &[Parts],
    now: &[Placement],
    placed: impl Iterator<Item = (usize, &'p Placement)>,
) -> Loads {
    let mut loads = Loads::default();
    for (at, placed) in placed {
        let queue = &work.queues[at];
        loads::add(&mut loads, work, prices, queue, parts[at], (&now[at], placed));
    }
    loads
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
    /// What is full first as it is.
    limit_now: Limit,
}

impl State {
    /// Under a setting that places the queues so, compared with the machine as it is; `None`: as it
    /// is.
    fn new(judge: &Judge<'_>, as_it_is: &Judge<'_>, it: &Assumed, to: Option<&Placed>) -> Self {
        let of_setting = to.map(|placed| {
            let loads = judge.loads(it, placed);
            let full = judge.full_loads(it, placed, &loads);
            (loads, full)
        });
        let (loads, full) = of_setting.unwrap_or_else(|| (it.before.clone(), it.full.clone()));
        let now = as_it_is.like(it.assumptions);
        let receives = now.before.cpus().chain(loads.cpus());
        let stay = Staying { cpus: receives.collect(), share: it.assumptions.tasks_stay };
        let cpus = judge.cpus(it, &loads);
        let (fits, limit) = limit(&judge.work, &judge.cpus(it, &full), &stay);
        let (fits_now, limit_now) =
            self::limit(&as_it_is.work, &as_it_is.cpus(now, &now.full), &stay);
        let cpu_time = cpus.values().map(|cpu| cpu.usr + cpu.sys + cpu.softirq).sum();
        State { cpus, loads, fits, limit, cpu_time, fits_now, limit_now }
    }

    /// The ratio of the load that fits to the one that fits as it is.
    fn ratio(&self) -> f64 {
        self.fits / self.fits_now
    }
}

/// Tasks that do not leave a CPU that softirqs fill.
#[derive(Debug, Default)]
struct Staying {
    /// The CPUs.
    cpus: CpuSet,
    /// The share of the tasks' time.
    share: f64,
}

/// How many times the load fits, and what is full then; `cpus` are loads with full polls. Tasks
/// leave a CPU that softirqs fill, except pinned ones and those in `stay`.
fn limit(work: &Work<'_>, cpus: &BTreeMap<CpuId, CpuTime>, stay: &Staying) -> (f64, Limit) {
    let used = |(cpu, time): (&CpuId, &CpuTime)| Used {
        cpu: *cpu,
        tasks: time.usr + time.sys,
        softirq: time.softirq,
        room: work.room.get(cpu).copied().unwrap_or(1.0),
        stays: if stay.cpus.contains(*cpu) { stay.share } else { 0.0 },
    };
    let link = work.fullest_link.iter().cloned();
    let link = link.map(|(netdev, share)| (work.load * share, Limit::Link(netdev)));
    let (share, limit) = fullest(cpus.iter().map(used), &work.pinned, link);
    (1.0 / share.max(1e-6), limit)
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

/// The interval of a gain, cut at zero unless one of the ratios alone is on the other side of 1:
/// several things of which none helps do not help together.
fn with_sign_of(gain: Estimate, ratios: &[f64]) -> Estimate {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min) - 1.0;
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max) - 1.0;
    let Estimate { value, low, high } = gain;
    Estimate {
        value,
        low: if least >= 0.0 { low.max(0.0) } else { low },
        high: if most <= 0.0 { high.min(0.0) } else { high },
    }
}

impl Judge<'_> {
    /// The machine as it is.
    pub fn as_it_is(&self) -> Expected {
        self.expected(AS_IT_IS, self, None)
    }

    /// The work at the load that is asked for.
    pub fn work(&self) -> &Work<'_> {
        &self.work
    }

    /// The share of a packet's softirq time after driver and GRO on a netdev: its likely value, and
    /// the ends of its range. `None` for a netdev that receives nothing.
    pub fn protocol_share(&self, netdev: &Netdev) -> Option<Bounds> {
        let queue = self.work.queues.iter().find(|queue| queue.silo.netdev.is(netdev))?;
        Some(self.likely.prices.protocol_bounds(queue, self.work.protocol_share))
    }

    /// What a setting would do, and what had to be assumed of it, in words; `None` if there is no
    /// such machine.
    pub fn judge(&self, proposal: &Proposal) -> (Option<Expected>, Vec<String>) {
        let mut not_modeled = proposal.not_modeled.clone();
        not_modeled.extend(proposal.of_unknown_cpus(&self.work));
        let supposed = proposal.other_queues(&self.observed).unwrap_or_else(|unknown| {
            not_modeled.push(unknown);
            None
        });
        let Some(supposed) = supposed else {
            let placed = Placed::new(self, &proposal.after, proposal.changes());
            not_modeled.extend(proposal.xps().filter(|_| !placed.moves_sent()));
            let assumed = placed.assumes().collect();
            let mut expected = self.expected(&proposal.name, self, Some(&placed));
            if !not_modeled.is_empty() && placed.is_as_observed(&self.present) {
                (expected.gain, expected.claim) = (None, None);
            }
            return (Some(Expected { not_modeled, ..expected }), assumed);
        };
        let analysis = Analysis::new(&supposed.observation, self.work.analysis.costs);
        let Ok(other) = supposed.work(&analysis) else { return (None, Vec::new()) };
        let other = Judge::new(other, self.work.load);
        let placed = Placed::new(&other, &proposal.rest(&supposed), proposal.changes());
        not_modeled.extend(proposal.xps().filter(|_| !placed.moves_sent()));
        let assumed = supposed.assumed.iter().cloned().chain(placed.assumes()).collect();
        let expected = other.expected(&proposal.name, self, Some(&placed));
        (Some(Expected { not_modeled, ..expected }), assumed)
    }

    /// Interrupts per second of the queues: as counted, one for each poll more or less.
    fn interrupts(&self, placed: Option<&Placed>) -> Option<f64> {
        let mut sum = None;
        for (number, queue) in self.work.queues.iter().enumerate() {
            let Some(counted) = &queue.silo.interrupts_per_s else { continue };
            let now = &self.present[number];
            let moved = placed.and_then(|placed| placed.moved.get(&number));
            let new = moved.map_or(now, |[_, likely, _]| likely);
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
    /// wake. So does what it saves where all CPUs are full. Steering that gains because it relieves
    /// one CPU is off by how much work it moves. Where all work stays on its CPUs, nothing is
    /// added.
    fn model_ends(&self, as_it_is: &Judge<'_>, state: &State, placed: &Placed) -> [f64; 2] {
        let (error, ratio) = (&Table::shipped().error, state.ratio());
        let polls = placed.moved(End::Likely);
        let moved = polls.filter(|(number, then)| self.present[*number].poll != then.poll);
        let packets: f64 = moved.map(|(number, _)| self.work.queues[number].packets).sum();
        // On a supposed machine, packets arrive on other queues.
        let is_observed = std::ptr::eq(self, as_it_is);
        let deviation = if packets > 0.0 {
            error.polls * packets / self.work.packets_per_s()
        } else if is_observed && placed.keeps_cpus(&self.present) {
            return [ratio; 2];
        } else if ratio < 1.0 || [&state.limit, &state.limit_now] == [&Limit::Cpus; 2] {
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
        let cpus = before.cpus().chain(state.loads.cpus());
        let change = |cpu| (state.loads.on(cpu).softirq - before.on(cpu).softirq).abs();
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
            let model = placed.map(|placed| self.model_ends(as_it_is, &likely, placed));
            let ends = ends.iter().map(|[a, b]| [a.ratio(), b.ratio()]);
            // The load that there is may be all that a machine carries that is nearly full.
            let is_all = is_near_full(likely.fits_now) && likely.ratio() > 1.0;
            let present = if is_all { likely.fits.max(likely.ratio()) } else { likely.ratio() };
            let ends: Vec<[f64; 2]> =
                ends.chain(model).chain([[likely.ratio(), present]]).collect();
            let gain = interval(likely.ratio(), ends.iter().copied()).map(|ratio| ratio - 1.0);
            let gain = with_sign_of(gain, ends.as_flattened());
            // Nothing but a faster link carries more than the link.
            let link = self.work.fullest_link.as_ref().map_or(0.0, |(_, share)| *share);
            let most = 1.0 / (self.work.load * link).max(f64::MIN_POSITIVE) - 1.0;
            Estimate { high: gain.high.min(most.max(gain.value)), ..gain }
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
