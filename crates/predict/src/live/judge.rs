//! The judge of an observed machine: what settings would do to the load that it had.
//!
//! Everything that asks what a change would do asks here: `predict`, `plan` and `tune`, and the
//! verdicts and findings of `check`.
//!
//! `check` asks for each of many netdevs, so what a setting leaves alone is not computed again.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_trial::stats::Estimate;

use crate::assumptions::{Assumptions, End};
use crate::limit::Limit;
use crate::live::assumed::{Assumed, Staying, limit, time_of, times};
use crate::live::claim::{Claim, is_near_full};
use crate::live::completions::{self, Moved};
use crate::live::expected::{AS_IT_IS, Expected};
use crate::live::loads::Routed;
use crate::live::proposal::Proposal;
use crate::live::supposed::Supposed;
use crate::live::unknowns::Unknown;
use crate::live::work::{Queue, Work};
use crate::loads::Loads;
use crate::parameters::Table;
use crate::placement::{Placement, Shares};
use crate::prediction::CpuTime;

/// Standard deviations of an interval that holds nine of ten values.
const NINE_OF_TEN: f64 = 1.645;

/// Where the work runs under a setting.
struct Placed {
    /// The queues whose packets run elsewhere than now, by number: with flows as uneven and polls
    /// as small as they may be, as likely, and at best.
    moved: BTreeMap<usize, [Rc<Routed>; 3]>,
    /// What another XPS moves; `None` if that is not known.
    sent: Option<Moved>,
}

impl Placed {
    /// The placement of the judge's work under `settings`, which `changes` made of the present
    /// ones; `None`: anything may differ. What they lack is as in the last snapshot.
    fn new(judge: &Judge<'_>, settings: &Snapshot, changes: Option<&[Change]>) -> Self {
        let Judge { work, present, .. } = judge;
        let moved = |number: usize| {
            let way = Placement::by_arrivals(work, number, settings);
            let ways = [End::Worst, End::Likely, End::Best].map(way);
            let is_moved = ways.iter().any(|way| *way != present[number].placement);
            is_moved.then(|| (number, routed(work, number, ways)))
        };
        let moved = judge.touched(settings).into_iter().filter_map(moved).collect();
        let is_xps = |change: &Change| matches!(change.target, Target::XpsCpus(_));
        let sent = if changes.is_some_and(|changes| !changes.iter().any(is_xps)) {
            Some(Moved::default())
        } else {
            completions::moved(work, settings)
        };
        Self { moved, sent }
    }

    /// The queues whose packets run elsewhere than now.
    fn moved(&self, arrivals: End) -> impl Iterator<Item = (usize, &Routed)> {
        self.moved.iter().map(move |(number, ways)| (*number, &**arrivals.of(ways.each_ref())))
    }

    /// The same without their routes.
    fn placements(&self, arrivals: End) -> impl Iterator<Item = (usize, &Placement)> {
        self.moved(arrivals).map(|(number, it)| (number, &it.placement))
    }

    /// Whether the work runs on the same CPUs however the flows of RPS arrive.
    fn is_same_for(&self, arrivals: End) -> bool {
        self.placements(arrivals).eq(self.placements(End::Likely))
    }

    /// Whether another XPS moves something, as far as that is known.
    fn moves_sent(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| !sent.is_nothing())
    }

    /// Whether all work stays on its CPUs, however many packets gather there.
    fn keeps_cpus(&self, present: &[Routed]) -> bool {
        fn cpus(it: &Placement) -> (&Shares, Option<&Shares>, f64) {
            (&it.poll, it.protocol.as_ref(), it.steered)
        }
        let mut moved = self.placements(End::Likely);
        moved.all(|(number, it)| cpus(it) == cpus(&present[number].placement)) && !self.moves_sent()
    }

    fn is_as_observed(&self, present: &[Routed]) -> bool {
        let mut moved = self.placements(End::Likely);
        moved.all(|(number, it)| *it == present[number].placement) && !self.moves_sent()
    }

    /// What was not measured.
    fn assumes(&self) -> impl Iterator<Item = String> {
        let what = "that packets are sent where data is read";
        self.moves_sent().then(|| what.to_owned()).into_iter()
    }
}

/// The routes of a queue by how its packets arrive, of which most are the same.
fn routed(
    work: &Work<'_>,
    number: usize,
    [worst, likely, best]: [Placement; 3],
) -> [Rc<Routed>; 3] {
    let route = |placement| Rc::new(Routed::new(work, &work.queues[number], placement));
    let likely = route(likely);
    let or_likely = |it: Placement| if it == likely.placement { likely.clone() } else { route(it) };
    let (worst, best) = (or_likely(worst), or_likely(best));
    [worst, likely, best]
}

