//! Events that a server reports while it serves.

use std::net::SocketAddr;

use netsilo_trial::traffic::{Spec, Totals};

/// An event at a server.
#[derive(Debug)]
pub enum Event {
    /// A client's load has begun.
    Began(SocketAddr, Box<Spec>),
    /// A client's load has ended, with the server's totals.
    Served(SocketAddr, Totals),
    /// Clients were refused, or left before their load ended. There is at most one event for each
    /// reason and second.
    Ended {
        /// The first of these clients.
        from: SocketAddr,
        /// The reason.
        why: String,
        /// How many more clients ended for this reason since it was last reported.
        others: usize,
    },
    /// A requested load is being generated against this address.
    Making(SocketAddr, Box<Spec>),
    /// The requested load has ended, with the client's totals.
    Made(SocketAddr, Totals),
}
