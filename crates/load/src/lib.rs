//! Generates and answers load: the sockets and threads of `netsilo-bench`.
//!
//! A server ([`Server`]) and a client ([`run`]) agree on a load over a control connection. Then the
//! client opens the data connections, and both read their counters. Each thread or process counts
//! in its own row of shared memory, which the client reads each second.
//!
//! The types of a load and their sums are in [`netsilo_trial::traffic`]; the machine's counters are
//! read through `netsilo-sys`. Comparisons, statistics and output do not belong here.

mod answer;
mod budget;
mod client;
#[doc(hidden)] // for crates/fuzz
pub mod control;
mod crr;
pub mod early_drop;
mod ended;
mod error;
mod event;
mod generate;
mod process;
mod remote;
mod rr;
mod run;
mod serve;
mod share;
mod shared_counters;
mod side;
mod socket;
mod stream;
mod tally;
mod tick;
mod work;
mod zero_copy;

pub use budget::MEMORY;
pub use control::{Order, VERSION};
pub use error::LoadError;
pub use event::Event;
pub use process::{InstanceError, instance};
pub use remote::{address_towards, request_load};
pub use run::{Options, run};
pub use serve::{Bind, ServeError, Server};
pub use side::StartCounters;
pub use tick::{Tick, Watch};

/// Default port of a server.
pub const PORT: u16 = 12870;
