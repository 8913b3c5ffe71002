//! [`Race`]: takes measurements and determines what to measure next.

use crate::stats::sequential::{Look, Stop};
use crate::stats::{Estimate, median, signed_rank};
use fastrand::Rng;

use crate::race::lane::{Lane, Looks, as_change};
use crate::race::rails::{Breach, Limits, Peek, Rail};
use crate::race::record::{RacePlan, RaceRecord, TurnEnd};
use crate::race::rules::{REFERENCE_TURNS, RaceRules};
use crate::race::standing::{OutReason, RaceResult, Standing, Status};

/// A window breaks a limit if this many consecutive parts of it exceed the limit. The limit of the
/// objective is an exception.
const STREAK: usize = 2;

/// A candidate is dropped after this many windows without a value.
const MOST_LOST: usize = 3;

/// A candidate is dropped if it is worse than tolerated in this many consecutive rounds.
const ROUNDS: usize = 3;

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
    claims: Looks,
    drops: Looks,
    coin: Rng,
    lanes: Vec<Lane>,
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
}

impl Race {
    /// Starts a race of this many candidates, including the current state.
    pub fn new(rules: RaceRules, candidates: usize) -> Self {
        Self {
            claims: Looks::new(rules.claims(candidates)),
            drops: Looks::new(rules.drops()),
            coin: Rng::with_seed(rules.seed),
            lanes: vec![Lane::new(); candidates],
            limits: Limits::default(),
            round: 0,
            to_measure: Vec::new(),
            turns: 0,
            now: None,
            beyond: Vec::new(),
            suspect: None,
            is_over: false,
            rules,
        }
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
            race.end(record.end.clone());
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
        if self.is_over || self.turns >= self.rules.turns {
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

    /// Ends the current window.
    pub fn end(&mut self, end: TurnEnd) {
        let Some(turn) = self.now.take() else { return };
        self.turns += 1;
        match (turn.purpose, end) {
            (Purpose::Reference, _) => {}
            (Purpose::Control(_), _) => {
                if let Some((suspect, breach)) = self.suspect.take() {
                    self.out(suspect, OutReason::Rail(breach));
                }
            }
            (Purpose::Round, end) => self.end_of_round_window(turn.candidate, end),
        }
        if turn.purpose != Purpose::Reference
            && self.to_measure.is_empty()
            && self.suspect.is_none()
        {
            self.round += 1;
            self.judge();
        }
    }

    fn end_of_round_window(&mut self, candidate: usize, end: TurnEnd) {
        self.to_measure.pop();
        match end {
            TurnEnd::Value(value) if self.rules.accepts(value) => {
                self.lanes[candidate].values.insert(self.round, value);
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

    /// Looks at all candidates after a round.
    fn judge(&mut self) {
        let leader = self.leader();
        for candidate in self.still_in().skip(1).collect::<Vec<_>>() {
            if let Some(why) = self.why_out(candidate, leader) {
                self.out(candidate, why);
            }
        }
        let left: Vec<usize> = self.still_in().skip(1).collect();
        self.is_over = match left.as_slice() {
            [] => true,
            [only] => self.gain(*only).is_some(),
            _ => false,
        };
    }

    /// The candidate with the best estimate; 0 while none is better than the current state.
    fn leader(&self) -> usize {
        let loss = |candidate: usize| match candidate {
            0 => Some(0.0),
            _ => signed_rank::middle(&self.losses(candidate, 0)),
        };
        let estimates = self.still_in().filter_map(|it| Some((it, loss(it)?)));
        estimates.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(leader, _)| leader)
    }

    fn losses(&self, candidate: usize, than: usize) -> Vec<f64> {
        self.lanes[candidate].losses(&self.lanes[than], &self.rules)
    }

    fn why_out(&self, candidate: usize, leader: usize) -> Option<OutReason> {
        if let Some(breach) = self.always_beyond(candidate) {
            return Some(OutReason::Rail(breach));
        }
        let matters = self.rules.smallest_relevant;
        let change = |loss: Estimate| as_change(loss, &self.rules);
        if let Some(Look { estimate: Some(loss), stop, .. }) =
            self.drops.due(&self.losses(candidate, 0))
        {
            if loss.low > 0.0 {
                return Some(OutReason::WorseThanPresent(change(loss)));
            }
            if loss.low > -matters || stop == Some(Stop::Hopeless) {
                return Some(OutReason::NothingToGain(change(loss)));
            }
        }
        if leader == 0 || leader == candidate {
            return None;
        }
        let loss = self.drops.due(&self.losses(candidate, leader))?.estimate?;
        let change = change(loss);
        if loss.low > 0.0 {
            return Some(OutReason::WorseThanLeader { leader, change });
        }
        let is_alike = loss.low > -matters && loss.high < matters;
        is_alike.then_some(OutReason::AsGoodAsLeader { leader, change })
    }

    /// The last of [`ROUNDS`] rounds, if in all of them the candidate was worse than the current
    /// state ever was, by more than is tolerated.
    fn always_beyond(&self, candidate: usize) -> Option<Breach> {
        let present: Vec<f64> = self.lanes[0].values.values().copied().collect();
        let newest = self.lanes[candidate].values.values().rev().take(ROUNDS);
        let breaches = newest.map(|value| Breach::of_window(&self.rules, &present, *value));
        let all: Vec<Breach> = breaches.collect::<Option<_>>()?;
        (all.len() == ROUNDS && present.len() >= ROUNDS).then(|| all[0])
    }

    /// The last interval compared with the current state, at the error rate that all candidates
    /// share.
    fn claim(&self, candidate: usize) -> Option<Estimate> {
        self.claims.last(&self.losses(candidate, 0)).and_then(|look| look.estimate)
    }

    /// That interval if it shows a gain.
    fn gain(&self, candidate: usize) -> Option<Estimate> {
        self.claim(candidate).filter(|loss| loss.high < 0.0)
    }

    /// The result so far. It is final once [`Race::next_turn`] returns `None`.
    pub fn result(&self) -> RaceResult {
        let is_suspect = |it: &usize| self.suspect.is_some_and(|(suspect, _)| suspect == *it);
        let challengers = self.still_in().skip(1).filter(|it| !is_suspect(it));
        let better = challengers.filter_map(|it| Some((it, self.gain(it)?)));
        match better.min_by(|a, b| a.1.value.total_cmp(&b.1.value)) {
            Some((candidate, loss)) => {
                RaceResult::Won { candidate, change: as_change(loss, &self.rules) }
            }
            None => RaceResult::NoDifferenceShown,
        }
    }

    /// The standings of all candidates.
    pub fn standings(&self) -> Vec<Standing> {
        let standing = |candidate: usize| {
            let lane = &self.lanes[candidate];
            let values: Vec<f64> = lane.values.values().copied().collect();
            let claim = self.claim(candidate).filter(|_| candidate != 0);
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
