//! The assignment problem: which CPU processes which vector, and what each choice costs in
//! CPU-nanoseconds per second.
//!
//! The cost of a placement is the sum of
//! - the cost of each vector on its CPU, independent of the other vectors ([`Problem::fixed`]: data
//!   carried to its readers, wakeups sent to them, lines fetched from the device's node, slow
//!   cores, work on that CPU and core that waits for it);
//! - the cost of vectors that crowd a CPU ([`Assumed::pressure`]) or two hardware threads of one
//!   core ([`Problem::smt_loss`]);
//! - the time that NAPI kthreads wait for the other vectors of their CPU ([`Item::turns`]);
//! - the cost of packets that one vector hands to another ([`Pair`]: forwarding);
//! - the cost of moving ([`Item::moving`]).
//!
//! `netsilo_decide::place` builds the problem of a host; [`crate::cost::solver`] finds a placement.

#[cfg(test)]
mod tests;

use crate::cost::assumed::Assumed;
use crate::cost::weights::ByDistance;
use crate::machine::topology::{Distance, Levels};

/// CPU-nanoseconds in one second of one CPU.
pub const SECOND_NS: f64 = 1e9;

/// A CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuPlace {
    /// Numbers of its core, level 2 cache, last-level cache and node.
    pub levels: Levels,
    /// Share of its time taken by other work than the items.
    pub busy: f64,
    /// Time for the same work relative to the fastest CPU, at least 1.
    pub slowdown: f64,
}

/// Something to place.
#[derive(Debug, Clone, Default)]
pub struct Item {
    /// Load, as a share of the fastest CPU's time.
    pub load: f64,
    /// Time that it would wait for its turns on a CPU that always runs other items, in ns/s; 0 for
    /// a softirq, which does not wait.
    pub turns: f64,
    /// Index of its current place.
    pub home: Option<usize>,
    /// Cost of leaving its current place, in ns/s.
    pub moving: f64,
}

/// Packets that one item hands to another.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The item that receives the packets.
    pub from: usize,
    /// The item that completes their transmission.
    pub to: usize,
    /// Cost by the distance between the two items, in ns/s.
    pub cost: ByDistance,
    /// Index in [`Problem::senders`]: it hands them over only from these places; from any if
    /// `None`.
    pub senders: Option<usize>,
}

/// The places, the items and the costs.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    /// The CPUs.
    pub places: Vec<CpuPlace>,
    /// The items to place.
    pub items: Vec<Item>,
    /// Cost of each item on each CPU, independent of other items, in ns/s, item by item; infinite
    /// where the item may not be.
    ///
    /// Seven digits (`f32`) suffice: this is the largest table of all.
    pub fixed: Vec<f32>,
    /// What each item takes of each CPU's time beyond its load (less than 0: what the CPU is spared
    /// while the item is there), as a share, item by item; empty if there is no such difference.
    pub beyond: Vec<f32>,
    /// Pairs of items that hand packets on.
    pub pairs: Vec<Pair>,
    /// Sets of places that send through the same tx queue (XPS): whether each place is in it.
    pub senders: Vec<Vec<bool>>,
    /// The costs of crowded CPUs.
    pub assumed: Assumed,
    /// Work lost while two hardware threads of a core are busy, in shares of what one thread does.
    pub smt_loss: f64,
}

impl Problem {
    /// Cost of an item on a CPU, independent of other items, in ns/s.
    #[inline]
    pub fn fixed(&self, item: usize, place: usize) -> f64 {
        self.fixed[item * self.places.len() + place].into()
    }

    /// Share of a CPU's time that an item takes on this place, what it spares that CPU subtracted.
    #[inline]
    pub fn load(&self, item: usize, place: usize) -> f64 {
        let beyond = self.beyond.get(item * self.places.len() + place).copied().unwrap_or(0.0);
        (self.items[item].load * self.places[place].slowdown + f64::from(beyond)).max(0.0)
    }

    /// Distance between two places.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        let levels = |place: usize| &self.places[place].levels;
        if a == b { Distance::SameCpu } else { Distance::between(levels(a), levels(b)) }
    }

    /// Cost of a placement in ns/s, without moving costs; infinite if an item is where it may not
    /// be.
    pub fn cost(&self, at: &[usize]) -> f64 {
        let mut loads = vec![0.0; self.places.len()];
        let mut cost = 0.0;
        for (item, place) in at.iter().enumerate() {
            cost += self.fixed(item, *place);
            loads[*place] += self.load(item, *place);
        }
        let pair = |pair: &Pair| self.handed(pair, at[pair.from], at[pair.to]);
        let pairs: f64 = self.pairs.iter().map(pair).sum();
        cost + self.crowding(&loads) + self.waits(at.iter().copied().enumerate(), &loads) + pairs
    }

    /// Time that the items on these places wait for each other's turns in ns/s, by the load of the
    /// items on each place.
    pub fn waits(&self, at: impl Iterator<Item = (usize, usize)>, loads: &[f64]) -> f64 {
        let wait = |(item, place): (usize, usize)| {
            self.items[item].turns * (loads[place] - self.load(item, place)).max(0.0)
        };
        at.map(wait).sum()
    }

    /// Cost of a pair whose items are on these places, in ns/s.
    pub fn handed(&self, pair: &Pair, from: usize, to: usize) -> f64 {
        match pair.senders {
            Some(senders) if !self.senders[senders][from] => 0.0,
            _ => pair.cost.at(self.distance(from, to)),
        }
    }

    /// Cost of items that crowd CPUs and cores in ns/s, by the items' share of each CPU's time.
    pub fn crowding(&self, loads: &[f64]) -> f64 {
        let pressure = |busy, items| self.assumed.pressure(busy, items);
        let on_cpu = |(place, load): (&CpuPlace, &f64)| {
            pressure(place.busy + load, *load) - pressure(place.busy, 0.0)
        };
        let on_core = |core: Vec<usize>| -> f64 {
            let beside = |i: usize| core[i + 1..].iter().map(|place| loads[*place]).sum::<f64>();
            (0..core.len()).map(|i| loads[core[i]] * beside(i) * self.smt_loss).sum()
        };
        let on_cpus: f64 = self.places.iter().zip(loads).map(on_cpu).sum();
        (on_cpus + self.cores().into_iter().map(on_core).sum::<f64>()) * SECOND_NS
    }

    /// Cost of moving all items from their present places, in ns/s.
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
        for (place, CpuPlace { levels: [core, ..], .. }) in self.places.iter().enumerate() {
            cores.entry(*core).or_default().push(place);
        }
        cores.into_values().collect()
    }
}
