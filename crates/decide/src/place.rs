//! Affinity algorithms: each suggests a CPU for every vector, with a reason.
//!
//! Each algorithm is one file; a new one needs that file, a name in [`AlgorithmName`], and a line
//! in [`suggest`]. An algorithm sees all vectors at once, because each placed vector takes room
//! from the next.
//!
//! **What lives here**: vectors, the capacity of the CPUs, and the algorithms. They may use the
//! model crate: rates, silos, topology, the cost model and its solver. Goals, plans, knobs and
//! verdicts must not come in: `plan` decides what may move, and turns a suggestion into changes.
//!
//! **Stability.** Once its suggestions were applied, an algorithm suggests nothing new, even though
//! the next measurement differs a little. Three rules ensure this. The load of a vector is
//! subtracted from the busy time of its CPU ([`Capacity::busy`]) before anything is placed. Whether
//! a vector stays is decided with all others in place. A vector moves only to a clearly better CPU,
//! never to one of equal rank.

mod algorithm;
pub(crate) mod auto;
mod capacity;
mod cpu_loads;
mod dedicated;
mod driver_hint;
mod least_loaded;
mod level_costs;
pub mod model;
mod near_consumer;
pub mod parts;
mod rfs_max_weight;
mod same_cpu;
mod spread;
mod suggest;
mod suggestion;
mod thresholds;
mod vector;
mod wakeups;
mod words;

pub use algorithm::AlgorithmName;
pub use capacity::Capacity;
pub use suggest::suggest;
pub use suggestion::Suggestion;
pub use thresholds::{IDLE_BELOW, IDLE_LEAVES, IDLE_STAYS, WORTH_MOVING};
pub use vector::{CONSUMER_FROM, Completion, LOAD_FROM, TRAFFIC_FROM, Vector};
