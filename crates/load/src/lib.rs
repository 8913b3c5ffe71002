//! Generates and answers load: the sockets and threads of `netsilo bench`.
//!
//! The types and sums are in [`netsilo_trial::traffic`]. A server ([`serve`]) and a client ([`run`])
//! agree on a load over a control connection. Then the client opens the data connections, and both
//! read their counters. Each thread or process counts in its own row of a [`board`], which the
//! client reads each second.
//! client reads each second.

mod answer;
mod asked;
mod board;
mod control;
mod crr;
pub mod early_drop;
mod make;
mod process;
mod rr;
mod run;
mod serve;
mod side;
mod socket;
mod stream;
mod tally;
mod work;
mod zero_copy;

pub use asked::{ask, here};
pub use control::{Order, VERSION};
pub use process::{InstanceError, instance};
pub use run::{LoadError, Options, Tick, Watch, run};
pub use serve::{Bind, Event, ServeError, Server};
pub use side::Before;

/// Default port of a server.
pub const PORT: u16 = 12870;