/// Interrupts per second of a queue; `None` if they were not counted.
fn interrupts_of(work: &Work<'_>, queue: &Queue<'_>) -> Option<f64> {
    Some(queue.silo.interrupts_per_s.as_ref()?.values().sum::<f64>() * work.load)
}

/// A machine, with the likely assumptions and with each unknown quantity at its ends.
#[derive(Debug)]
pub struct Judge<'a> {
    /// As it was observed.
    observed: Work<'a>,
    /// At the load that is asked for.
    work: Work<'a>,
    /// Where each queue's packets run now.
    present: Vec<Routed>,
    /// Packets of each queue's polls if these take as many as they may.
    full: Vec<f64>,
    /// Interrupts per second of the queues; `None` if none was counted.
    interrupts: Option<f64>,
    /// The queues that the last snapshot places otherwise than they were observed.
    others: BTreeSet<usize>,
    /// The queues that each CPU polls, that each netdev has, and that each interrupt announces.
    polled_on: BTreeMap<CpuId, Vec<usize>>,
    of_netdev: HashMap<String, Vec<usize>>,
    of_irq: HashMap<Irq, Vec<usize>>,
    likely: Assumed,
    /// Once an interval was asked for; `None`: as likely.
    ends: OnceCell<Vec<[Option<Assumed>; 2]>>,
}

impl<'a> Judge<'a> {
    /// The machine of this work, at `load` times the observed load.
    pub fn new(observed: Work<'a>, load: f64) -> Self {
        let work = observed.clone().times(load);
        let present =
            |(number, queue)| Routed::new(&work, queue, Placement::present(&work, number));
        let present: Vec<Routed> = work.queues.iter().enumerate().map(present).collect();
        let full_batch = |(queue, now): (&Queue<'_>, &Routed)| {
            let now = &now.placement;
            let wait = now.full_wait(&work, queue, |cpu| work.cpus.get(&cpu).copied());
            now.full_batch(queue, wait)
        };
        let full: Vec<f64> = work.queues.iter().zip(&present).map(full_batch).collect();
        let likely = Assumed::new(&work, &present, &full, Assumptions::default());
        let (mut of_netdev, mut of_irq) = (HashMap::new(), HashMap::new());
        let mut polled_on: BTreeMap<CpuId, Vec<usize>> = BTreeMap::new();
        for (number, queue) in work.queues.iter().enumerate() {
            queue.polled.cpus().for_each(|cpu| polled_on.entry(cpu).or_default().push(number));
            let netdev = queue.silo.netdev.name.clone();
            of_netdev.entry(netdev).or_insert_with(Vec::new).push(number);
            let irq = queue.silo.irq.iter();
            irq.for_each(|irq| of_irq.entry(irq.to).or_insert_with(Vec::new).push(number));
        }
        let is_other = |number: &usize| {
            let after = Placement::new(&work, *number, work.analysis.after(), End::Likely);
            after != present[*number].placement
        };
        let others = (0..work.queues.len()).filter(is_other).collect();
        let interrupts = work.queues.iter().filter_map(|it| interrupts_of(&work, it));
        Self {
            interrupts: interrupts.reduce(|a, b| a + b),
            ends: OnceCell::new(),
            likely,
            present,
            full,
            others,
            polled_on,
            of_netdev,
            of_irq,
            observed,
            work,
        }
    }

    /// The work with each unknown quantity at its ends.
    fn ends(&self) -> &[[Option<Assumed>; 2]] {
        let Self { work, present, full, likely, .. } = self;
        let end = |assumptions: Assumptions| {
            let is_likely = assumptions == likely.assumptions
                || (work.is_without_siblings() && assumptions.smt.is_some());
            (!is_likely).then(|| {
                likely
                    .with(assumptions)
                    .unwrap_or_else(|| Assumed::new(work, present, full, assumptions))
            })
        };
        let ends = |unknown: Unknown| unknown.ends(self.work.analysis).map(end);
        self.ends.get_or_init(|| Unknown::ALL.map(ends).into())
    }

    /// The queues of the netdevs and interrupts that these settings have, with those that are not
    /// as they were observed.
    fn touched(&self, settings: &Snapshot) -> BTreeSet<usize> {
        let named = settings.netdevs.iter().filter_map(|it| self.of_netdev.get(&it.name));
        let announced = settings.irqs.keys().filter_map(|it| self.of_irq.get(it));
        let touched = named.chain(announced).flatten().copied();
        touched.chain(self.others.iter().copied()).collect()
    }

    /// The loads where the work is placed so.
    fn loads(&self, it: &Assumed, placed: &Placed) -> Loads {
        let now = &self.present;
        let come = (placed.moved(it.assumptions.arrivals))
            .map(|(number, placed)| (number, placed, placed.placement.batch));
        let come = it.loads_of(&self.work, now, come);
        let gone = placed.moved.keys().map(|number| (*number, now[*number].placement.batch));
        let mut loads = self.changed(it, &it.before, gone, come);
        self.add_sent(it, placed, &mut loads);
        loads
    }

