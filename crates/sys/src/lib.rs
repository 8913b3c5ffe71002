//! netsilo kernel edge.
pub mod bpf;
mod bpf_cgroup;
mod bpf_decode;
mod bpf_load;
mod bpf_table;
pub mod ethtool;
pub mod irq;
mod lines;
mod netdev;
pub mod netdev_genl;
mod notes;
mod pidfd;
mod process;
pub mod read;
pub mod record;
mod recorder;
pub mod root;
pub mod sock_diag;
mod sock_owners;

pub mod apply;
pub mod journal;
pub mod kernel;
pub mod knob;
pub mod topology;
pub mod transaction;
pub mod undo;
pub mod verify;
mod writers;

pub use read::snapshot;
