//! A load: its specification, its results and their arithmetic. `netsilo-load` has the sockets.

mod results;
mod spec;

pub use results::{EndMachine, Figures, Latency, LoadResult, ServerResult, Totals};
pub use spec::{InstancesAs, MAX_INSTANCES, Spec, Test};