    /// These loads of all queues, where the loads `come` are those of the queues in `gone`; each of
    /// these has that number of packets in a poll now.
    fn changed(
        &self,
        it: &Assumed,
        all: &Loads,
        gone: impl ExactSizeIterator<Item = (usize, f64)>,
        come: Loads,
    ) -> Loads {
        let Self { work, present, .. } = self;
        // What all queues took is all that there was.
        if gone.len() == present.len() {
            return come;
        }
        let gone = gone.map(|(number, batch)| (number, &present[number], batch));
        all.changed(&it.loads_of(work, present, gone), &come)
    }

    /// The same where each poll takes as many packets as it may; `cpus` spend their time so before
    /// that.
    fn full_loads(&self, it: &Assumed, placed: &Placed, loads: &Loads) -> Loads {
        let Self { work, present, .. } = self;
        let then = |cpu| Some(time_of(cpu, *work.cpus.get(&cpu)?, &it.before, loads));
        let (mut numbers, mut more) = (BTreeSet::new(), Vec::new());
        let changed =
            self.polled_on.iter().filter(|(cpu, _)| loads.on(**cpu) != it.before.on(**cpu));
        for (cpu, polled) in changed {
            let mut wait = None;
            for number in polled {
                let stays = !placed.moved.contains_key(number);
                let Some(polls) = it.polls[*number].as_ref().filter(|_| stays) else {
                    numbers.insert(*number);
                    continue;
                };
                let (queue, now) = (&work.queues[*number], &present[*number].placement);
                let wait = *wait.get_or_insert_with(|| now.full_wait(work, queue, then));
                let batch = now.full_batch(queue, wait);
                more.push((*cpu, polls.softirq(batch) - polls.softirq(self.full[*number])));
            }
        }
        numbers.extend(placed.moved.keys());
        let gone = numbers.iter().map(|number| (*number, self.full[*number]));
        let come = numbers.iter().map(|number| {
            let moved = placed.moved.get(number);
            let moved = moved.map(|ways| &**it.assumptions.arrivals.of(ways.each_ref()));
            let (queue, placed) = (&work.queues[*number], moved.unwrap_or(&present[*number]));
            let wait = placed.placement.full_wait(work, queue, then);
            (*number, placed, placed.placement.full_batch(queue, wait))
        });
        let come = it.loads_of(work, present, come);
        let mut full = self.changed(it, &it.full, gone, come);
        more.into_iter().for_each(|(cpu, time)| full.on_mut(cpu).softirq += time);
        self.add_sent(it, placed, &mut full);
        full
    }

    fn add_sent(&self, it: &Assumed, placed: &Placed, loads: &mut Loads) {
        if let Some(sent) = &placed.sent {
            sent.add(&self.work, &it.prices, loads);
        }
    }

    /// The set of assumptions that corresponds to one of another machine.
    fn like(&self, assumptions: Assumptions) -> &Assumed {
        if assumptions == self.likely.assumptions {
            return &self.likely;
        }
        let mut all = self.ends().iter().flatten().flatten();
        all.find(|it| it.assumptions == assumptions).unwrap_or(&self.likely)
    }
}

