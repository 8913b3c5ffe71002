//! Which CPU processes which vector: the choices there are, and what each costs in CPU-nanoseconds
//! per second.
//!
//! The cost of a placement is the sum of
//! - what each vector costs where it is, whoever else is there ([`Problem::fixed`]: data carried to
//!   its readers, wakeups sent to them, lines fetched from the device's node, slow cores);
//! - what it costs to crowd a CPU ([`pressure`]) or two hardware threads of one core
//!   ([`SMT_LOSS`]);
//! - what packets cost that one vector hands to another ([`Pair`]: forwarding);
//! - what it costs to move ([`Item::moving`]).
//!
//! [`netsilo_decide::place`] makes the problem of a host; [`solver`] finds a placement.

#[cfg(test)]
mod tests;

use crate::cost::weights::ByDistance;
use crate::machine::topology::Distance;

/// CPU-nanoseconds in one second of one CPU.
pub const SECOND_NS: f64 = 1e9;

/// Where crowding a CPU begins to cost, as a share of its time, and by how much each further share
/// costs more from there.
///
/// - From a quarter on, polls begin to wait for each other and for the application: a little; from
///   a half on, often.
/// - From four fifths on, what lands there takes the time from an application that needs it: as
///   much as it takes.
/// - From all of it on, it is time that is not there: packets wait in the ring and are lost.
pub const CROWDED: [(f64, f64); 4] = [(0.25, 0.05), (0.50, 0.30), (0.80, 0.65), (1.0, 3.0)];

/// What is lost while both hardware threads of a core are busy: together they do 1.25 times the
/// work of one, not 2 times.
pub const SMT_LOSS: f64 = 0.75;

/// What it costs that a CPU is busy for this share of its time, in shares of a CPU.
pub fn pressure(busy: f64) -> f64 {
    CROWDED.iter().map(|(from, slope)| slope * (busy - from).max(0.0)).sum()
}

/// How much more it costs per further share of busyness.
pub fn slope(busy: f64) -> f64 {
    CROWDED.iter().filter(|(from, _)| busy >= *from).map(|(_, slope)| slope).sum()
}

/// CPUs by what they share; two CPUs share a level when they have the same number for it.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Numbers of its core, level 2 cache, last-level cache and node.
    pub levels: [u32; 4],
    /// Share of its time that is taken by other things than the items.
    pub busy: f64,
    /// How much longer it takes for the same work than the fastest CPU, at least 1.
    pub slowdown: f64,
}

/// Something to place.
#[derive(Debug, Clone, Default)]
pub struct Item {
    /// Share of the fastest CPU's time that it takes.
    pub load: f64,
    /// Where it is now.
    pub home: Option<usize>,
    /// What it costs to leave its home, in ns/s.
    pub moving: f64,
}

/// Packets that one item hands to another.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The one that receives them.
    pub from: usize,
    /// The one that completes their transmission.
    pub to: usize,
    /// What they cost by the distance between the two, in ns/s.
    pub cost: ByDistance,
}

/// The choices, and what each costs.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    /// The CPUs.
    pub places: Vec<Place>,
    /// What is to be placed.
    pub items: Vec<Item>,
    /// What an item costs on a CPU whoever else is there, in ns/s, row by row; infinite where it
    /// may not be. To seven digits: it is the largest table of all.
    pub fixed: Vec<f32>,
    /// Who hands packets to whom.
    pub pairs: Vec<Pair>,
}

impl Problem {
    /// What an item costs on a CPU whoever else is there.
    pub fn fixed(&self, item: usize, place: usize) -> f64 {
        self.fixed[item * self.places.len() + place].into()
    }

    /// Share of a CPU's time that an item takes there.
    pub fn load(&self, item: usize, place: usize) -> f64 {
        self.items[item].load * self.places[place].slowdown
    }

    /// How far apart two CPUs are.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        const LEVELS: [Distance; 4] = [Distance::Smt, Distance::L2, Distance::Llc, Distance::Node];
        if a == b {
            return Distance::SameCpu;
        }
        let shared =
            self.places[a].levels.iter().zip(self.places[b].levels).position(|(x, y)| *x == y);
        shared.map_or(Distance::Remote, |level| LEVELS[level])
    }

    /// What a placement costs in ns/s, moving not counted; infinite where an item is where it may
    /// not be.
    pub fn cost(&self, at: &[usize]) -> f64 {
        let mut busy: Vec<f64> = self.places.iter().map(|place| place.busy).collect();
        let mut cost = 0.0;
        for (item, place) in at.iter().enumerate() {
            cost += self.fixed(item, *place);
            busy[*place] += self.load(item, *place);
        }
        for (place, now) in self.places.iter().zip(&busy) {
            cost += (pressure(*now) - pressure(place.busy)) * SECOND_NS;
        }
        for core in self.cores() {
            for (i, a) in core.iter().enumerate() {
                for b in &core[i + 1..] {
                    let before = self.places[*a].busy * self.places[*b].busy;
                    cost += (busy[*a] * busy[*b] - before) * SMT_LOSS * SECOND_NS;
                }
            }
        }
        let pair = |pair: &Pair| pair.cost.at(self.distance(at[pair.from], at[pair.to]));
        cost + self.pairs.iter().map(pair).sum::<f64>()
    }

    /// What it costs to get there from the homes, in ns/s.
    pub fn moving(&self, at: &[usize]) -> f64 {
        let moved = |(item, place): (&Item, &usize)| {
            item.home.filter(|home| home != place).map(|_| item.moving)
        };
        self.items.iter().zip(at).filter_map(moved).sum()
    }

    /// The CPUs of each core.
    pub fn cores(&self) -> Vec<Vec<usize>> {
        let mut cores: std::collections::BTreeMap<u32, Vec<usize>> =
            std::collections::BTreeMap::new();
        for (place, Place { levels: [core, ..], .. }) in self.places.iter().enumerate() {
            cores.entry(*core).or_default().push(place);
        }
        cores.into_values().collect()
    }
}
