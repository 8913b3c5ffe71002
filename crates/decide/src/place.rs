//! Affinity algorithms: each suggests a CPU for every vector, with a reason.
//!
//! Each algorithm is one file, which `algorithms` lists. An algorithm sees all vectors at once,
//! because each placed vector takes room from the next.
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
mod algorithms;
mod capacity;
mod cpu_loads;
mod level_costs;
pub mod model;
pub mod parts;
mod suggestion;
mod thresholds;
mod vector;
mod wakeups;
mod words;

pub use algorithms::{AlgorithmName, suggest, suggest_auto};
pub use capacity::Capacity;
pub use suggestion::Suggestion;
pub use thresholds::{
    FILLS_A_CPU, FULL, IDLE, IDLE_BELOW, IDLE_LEAVES, IDLE_STAYS, SUFFICES_FIXED, WORTH_MOVING,
};
pub use vector::{CONSUMER_FROM, Completion, LOAD_FROM, TRAFFIC_FROM, Vector};
