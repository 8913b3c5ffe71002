//! Generates and answers load: the sockets and threads of `netsilo bench`.
//!
//! A server ([`Server`]) and a client ([`run`]) agree on a load over a control connection. Then the
//! client opens the data connections, and both read their counters. Each thread or process counts
//! in its own row of shared memory, which the client reads each second.
//!
//! The types of a load and their sums are in [`netsilo_trial::traffic`]; the machine's counters are
//! read through `netsilo-sys`. No comparison and no statistics here, and no output.

mod answer;
mod asked;
mod board;
mod client;
mod control;
mod crr;
pub mod early_drop;
mod error;
mod event;
mod make;
mod process;
mod rr;
mod run;
mod serve;
mod share;
mod side;
mod socket;
mod stream;
mod tally;
mod tick;
mod work;
mod zero_copy;

pub use asked::{ask, here};
pub use control::{Order, VERSION};
pub use error::LoadError;
pub use event::Event;
pub use process::{InstanceError, instance};
pub use run::{Options, run};
pub use serve::{Bind, ServeError, Server};
pub use side::Before;
pub use tick::{Tick, Watch};

/// Default port of a server.
pub const PORT: u16 = 12870;
