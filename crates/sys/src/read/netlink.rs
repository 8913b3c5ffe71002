//! ROOMDOC

pub mod connections;
pub mod netdev_genl;
pub mod qdiscs;
pub mod sock_diag;
pub mod xdp;
