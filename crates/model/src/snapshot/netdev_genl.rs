//! The kernel's `netdev` generic netlink family: the NAPI of each queue, the irq of each NAPI.
//!
//! Names are those of `Documentation/netlink/specs/netdev.yaml`. Queues and NAPIs exist since 6.8,
//! NAPI settings since 6.13, `threaded` since 6.17.

use serde::{Deserialize, Serialize};

/// All queues and NAPIs of the netdevs in one network namespace that are up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetdevGenl {
    /// Rx and tx queues.
    pub queues: Vec<Queue>,
    /// NAPI instances.
    pub napis: Vec<Napi>,
}

impl NetdevGenl {
    /// The NAPI of an rx queue, if the driver reports it.
    pub fn rx_napi(&self, ifindex: u32, queue: u32) -> Option<&Napi> {
        let served =
            |q: &&Queue| q.ifindex == ifindex && q.id == queue && q.direction == Direction::Rx;
        let id = self.queues.iter().find(served)?.napi_id?;
        self.napis.iter().find(|napi| napi.id == id && napi.ifindex == ifindex)
    }
}

/// The direction of a queue. Rx and tx queues are numbered separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// `queue-get`: one queue of a netdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Interface index of its netdev.
    pub ifindex: u32,
    /// Number of the queue within netdev and direction.
    pub id: u32,
    /// Direction of the queue.
    pub direction: Direction,
    /// Id of the NAPI that serves it; `None` if the driver does not report it.
    pub napi_id: Option<u32>,
    /// The holder that replaces the kernel's stack. netsilo must not change a queue that has a
    /// holder.
    #[serde(default)]
    pub owners: Vec<QueueHolder>,
}

/// The holder of a queue whose packets bypass the kernel's stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueHolder {
    /// An AF_XDP socket (since 6.15).
    Xsk,
    /// An io_uring zero-copy receiver (since 6.15).
    IoUring,
    /// A device-memory TCP binding, by its id (since 6.12).
    Dmabuf(u32),
    /// Leased to or from a queue of another netdev.
    Lease {
        /// Interface index of the other netdev, which may be in another network namespace.
        ifindex: Option<u32>,
        /// The queue of the other netdev.
        queue: Option<u32>,
        /// Id of the other netdev's network namespace, if it differs.
        netns_id: Option<i32>,
    },
}

/// How [`QueueHolder::label`] begins.
pub const IO_URING: &str = "io_uring zero-copy receive";
/// How [`QueueHolder::label`] begins.
pub const DEVICE_MEMORY: &str = "device memory";

impl QueueHolder {
    /// The holder in words.
    pub fn label(&self) -> String {
        match self {
            Self::Xsk => "AF_XDP".to_owned(),
            Self::IoUring => IO_URING.to_owned(),
            Self::Dmabuf(id) => format!("{DEVICE_MEMORY} (dmabuf {id})"),
            Self::Lease { ifindex, queue, netns_id } => {
                let part = |what, id: Option<u32>| id.map(|id| format!(" {what} {id}"));
                let netns = netns_id.map(|id| format!(" of network namespace id {id}"));
                let parts = [part("queue", *queue), part("of netdev", *ifindex), netns];
                let parts: String = parts.into_iter().flatten().collect();
                let other = if parts.is_empty() { " another netdev".to_owned() } else { parts };
                format!("lease with{other}")
            }
        }
    }
}

/// `napi-get`: one NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Napi {
    /// Interface index of its netdev.
    pub ifindex: u32,
    /// Id, unique in the whole kernel.
    pub id: u32,
    /// Interrupt number; `None` if the driver does not report it.
    pub irq: Option<u32>,
    /// Pid of its kthread when threaded.
    pub pid: Option<u32>,
    /// Number of empty polls before hardirqs are enabled again.
    pub defer_hard_irqs: Option<u32>,
    /// Maximum time for which a poll is deferred and GRO holds packets; `None` above 4.29 s,
    /// because netlink-bindings 0.3 reads a u32.
    pub gro_flush_timeout_nsecs: Option<u64>,
    /// Time that hardirqs stay off while an application busy-polls.
    pub irq_suspend_timeout_nsecs: Option<u64>,
    /// Threaded polling: 0 no, 1 yes, 2 yes with busy polling.
    pub threaded: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rx_napi_ignores_the_tx_queue_with_the_same_number() {
        let queue = |direction, napi_id| Queue {
            ifindex: 2,
            id: 0,
            direction,
            napi_id: Some(napi_id),
            owners: vec![QueueHolder::Xsk],
        };
        let napi = |id| Napi {
            ifindex: 2,
            id,
            irq: Some(id),
            pid: None,
            defer_hard_irqs: None,
            gro_flush_timeout_nsecs: None,
            irq_suspend_timeout_nsecs: None,
            threaded: None,
        };
        let family = NetdevGenl {
            queues: vec![queue(Direction::Tx, 8193), queue(Direction::Rx, 8194)],
            napis: vec![napi(8193), napi(8194)],
        };
        assert_eq!(family.rx_napi(2, 0).map(|napi| napi.id), Some(8194));
        assert_eq!(family.rx_napi(3, 0), None);
        let json = serde_json::to_string(&family).unwrap();
        assert_eq!(serde_json::from_str::<NetdevGenl>(&json).unwrap(), family);
    }
}
