//! What one reading of a host contains: settings and counters, as the kernel reports them.
//!
//! Plain data with serde; it is the content of a bundle. Uses [`crate::machine`]. Parsing, rates
//! and conclusions from two readings do not belong here.

pub mod attribution;
pub mod audit;
pub mod consumer;
mod count;
pub mod drops;
pub mod ethtool;
pub mod event;
pub mod flow;
pub mod host;
pub mod ip_packets;
pub mod namespaces;
pub mod net_thread;
pub mod netdev;
pub mod netdev_genl;
pub mod netdevs;
pub mod netfilter;
pub mod observation;
pub mod packet_sockets;
pub mod prerequisites;
pub mod queue_users;
pub mod runqueue;
pub mod scheduled;
pub mod socket_readers;
pub mod sockets;
pub mod stage_samples;
pub mod subject;
pub mod tap_holders;
pub mod thread_time;
