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
    /// A client was refused, or left before its load ended.
    Ended(SocketAddr, String),
    /// A requested load is being generated against this address.
    Making(SocketAddr, Box<Spec>),
    /// The requested load has ended, with the client's totals.
    Made(SocketAddr, Totals),
}
