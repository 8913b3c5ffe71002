//! What a race guarantees, in thousands of simulated worlds with noise, drift and interference.

#![allow(
    clippy::print_stdout,
    reason = "the figures are quoted in docs/ab.md; cargo test -- --nocapture prints them"
)]

use fastrand::Rng;
use netsilo_trial::race::rails::Peek;
use netsilo_trial::race::{Counts, Race, RaceResult, RaceRules, TurnEnd};
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
        race.end(broke.map_or(TurnEnd::Value(value), TurnEnd::Broke), Counts::new());
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

/// A machine whose windows differ by 3 to 15 %, which changes by a few percent within minutes.
struct Noisy {
    costs: Vec<f64>,
    /// Deviation of a window that no other window shares.
    deviation: f64,
    /// Load by other programs: its logarithm, correlated from window to window.
    weather: f64,
    /// Growth of all costs per window.
    drift: f64,
    at: f64,
    rng: Rng,
}

impl Noisy {
    /// One in six candidates is much better, one in six much worse, one in three makes no
    /// difference, and the others are within 10 %.
    fn new(challengers: usize, mut rng: Rng) -> Self {
        let cost = |rng: &mut Rng| match rng.usize(..6) {
            0 => 0.5 + 0.35 * rng.f64(),
            1 => 1.2 + rng.f64(),
            2 | 3 => 1.0 + 0.004 * (rng.f64() - 0.5),
            _ => (0.2 * (rng.f64() - 0.5)).exp(),
        };
        let challengers: Vec<f64> = (0..challengers).map(|_| cost(&mut rng)).collect();
        Self {
            costs: std::iter::once(1.0).chain(challengers).collect(),
            deviation: 0.03 + 0.12 * rng.f64(),
            weather: 0.0,
            drift: (rng.f64() - 0.5) * 2e-3,
            at: 0.0,
            rng,
        }
    }

    /// Keeps the candidates that a forecast ranks first, if the time is too short for all. A
    /// forecast is off by 20 %.
    fn leave_out_last(&mut self, rules: &RaceRules) {
        let challengers = self.costs.split_off(1);
        let mut forecast = |cost: f64| (cost * (0.2 * normal(&mut self.rng)).exp(), cost);
        let mut ranked: Vec<(f64, f64)> = challengers.into_iter().map(&mut forecast).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        while ranked.len() > 1 && rules.least_turns(ranked.len() + 1) > rules.turns {
            ranked.pop();
        }
        self.costs.extend(ranked.into_iter().map(|(_, cost)| cost));
    }

    /// The parts of a window.
    fn window(&mut self, candidate: usize) -> Vec<f64> {
        let rng = &mut self.rng;
        self.at += 1.0;
        self.weather = 0.9 * self.weather + 0.3 * self.deviation * normal(rng);
        let window = self.weather + self.drift * self.at + self.deviation * normal(rng);
        let part = |_| self.costs[candidate] * (window + self.deviation * normal(rng)).exp();
        (0..PEEKS).map(part).collect()
    }
}

/// How a short search ended: what it chose compared with the best candidate that there was.
struct Short {
    chosen: f64,
    best: f64,
}

fn short_race(mut world: Noisy, turns: usize) -> Short {
    let best = world.costs.iter().copied().fold(f64::INFINITY, f64::min);
    let rules = RaceRules { turns, seed: world.rng.u64(..), ..RaceRules::default() };
    world.leave_out_last(&rules);
    let mut race = Race::new(rules, world.costs.len());
    while let Some(turn) = race.next_turn() {
        let values = world.window(turn.candidate);
        let peek = |value: &f64| Peek { objective: Some(*value), ..Peek::default() };
        let broke = values.iter().find_map(|value| race.peek(&peek(value)));
        let value = mean(&values).unwrap_or(f64::NAN);
        race.end(broke.map_or(TurnEnd::Value(value), TurnEnd::Broke), Counts::new());
    }
    let chosen = match race.result() {
        RaceResult::Won { candidate, .. } => world.costs[candidate],
        RaceResult::NoDifferenceShown => 1.0,
    };
    Short { chosen, best }
}

#[test]
fn short_searches_find_gains_in_noise() {
    // by minutes (windows of 2.5 s) and candidates: how often a gain is shown if there is one of
    // 10 %, and how often the winner is within 3 % of the best candidate; in percent
    let promised = [
        (24, [(2, 92, 92), (6, 86, 80), (12, 88, 78)]),
        (48, [(2, 97, 97), (6, 93, 92), (12, 93, 87)]),
        (96, [(2, 98, 98), (6, 97, 96), (12, 97, 94)]),
    ];
    for (turns, promises) in promised {
        for (challengers, least_wins, least_close) in promises {
            let run = |seed| short_race(Noisy::new(challengers, Rng::with_seed(seed)), turns);
            let ended: Vec<Short> = (0..600).map(run).collect();
            let gains: Vec<&Short> = ended.iter().filter(|it| it.best <= 0.9).collect();
            let of = |holds: &dyn Fn(&Short) -> bool| {
                100 * gains.iter().filter(|it| holds(it)).count() / gains.len()
            };
            let (wins, close) = (of(&|it| it.chosen < 1.0), of(&|it| it.chosen <= 1.03 * it.best));
            let false_better = ended.iter().filter(|it| it.chosen > 1.0).count();
            println!(
                "{turns} windows, {challengers} candidates: a gain {wins} %, within 3 % of the \
                 best {close} %, {false_better} of 600 false"
            );
            assert!(wins >= least_wins && close >= least_close && false_better <= 6);
        }
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