/// The machine under a setting and one set of assumptions.
struct State {
    loads: Loads,
    /// The same where each poll takes as many packets as it may.
    full: Loads,
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
        let loads = of_setting.unwrap_or_else(|| (it.before.clone(), it.full.clone()));
        Self::with_loads(judge, as_it_is, it, loads)
    }

    fn with_loads(
        judge: &Judge<'_>,
        as_it_is: &Judge<'_>,
        it: &Assumed,
        (loads, full): (Loads, Loads),
    ) -> Self {
        let (now, share) = (as_it_is.like(it.assumptions), it.assumptions.tasks_stay);
        let receives = now.before.cpus().chain(loads.cpus()).filter(|_| share > 0.0);
        let stay = Staying { cpus: receives.collect(), share };
        let (fits, limit) = limit(&judge.work, times(&judge.work, &it.before, &full), &stay);
        let (fits_now, limit_now) = if share > 0.0 {
            self::limit(&as_it_is.work, times(&as_it_is.work, &now.before, &now.full), &stay)
        } else {
            now.now.clone()
        };
        let times = times(&judge.work, &it.before, &loads);
        let cpu_time = times.map(|(_, cpu)| cpu.usr + cpu.sys + cpu.softirq).sum();
        State { loads, full, fits, limit, cpu_time, fits_now, limit_now }
    }

    /// The ratio of the load that fits to the one that fits as it is.
    fn ratio(&self) -> f64 {
        self.fits / self.fits_now
    }
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
        self.expected(AS_IT_IS, self, None, self.ends())
    }

    /// The same with likely values alone: intervals take most of the time.
    pub fn as_it_is_without_intervals(&self) -> Expected {
        self.expected(AS_IT_IS, self, None, &[])
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
        let supposed = proposal.other_queues(&self.observed);
        let supposed = supposed.map_err(|unknown| not_modeled.push(unknown)).ok().flatten();
        let judged = self.on_machine(proposal, supposed.as_ref(), |judge, placed| {
            not_modeled.extend(proposal.xps().filter(|_| !placed.moves_sent()));
            let mut expected = judge.expected(&proposal.name, self, Some(placed), judge.ends());
            let is_known = not_modeled.is_empty() || supposed.is_some();
            if !is_known && placed.is_as_observed(&self.present) {
                (expected.gain, expected.claim) = (None, None);
            }
            let supposed = supposed.iter().flat_map(|it| it.assumed.iter().cloned());
            (expected, supposed.chain(placed.assumes()).collect())
        });
        let Some((expected, assumed)) = judged else { return (None, Vec::new()) };
        (Some(Expected { not_modeled, ..expected }), assumed)
    }

    /// How many times the load is likely to fit with a setting: [`Expected::fits`] without its
    /// interval, which takes most of the time.
    pub fn fits(&self, proposal: &Proposal) -> Option<f64> {
        let supposed = proposal.other_queues(&self.observed).ok().flatten();
        self.on_machine(proposal, supposed.as_ref(), |judge, placed| {
            State::new(judge, self, &judge.likely, Some(placed)).fits
        })
    }

    /// Calls `then` with the judge of the machine on which a setting lets packets arrive, and where
    /// the setting places the work there; `None` if there is no such machine.
    fn on_machine<T>(
        &self,
        proposal: &Proposal,
        supposed: Option<&Supposed>,
        then: impl FnOnce(&Judge<'_>, &Placed) -> T,
    ) -> Option<T> {
        let Some(supposed) = supposed else {
            return Some(then(self, &Placed::new(self, &proposal.after, proposal.changes())));
        };
        let analysis = Analysis::new(&supposed.observation, self.work.analysis.costs);
        let other = Judge::new(supposed.work(&analysis).ok()?, self.work.load);
        let placed = Placed::new(&other, &proposal.rest(supposed), proposal.changes());
        Some(then(&other, &placed))
    }

    /// Interrupts per second of the queues: as counted, one for each poll more or less.
    fn interrupts(&self, placed: Option<&Placed>) -> Option<f64> {
        let more = |(number, new): (usize, &Placement)| {
            let counted = interrupts_of(&self.work, &self.work.queues[number])?;
            Some(counted * (self.present[number].placement.batch / new.batch - 1.0))
        };
        let moved = placed.map(|placed| placed.placements(End::Likely)).into_iter().flatten();
        Some(self.interrupts? + moved.filter_map(more).sum::<f64>())
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
        let polls = placed.placements(End::Likely);
        let moved =
            polls.filter(|(number, then)| self.present[*number].placement.poll != then.poll);
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
    /// measured; `None`: as it is. Intervals are from these `ends`.
    fn expected(
        &self,
        name: &str,
        as_it_is: &Judge<'_>,
        placed: Option<&Placed>,
        ends: &[[Option<Assumed>; 2]],
    ) -> Expected {
        let likely = State::new(self, as_it_is, &self.likely, placed);
        let end = |end: &Option<Assumed>| {
            let it = end.as_ref()?;
            let arrivals = it.assumptions.arrivals;
            let is_same = || placed.is_none_or(|placed| placed.is_same_for(arrivals));
            if arrivals != End::Likely && is_same() {
                return None;
            }
            if it.has_loads_of(&self.likely) {
                let loads = (likely.loads.clone(), likely.full.clone());
                return Some(State::with_loads(self, as_it_is, it, loads));
            }
            Some(State::new(self, as_it_is, it, placed))
        };
        let ends: Vec<_> = ends.iter().map(|ends| ends.each_ref().map(end)).collect();
        let end = |end| Option::as_ref(end).unwrap_or(&likely);
        let ends: Vec<[&State; 2]> = ends.iter().map(|ends| ends.each_ref().map(end)).collect();
        let of = |value: fn(&State) -> f64| {
            interval(value(&likely), ends.iter().map(|[a, b]| [value(a), value(b)]))
        };
        let cpus: BTreeMap<CpuId, CpuTime> =
            times(&self.work, &self.likely.before, &likely.loads).collect();
        let gain = if cpus == as_it_is.work.cpus {
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
            limit: likely.limit.clone(),
            cpus,
        }
    }
}
