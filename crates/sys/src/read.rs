//! Reads a host into the values of [`netsilo_model::snapshot`].
//!
//! Uses [`files`](crate::files) and [`ethtool`](crate::ethtool). `netsilo-model` parses the text,
//! other crates compute rates and findings, and nothing is written here.

pub mod audit;
pub mod containers;
pub mod cpu_owners;
pub(crate) mod device;
pub mod entrance;
pub mod gaps;
pub mod irq;
pub mod knob_owners;
pub mod losing_sockets;
pub mod machine;
pub mod namespaces;
pub mod netdev;
pub mod netfilter;
pub mod netlink;
pub mod netns;
pub mod partitions;
pub mod pidfd;
pub mod prerequisites;
pub mod process;
pub(crate) mod queue_users;
pub mod refresh;
pub mod snapshot;
pub mod sock_owners;
pub mod socket_readers;
pub mod sysctls;
pub(crate) mod tap_holders;
pub mod topology;
