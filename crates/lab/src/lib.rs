//! Boots real kernels with real NIC queues in small virtual machines, for netsilo's tests.
//!
//! [`Lab::boot`] boots a [`Spec`]. [`Lab::run`] runs commands in it (the host's own tools and
//! freshly built binaries, at the same paths). [`Peer::run`] runs commands at the other end of its
//! cables. Nothing remains after a drop or a kill.

mod address;
mod apt;
mod arch;
mod cable;
mod cache;
mod command;
mod emulator;
pub mod exact;
mod example;
mod for_tests;
mod forwarding;
mod frame;
mod guest;
mod hang;
mod initrd;
mod kernels;
mod lab;
mod message;
mod namespaces;
mod output;
mod programs;
mod qemu;
mod qmp;
mod setup;
mod spec;
mod time;
mod tools;

pub use apt::source as apt_source;
pub use arch::Arch;
pub use cable::Cable;
pub use emulator::Accel;
pub use example::example;
pub use for_tests::{bench_of, on_a_full_disk, output_of, skip, unread, until};
pub use guest::Job;
pub use kernels::{Image, Kernel};
pub use lab::Lab;
pub use namespaces::{Peer, PeerJob};
pub use output::Output;
pub use programs::{
    Program, dnsperf, iperf3, irqbalance, memcached, newest_irqbalance, nginx, nsd, redis, tuned,
    udevadm, wrk,
};
pub use rustix::process::Signal;
pub use spec::{Init, Nic, NicModel, Spec, Threads};
pub use time::RUN_TIMEOUT;
pub use tools::{promtool, wg, wireguard_go};
