//! The model as a discrete-event simulation: what a load gets under a setting, packet by packet.
//!
//! It takes the parameters of the analytic form and answers with the same
//! [`crate::prediction::Prediction`], beside it latencies, losses and a timeline. The same seed
//! gives the same result. `docs/model.md` says what is simulated, and how far both forms agree.
//!
//! **What lives here**: the event queue, the machine's parts (vectors, CPUs, scheduler, link,
//! client), the loads, the host that puts them together, and the settings of a scenario beside each
//! other. How the parameters become the work of a transaction stands outside, because the analytic
//! form shares it.

pub mod comparison;
mod costs;
mod cpu;
mod events;
mod host;
mod instances;
pub mod latency;
mod link;
mod pool;
mod ports;
pub mod run;
mod scheduler;
mod softirqs;
mod threads;
pub mod timeline;
mod vector;

pub use run::{NotSimulated, Options, Simulated, Simulation, simulate};
