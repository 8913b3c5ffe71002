//! What a race guarantees, in thousands of simulated worlds with noise, drift and interference.

#![allow(
    clippy::print_stdout,
    reason = "the figures are quoted in docs/ab.md; cargo test -- --nocapture prints them"
)]

use fastrand::Rng;
use netsilo_trial::race::rails::Peek;
use netsilo_trial::race::{Race, RaceResult, RaceRules, TurnEnd};
use netsilo_trial::stats::mean;
use netsilo_trial::stats::simulate::{Noise, normal};

/// Number of parts of a window after which the guard rails are checked.
const PEEKS: usize = 8;

/// A machine whose cost under each candidate is known.
struct World {
    /// Cost by candidate. That of the current state is 1.
    costs: Vec<f64>,
    noise: Noise,
    /// Deviation of one part of a window.
    deviation: f64,
    /// Growth of all costs per part of a window.
    drift: f64,
    /// Load by other programs: its logarithm, correlated from part to part.
    weather: f64,
    /// Number of parts for which a burst of other programs still lasts.
    burst: usize,
    at: f64,
    rng: Rng,
}

impl World {
    fn new(costs: Vec<f64>, mut rng: Rng) -> Self {
        Self {
            costs,
            noise: Noise::ALL[rng.usize(..Noise::ALL.len())],
            deviation: 0.005 + 0.03 * rng.f64(),
            drift: (rng.f64() - 0.5) * 2e-4,
            weather: 0.0,
            burst: 0,
            at: 0.0,
            rng,
        }
    }

    /// The measured cost of one part of a window.
    fn measure(&mut self, candidate: usize) -> f64 {
        let rng = &mut self.rng;
        self.at += 1.0;
        self.weather = 0.9 * self.weather + 0.004 * normal(rng);
        self.burst = match self.burst {
            0 if rng.f64() < 0.002 => rng.usize(4..40),
            burst => burst.saturating_sub(1),
        };
        let others = if self.burst > 0 { 0.3 } else { 0.0 };
        let noise = self.deviation * self.noise.sample(rng).clamp(-5.0, 5.0);
        self.costs[candidate] * (self.drift * self.at + self.weather + others + noise).exp()
    }
}

/// The result of one race.
struct Ended {
    /// Cost of the state that the race chose, relative to the best candidate.
    over_best: f64,
    /// Whether a candidate won although it is no better than the current state.
    is_false: bool,
    /// Additional cost while it searched, relative to the current state: the mean over the search.
    loss: f64,
    /// The same, relative to the cost of the whole budget.
    loss_of_budget: f64,
    /// Number of windows.
    turns: usize,
}

fn race(mut world: World, turns: usize) -> Ended {
    let rules = RaceRules { turns, seed: world.rng.u64(..), ..RaceRules::default() };
    let mut race = Race::new(rules, world.costs.len());
    let mut losses = Vec::new();
    while let Some(turn) = race.next_turn() {
        let (mut values, mut broke) = (Vec::new(), None);
        while values.len() < PEEKS && broke.is_none() {
            let value = world.measure(turn.candidate);
            values.push(value);
            losses.push((world.costs[turn.candidate] - 1.0).max(0.0));
            broke = race.peek(&Peek { objective: Some(value), ..Peek::default() });
        }
        let value = mean(&values).unwrap_or(f64::NAN);
        race.end(broke.map_or(TurnEnd::Value(value), TurnEnd::Broke));
    }
    let end = match race.result() {
        RaceResult::Won { candidate, .. } => candidate,
        RaceResult::NoDifferenceShown => 0,
    };
    let best = world.costs.iter().copied().fold(f64::INFINITY, f64::min);
    Ended {
        over_best: world.costs[end] / best - 1.0,
        is_false: end != 0 && world.costs[end] >= 1.0,
        loss: mean(&losses).unwrap_or(0.0),
        loss_of_budget: losses.iter().sum::<f64>() / (turns * PEEKS) as f64,
        turns: race.turns(),
    }
}

/// Costs of two to eight candidates compared with the current state: within 12 % of it, and one in
/// ten far worse.
fn costs(rng: &mut Rng) -> Vec<f64> {
    let challengers = rng.usize(2..=8);
    let cost = |rng: &mut Rng| match rng.usize(..10) {
        0 => 1.2 + rng.f64(),
        _ => (0.24 * (rng.f64() - 0.5)).exp(),
    };
    std::iter::once(1.0).chain((0..challengers).map(|_| cost(rng))).collect()
}

fn races(worlds: u64, costs: impl Fn(&mut Rng) -> Vec<f64>) -> Vec<Ended> {
    let run = |seed| {
        let mut rng = Rng::with_seed(seed);
        let costs = costs(&mut rng);
        // ten minutes of windows of two seconds and a settling time of 0.3 s
        race(World::new(costs, rng), 260)
    };
    (0..worlds).map(run).collect()
}

fn share(ended: &[Ended], holds: impl Fn(&Ended) -> bool) -> f64 {
    ended.iter().filter(|it| holds(it)).count() as f64 / ended.len() as f64
}

#[test]
fn races_end_on_the_best_candidate_or_close_to_it() {
    let ended = races(3000, costs);
    let close = share(&ended, |it| it.over_best <= 0.03);
    let false_better = share(&ended, |it| it.is_false);
    let mean_of = |of: fn(&Ended) -> f64| mean(&ended.iter().map(of).collect::<Vec<_>>());
    let most = ended.iter().map(|it| it.loss_of_budget).fold(0.0, f64::max);
    let within = share(&ended, |it| it.loss <= 0.05);
    let turns = ended.iter().map(|it| it.turns).sum::<usize>() / ended.len();
    println!(
        "3000 worlds: within 3 % of the best {:.1} %, false better {:.2} %; loss while searching \
         {:.2} % on average, within 5 % in {:.1} %; of the whole budget {:.2} % at most; {turns} \
         of 260 windows",
        100.0 * close,
        100.0 * false_better,
        100.0 * mean_of(|it| it.loss).unwrap_or(f64::NAN),
        100.0 * within,
        100.0 * most,
    );
    assert!(close >= 0.95, "{close}");
    assert!(false_better <= 0.05, "{false_better}");
    assert!(within >= 0.95, "{within}");
    assert!(most <= 0.05, "{most}");
}

#[test]
fn where_nothing_helps_a_winner_is_as_rare_as_stated() {
    let ended = races(2000, |rng| vec![1.0; rng.usize(3..=9)]);
    let false_better = share(&ended, |it| it.is_false);
    let turns = ended.iter().map(|it| it.turns).sum::<usize>() / ended.len();
    println!(
        "2000 worlds without a difference: false better {:.2} %, {turns} of 260 windows",
        100.0 * false_better
    );
    assert!(false_better <= 0.05, "{false_better}");
}
