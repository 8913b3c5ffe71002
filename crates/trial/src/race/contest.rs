//! [`Race`]: takes measurements and determines what to measure next.

use crate::stats::sequential::{Rules, Stop};
use crate::stats::{Estimate, median, signed_rank};
use fastrand::Rng;

use crate::race::lane::{Final, Lane, Looks, as_change, losses_of_count};
use crate::race::rails::{Breach, Limits, Peek, Rail};
use crate::race::record::{Counts, RacePlan, RaceRecord, TurnEnd};
use crate::race::rules::{FINALS, REFERENCE_TURNS, RaceRules};
use crate::race::standing::{CountChange, OutReason, Outlook, RaceResult, Standing, Status};
use crate::stats::normal::normal_quantile;
use crate::workload::WorkloadMeasure;

/// A window breaks a limit if this many consecutive parts of it exceed the limit. The limit of the
/// objective is an exception.
const STREAK: usize = 2;

/// A candidate is dropped after this many windows without a value.
const MOST_LOST: usize = 3;

/// A candidate is dropped if it is worse than tolerated in this many consecutive rounds.
const ROUNDS: usize = 3;

/// Maximum number of rounds before the worse half of the candidates is dropped.
const MOST_ROUNDS: usize = 24;

/// A candidate is dropped before if it is behind the leader by this many standard errors.
const FAR_BEHIND: f64 = 4.0;

/// Probability that a final shows a gain of the size that [`Outlook`] states.
const PROBABLY: f64 = 0.8;

/// The median of the absolute values of a normal distribution with deviation 1.
const NORMAL_MEDIAN: f64 = 0.6745;

/// Minimum number of differences between successive windows for their deviation.
const LEAST_DIFFERENCES: usize = 5;

/// A window to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Index of the candidate; 0 is the current state.
    pub candidate: usize,
    purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A window of the current state, for the first limits.
    Reference,
    /// Counts in a round.
    Round,
    /// A window of the current state directly after this candidate broke a guard rail.
    Control(usize),
}

/// A race between candidates.
#[derive(Debug, Clone)]
pub struct Race {
    rules: RaceRules,
    coin: Rng,
    lanes: Vec<Lane>,
    /// The number of rounds after which the worse half is dropped.
    halve_at: u32,
    /// The comparisons of one candidate with the current state; the last one is going on.
    finals: Vec<Final>,
    limits: Limits,
    /// Number of complete rounds.
    round: u32,
    /// The candidates that remain to be measured in this round; the next one is last.
    to_measure: Vec<usize>,
    /// Number of windows so far.
    turns: usize,
    now: Option<Turn>,
    /// For each rail, how many consecutive parts of this window exceeded its limit.
    beyond: Vec<Breach>,
    /// The candidate that broke a guard rail, until the current state has been measured.
    suspect: Option<(usize, Breach)>,
    is_over: bool,
    /// Whether no window follows, although the race is not decided.
    is_out_of_time: bool,
}

impl Race {
    /// Starts a race of this many candidates, including the current state.
    pub fn new(rules: RaceRules, candidates: usize) -> Self {
        let mut race = Self {
            coin: Rng::with_seed(rules.seed),
            lanes: vec![Lane::new(); candidates],
            halve_at: 0,
            finals: Vec::new(),
            limits: Limits::default(),
            round: 0,
            to_measure: Vec::new(),
            turns: 0,
            now: None,
            beyond: Vec::new(),
            suspect: None,
            is_over: false,
            is_out_of_time: false,
            rules,
        };
        race.next_stage();
        race
    }

    /// Resumes a race after these records. The error names the record that does not belong to it.
    pub fn replay(plan: &RacePlan, records: &[RaceRecord]) -> Result<Self, String> {
        let mut race = Self::new(plan.rules, plan.candidates.len());
        for (number, record) in (1..).zip(records) {
            let turn =
                race.next_turn().ok_or_else(|| format!("record {number}: the race is over"))?;
            if turn.candidate != record.candidate {
                let (wanted, is) = (turn.candidate, record.candidate);
                return Err(format!("record {number} is of candidate {is}, not of {wanted}"));
            }
            for peek in &record.peeks {
                // the record has the breach that ended the window
                let _ = race.peek(peek);
            }
            race.end(record.end.clone(), record.counts.clone());
        }
        Ok(race)
    }

