//! Why a load has no result.

use std::io;
use std::net::SocketAddr;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The load is invalid.
    #[error("{0}")]
    Spec(String),
    /// No server answers at the address.
    #[error("no server at {address} ({source}): start one there with `netsilo-bench serve`")]
    NoServer {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The other end is not a netsilo server.
    #[error("{0} is not a `netsilo-bench serve` server; check the port")]
    NotNetsilo(SocketAddr),
    /// The server refuses.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The server closed the connection.
    #[error("the server has closed the control connection")]
    Disconnected,
    /// The control connection failed.
    #[error("cannot talk to the server: {0}")]
    Control(io::Error),
    /// Sockets, threads or processes could not be created.
    #[error("cannot start instance {instance}: {source}")]
    Start {
        /// Its number, from 1.
        instance: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// `watch` returned break.
    #[error("interrupted")]
    Interrupted,
    /// A data connection failed.
    #[error("the load failed: {0}")]
    Failed(String),
    /// This machine's counters cannot be read.
    #[error("cannot read this machine's counters: {0}")]
    Side(#[from] netsilo_sys::files::error::ReadError),
    /// Shared memory could not be created.
    #[error("cannot create the counters: {0}")]
    SharedCounters(io::Error),
}
