//! netsilo's kernel edge: readers, netlink, ethtool, eBPF, journal and writer. It decides nothing and prints nothing.

pub mod apply;
pub mod bpf;
mod bpf_cgroup;
mod bpf_decode;
mod bpf_load;
mod bpf_table;
pub mod bundle;
pub mod ethtool;
pub mod fold;
pub mod guard;
pub mod irq;
pub mod journal;
pub mod kernel;
pub mod knob;
mod lines;
mod netdev;
pub mod netdev_genl;
mod notes;
pub mod observe;
mod pidfd;
mod process;
pub mod read;
mod recorder;
mod redact;
pub mod root;
pub mod sock_diag;
mod sock_owners;
pub mod topology;
pub mod transaction;
pub mod undo;
mod unpack;
pub mod verify;
pub mod writers;

pub use read::snapshot;
