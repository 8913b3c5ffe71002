//! netsilo kernel edge.
pub mod bpf;
mod bpf_cgroup;
mod bpf_decode;
mod bpf_load;
mod bpf_table;
pub mod ethtool;
pub mod netdev_genl;
mod pidfd;
pub mod sock_diag;
mod sock_owners;
