//! What follows from an observation: rates, silos, shares of CPU time.
//!
//! Uses all folders before it. Thresholds, findings and changes must not come in: these are
//! decisions.

pub mod analysis;
pub mod backlog;
pub mod counted;
pub mod coverage;
pub mod cpu_time;
pub mod drop_class;
pub mod drop_judge;
pub mod flow_steering;
pub mod forwarding;
pub mod locality;
pub mod namespaces;
pub mod net_threads;
pub mod notes;
pub mod observed_irqs;
pub mod queue_map;
pub mod rates;
pub mod reader_spread;
pub mod receive_work;
pub mod seen_costs;
pub mod signature;
pub mod silo;
pub mod silos;
pub mod sock_diag;
pub mod stages;
pub mod tap_readers;
pub mod thread_share;
pub mod transmit;
pub mod unmapped;
mod unread;
pub mod utilization;
pub mod wakeups;
