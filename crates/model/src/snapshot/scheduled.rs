//! Which interrupts schedule which NAPI instances.

use serde::{Deserialize, Serialize};

use crate::machine::ids::{Irq, NapiId};
use crate::snapshot::count::count;

/// How often an interrupt scheduled a NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scheduled {
    /// The interrupt.
    pub irq: Irq,
    /// The NAPI instance; 0 for instances without an id.
    pub napi: NapiId,
    /// Name of its device, in the device's network namespace. Empty if its kthread was woken.
    pub netdev: String,
    /// Interface index of its device, in that namespace.
    pub ifindex: u32,
    /// Inode number of that namespace; 0 if unknown.
    pub netns: u32,
    /// How the two were found to belong together.
    pub by: ScheduledBy,
    /// How often.
    #[serde(deserialize_with = "count")]
    pub count: u64,
}

/// How an interrupt was found to schedule a NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduledBy {
    /// Its handler put the instance on the CPU's list of instances to poll.
    Handler,
    /// Its handler woke the instance's kthread.
    Wakeup,
    /// Its own thread (`irq/N-name`) polled the instance. A thread may also be interrupted by the
    /// softirq of another.
    Thread,
    /// The instance was the first that was polled after its handler had raised the softirq.
    Softirq,
}
