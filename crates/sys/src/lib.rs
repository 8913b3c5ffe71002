//! netsilo's kernel edge: readers, netlink, ethtool, eBPF, journal and writer.
//!
//! Nothing is decided or printed here.

pub mod apply;
mod audit;
pub mod bpf;
mod bpf_arrived;
mod bpf_cgroup;
mod bpf_decode;
mod bpf_load;
mod bpf_runqueue;
mod bpf_stages;
mod bpf_table;
pub mod bundle;
pub mod calibrate;
mod connections;
pub mod costs;
pub mod early_drop;
pub mod ethtool;
pub mod events;
pub mod fold;
pub mod guard;
pub mod hints;
pub mod instance;
pub mod irq;
pub mod journal;
mod kept;
pub mod kernel;
#[cfg(test)]
mod kernel_page;
pub mod knob;
mod lines;
pub mod load;
mod losing_sockets;
mod netdev;
pub mod netdev_genl;
mod notes;
pub mod observe;
pub mod own;
mod pidfd;
pub mod pin;
mod process;
mod qdiscs;
pub mod read;
mod recorder;
mod redact;
pub mod refresh;
pub mod root;
pub mod sock_diag;
mod sock_owners;
pub mod topology;
pub mod transaction;
pub mod undo;
mod unpack;
pub mod verify;
pub mod wake;
pub mod writers;
mod xdp;

pub use read::snapshot;
