//! Reads over netlink: sockets, connections, queueing disciplines, NAPI and XDP programs.
//!
//! Each file sends one kind of request and returns values of [`netsilo_model::snapshot`].

pub mod connections;
pub mod links;
pub mod netdev_genl;
pub mod qdiscs;
pub mod sock_diag;
mod tcp_dump;
pub mod xdp;