    /// The next window to measure; `None` if the race is over or the budget is spent.
    ///
    /// The same until [`Race::end`] is called.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if self.now.is_none() {
            self.now = self.choose();
        }
        self.now
    }

    fn choose(&mut self) -> Option<Turn> {
        self.beyond.clear();
        if let Some((suspect, _)) = self.suspect {
            return Some(Turn { candidate: 0, purpose: Purpose::Control(suspect) });
        }
        if self.is_over {
            return None;
        }
        if self.turns >= self.rules.turns {
            self.out_of_time();
            return None;
        }
        if self.turns < REFERENCE_TURNS {
            return Some(Turn { candidate: 0, purpose: Purpose::Reference });
        }
        if self.to_measure.is_empty() {
            self.to_measure = self.still_in().collect();
            self.coin.shuffle(&mut self.to_measure);
        }
        let candidate = self.to_measure.last().copied()?;
        Some(Turn { candidate, purpose: Purpose::Round })
    }

    /// Takes one part of the current window, in order of time.
    ///
    /// Returns the guard rail that the candidate broke. The window must then end at once, with
    /// [`TurnEnd::Broke`].
    pub fn peek(&mut self, peek: &Peek) -> Option<Breach> {
        let turn = self.now?;
        if turn.candidate != 0 {
            return self.streak(self.limits.broken(&self.rules, peek), peek);
        }
        if let (Purpose::Control(_), Some((_, breach))) = (turn.purpose, self.suspect) {
            let again = breach.is_broken_by(&self.rules, peek).then_some(breach);
            if self.streak(again.into_iter().collect(), peek).is_some()
                && let Some((suspect, _)) = self.suspect.take()
            {
                self.excuse(suspect, breach);
            }
        }
        self.limits.learn(&self.rules, peek);
        None
    }

    /// Adds breaches to the streaks of their rails and ends the streaks of the others. Rails for
    /// which this part has no value are left as they are. Returns the first streak that is long
    /// enough.
    fn streak(&mut self, broken: Vec<Breach>, peek: &Peek) -> Option<Breach> {
        self.beyond.retain(|it| {
            it.rail.value(peek).is_none() || broken.iter().any(|now| now.rail == it.rail)
        });
        self.beyond.extend(&broken);
        let is_long = |now: &&Breach| {
            let length = self.beyond.iter().filter(|it| it.rail == now.rail).count();
            length >= if now.rail == Rail::Objective { self.rules.streak } else { STREAK }
        };
        broken.iter().find(is_long).copied()
    }

    /// Something else made the current state break the limit too, so the candidate stays, once.
    fn excuse(&mut self, candidate: usize, breach: Breach) {
        if std::mem::replace(&mut self.lanes[candidate].excused, true) {
            self.out(candidate, OutReason::Rail(breach));
        }
    }

    /// Ends the current window, with what was counted in it.
    pub fn end(&mut self, end: TurnEnd, counts: Counts) {
        let Some(turn) = self.now.take() else { return };
        self.turns += 1;
        match (turn.purpose, end) {
            (Purpose::Reference, _) => {}
            (Purpose::Control(_), _) => {
                if let Some((suspect, breach)) = self.suspect.take() {
                    self.out(suspect, OutReason::Rail(breach));
                }
            }
            (Purpose::Round, end) => self.end_of_round_window(turn.candidate, end, counts),
        }
        if turn.purpose != Purpose::Reference
            && self.to_measure.is_empty()
            && self.suspect.is_none()
        {
            self.round += 1;
            self.judge();
        }
    }

    fn end_of_round_window(&mut self, candidate: usize, end: TurnEnd, counts: Counts) {
        self.to_measure.pop();
        match end {
            TurnEnd::Value(value) if self.rules.accepts(value) => {
                self.lanes[candidate].values.insert(self.round, value);
                self.lanes[candidate].counts.insert(self.round, counts);
            }
            TurnEnd::Value(value) => {
                let why = format!("{value} cannot be compared by a ratio: it must be above 0");
                self.out(candidate, OutReason::Failed(why));
            }
            TurnEnd::Broke(breach) => self.suspect = Some((candidate, breach)),
            TurnEnd::Lost(why) => {
                self.lanes[candidate].lost += 1;
                if self.lanes[candidate].lost >= MOST_LOST {
                    self.out(candidate, OutReason::Failed(why));
                }
            }
            TurnEnd::Failed(why) => self.out(candidate, OutReason::Failed(why)),
        }
    }

    fn out(&mut self, candidate: usize, why: OutReason) {
        if candidate != 0 {
            self.lanes[candidate].status = Status::Out { round: self.round, why };
        }
    }

    fn still_in(&self) -> impl Iterator<Item = usize> {
        (0..self.lanes.len()).filter(|it| self.lanes[*it].is_in())
    }

    /// The candidates that are still measured, except the current state.
    fn challengers(&self) -> Vec<usize> {
        self.still_in().filter(|it| *it != 0).collect()
    }

    /// Looks at all candidates after a round.
    fn judge(&mut self) {
        for candidate in self.challengers() {
            if let Some(breach) = self.always_beyond(candidate) {
                self.out(candidate, OutReason::Rail(breach));
            }
        }
        self.judge_final();
        self.drop_far_behind();
        let is_settled = self.challengers().len() < 2 && self.finalist().is_none();
        if is_settled || self.finals.is_empty() && self.round >= self.halve_at {
            self.drop_worse_half();
            self.next_stage();
        }
    }

    /// The candidate that is compared with the current state alone.
    fn finalist(&self) -> Option<usize> {
        self.finals.last().map(|it| it.candidate).filter(|it| self.lanes[*it].is_in())
    }

    fn judge_final(&mut self) {
        let Some(last) = self.finals.last().filter(|it| self.lanes[it.candidate].is_in()) else {
            return;
        };
        let candidate = last.candidate;
        let Some(look) = last.looks.due(&self.losses_since(candidate, last.since)) else { return };
        let Some(loss) = look.estimate else { return };
        let change = as_change(loss, &self.rules);
        match look.stop {
            Some(Stop::Clear) if loss.high < 0.0 => self.is_over = true,
            Some(Stop::Clear) => self.out(candidate, OutReason::WorseThanPresent(change)),
            Some(Stop::Alike | Stop::Hopeless) => {
                self.out(candidate, OutReason::NothingToGain(change));
            }
            Some(Stop::Exhausted) | None => {}
        }
    }

    /// The estimated loss against the current state; 0 if nothing was measured.
    fn estimate(&self, candidate: usize) -> f64 {
        signed_rank::middle(&self.losses_since(candidate, 0)).unwrap_or(0.0)
    }

    fn losses_since(&self, candidate: usize, round: u32) -> Vec<f64> {
        self.lanes[candidate].losses(&self.lanes[0], round, &self.rules)
    }

    /// Windows that are left.
    fn left(&self) -> usize {
        self.rules.turns.saturating_sub(self.turns.max(REFERENCE_TURNS))
    }

    /// The standard deviation of the difference between two windows of a candidate, estimated from
    /// the median of successive ones.
    fn deviation(&self) -> Option<f64> {
        let of_lane = |lane: &Lane| {
            let values: Vec<f64> = lane.values.values().copied().collect();
            values.windows(2).map(|it| self.rules.loss(it[0], it[1]).abs()).collect::<Vec<_>>()
        };
        let differences: Vec<f64> = self.lanes.iter().flat_map(of_lane).collect();
        let is_enough = differences.len() >= LEAST_DIFFERENCES;
        median(&differences).filter(|_| is_enough).map(|median| median / NORMAL_MEDIAN)
    }

    /// Drops candidates that are so far behind the leader that more rounds would not change it.
    fn drop_far_behind(&mut self) {
        let Some(deviation) = self.deviation().filter(|_| self.finals.is_empty()) else { return };
        let all = self.challengers();
        let estimates: Vec<f64> = all.iter().map(|it| self.estimate(*it)).collect();
        let best = estimates.iter().copied().fold(f64::INFINITY, f64::min);
        let enough = FAR_BEHIND * deviation / f64::from(self.round).sqrt();
        let behind = all.iter().zip(estimates).filter(|(_, loss)| loss - best > enough);
        let behind: Vec<usize> = behind.map(|(candidate, _)| *candidate).collect();
        behind.iter().for_each(|candidate| self.outrank(*candidate));
        if !behind.is_empty() && behind.len() + 1 < all.len() {
            self.next_stage();
        }
    }

    fn outrank(&mut self, candidate: usize) {
        let loss = self.estimate(candidate);
        let change = as_change(Estimate { value: loss, low: loss, high: loss }, &self.rules).value;
        self.out(candidate, OutReason::Outranked { change });
    }

    /// Drops the worse half of the candidates, or all but the best one if the time is too short for
    /// another round and a final.
    fn drop_worse_half(&mut self) {
        let mut ranked = self.challengers();
        ranked.sort_by(|a, b| self.estimate(*a).total_cmp(&self.estimate(*b)));
        let half = ranked.len().div_ceil(2);
        let fits = half + 1 + self.rules.least_final(0) <= self.left();
        let keep = if fits { half } else { 1 };
        ranked.into_iter().skip(keep).for_each(|candidate| self.outrank(candidate));
    }

    /// Begins to measure those that are left: some rounds of all, or the final of one. The race is
    /// over if none is left.
    fn next_stage(&mut self) {
        match self.challengers().as_slice() {
            [] => match self.runner_up() {
                Some(next) => {
                    self.lanes[next].status = Status::In;
                    self.begin_final(next);
                }
                None => self.is_over = true,
            },
            [only] => self.begin_final(*only),
            many => {
                let rounds = self.rules.rounds(self.left(), many.len()).min(MOST_ROUNDS);
                self.halve_at = self.round + rounds as u32;
            }
        }
    }

    fn begin_final(&mut self, candidate: usize) {
        let (nth, since) = (self.finals.len(), self.round);
        let looks = Looks::new(self.rules.of_final(nth, self.left() / 2));
        self.finals.push(Final { candidate, since, looks });
    }

    /// The best candidate that was only outranked, if it may be better than the current state and
    /// there is time for its final.
    fn runner_up(&self) -> Option<usize> {
        let nth = self.finals.len();
        if nth >= FINALS.len() || self.left() < self.rules.least_final(nth) {
            return None;
        }
        let outranked = (1..self.lanes.len()).filter(|it| {
            let status = &self.lanes[*it].status;
            matches!(status, Status::Out { why: OutReason::Outranked { .. }, .. })
                && self.estimate(*it) < -self.rules.smallest_relevant
        });
        outranked.min_by(|a, b| self.estimate(*a).total_cmp(&self.estimate(*b)))
    }

    /// The breach in the last round, if in each of the last [`ROUNDS`] rounds the candidate was
    /// worse than the current state ever was, by more than is tolerated.
    fn always_beyond(&self, candidate: usize) -> Option<Breach> {
        let present: Vec<f64> = self.lanes[0].values.values().copied().collect();
        let newest = self.lanes[candidate].values.values().rev().take(ROUNDS);
        let breaches = newest.map(|value| Breach::of_window(&self.rules, &present, *value));
        let all: Vec<Breach> = breaches.collect::<Option<_>>()?;
        (all.len() == ROUNDS && present.len() >= ROUNDS).then(|| all[0])
    }

    /// Ends the race before the budget is spent. A final that goes on is judged as it is.
    pub fn out_of_time(&mut self) {
        self.is_out_of_time = true;
    }

    /// The last interval of a candidate's final.
    fn claim(&self, candidate: usize) -> Option<Estimate> {
        let of_candidate = self.finals.iter().find(|it| it.candidate == candidate)?;
        let losses = self.losses_since(candidate, of_candidate.since);
        let is_cut_short = self.is_out_of_time && self.finalist() == Some(candidate);
        let at_the_end = of_candidate.looks.at_the_end(&losses).filter(|_| is_cut_short);
        at_the_end.or_else(|| of_candidate.looks.last(&losses)?.estimate)
    }

    /// The result so far. It is final once [`Race::next_turn`] returns `None`.
    pub fn result(&self) -> RaceResult {
        let claim = |it| Some((it, self.claim(it).filter(|loss| loss.high < 0.0)?));
        match self.finalist().and_then(claim) {
            Some((candidate, loss)) => {
                RaceResult::Won { candidate, change: as_change(loss, &self.rules) }
            }
            None => RaceResult::NoDifferenceShown,
        }
    }

    /// The counts that differ from the current state's in the windows of the finals.
    pub fn counts(&self) -> Vec<CountChange> {
        let of_final = |it: &Final| {
            // each count has an error rate of its own, because none decides anything
            let looks = Looks::new(Rules { error_rate: self.rules.error_rate, ..it.looks.rules });
            let (candidate, since) = (it.candidate, it.since);
            let lanes = (&self.lanes[candidate], &self.lanes[0]);
            let change = move |measure: WorkloadMeasure| {
                let loss = looks.last(&losses_of_count(measure, lanes, since))?.estimate?;
                let of_measure =
                    RaceRules { scale: measure.scale(), better: measure.better(), ..self.rules };
                let change = as_change(loss, &of_measure);
                let is_better = loss.high < 0.0;
                let shown = CountChange { candidate, measure, change, is_better };
                (!loss.contains(0.0)).then_some(shown)
            };
            WorkloadMeasure::COUNTS.into_iter().filter_map(change)
        };
        self.finals.iter().flat_map(of_final).collect()
    }

    /// What the rest of the race can show.
    pub fn outlook(&self) -> Outlook {
        let windows = self.left();
        let rules = match self.finals.last() {
            Some(last) => last.looks.rules,
            None => self.rules.of_final(0, self.rules.windows_of_final(windows) / 2),
        };
        let z = normal_quantile(1.0 - rules.error_rate / 2.0 / rules.looks().len() as f64)
            + normal_quantile(PROBABLY);
        let least_gain = self.deviation().filter(|_| rules.has_interval(rules.max_pairs));
        let least_gain = least_gain.map(|it| it * z / (rules.max_pairs as f64).sqrt());
        Outlook { windows, least_gain }
    }

    /// The standings of all candidates.
    pub fn standings(&self) -> Vec<Standing> {
        let standing = |candidate: usize| {
            let lane = &self.lanes[candidate];
            let values: Vec<f64> = lane.values.values().copied().collect();
            let claim = self.claim(candidate);
            Standing {
                candidate,
                status: lane.status.clone(),
                windows: values.len(),
                median: median(&values),
                change: claim.map(|loss| as_change(loss, &self.rules)),
                is_better: claim.is_some_and(|loss| loss.high < 0.0),
            }
        };
        (0..self.lanes.len()).map(standing).collect()
    }

    /// Whether the current state must still be measured to judge a broken guard rail.
    pub fn owes_control(&self) -> bool {
        self.suspect.is_some()
    }

    /// Number of windows so far.
    pub fn turns(&self) -> usize {
        self.turns
    }

    /// Number of candidates that are still measured, including the current state.
    pub fn candidates_in(&self) -> usize {
        self.still_in().count()
    }
}

#[cfg(test)]
mod tests;
