//! What the kernel's `netdev` generic netlink family tells: which NAPI serves a queue, which irq a
//! NAPI has.
//!
//! Names are those of `Documentation/netlink/specs/netdev.yaml`. Queues and NAPIs came with 6.8, a
//! NAPI's settings with 6.13, `threaded` with 6.17.

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
    /// The NAPI that serves an rx queue, where the driver tells.
    pub fn rx_napi(&self, ifindex: u32, queue: u32) -> Option<&Napi> {
        let served =
            |q: &&Queue| q.ifindex == ifindex && q.id == queue && q.direction == Direction::Rx;
        let id = self.queues.iter().find(served)?.napi_id?;
        self.napis.iter().find(|napi| napi.id == id && napi.ifindex == ifindex)
    }
}

/// Rx and tx queues are numbered apart.
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
    /// Its netdev.
    pub ifindex: u32,
    /// Number within netdev and direction.
    pub id: u32,
    /// Whether it receives or transmits.
    pub direction: Direction,
    /// The NAPI that serves it; `None` where the driver doesn't tell.
    pub napi_id: Option<u32>,
    /// Who uses it in the kernel's stead; not for netsilo to touch.
    #[serde(default)]
    pub owners: Vec<QueueOwner>,
}

/// What takes a queue's packets away from the kernel's stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOwner {
    /// An AF_XDP socket (since 6.15).
    Xsk,
    /// An io_uring zero-copy receiver (since 6.15).
    IoUring,
    /// A device-memory TCP binding, by its id (since 6.12).
    Dmabuf(u32),
    /// Leased to or from a queue of another netdev.
    Lease {
        /// The other netdev; its network namespace may be another one.
        ifindex: Option<u32>,
        /// The queue there.
        queue: Option<u32>,
        /// The id of its network namespace, if another.
        netns_id: Option<i32>,
    },
}

/// `napi-get`: one NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Napi {
    /// Its netdev.
    pub ifindex: u32,
    /// Its id, unique in the whole kernel.
    pub id: u32,
    /// Its irq; `None` where the driver doesn't tell.
    pub irq: Option<u32>,
    /// The pid of its kthread while NAPI is threaded.
    pub pid: Option<u32>,
    /// How many empty polls may pass before hardirqs are enabled again.
    pub defer_hard_irqs: Option<u32>,
    /// How long a poll may be put off, and GRO keep packets; `None` also above 4.29 s
    /// (netlink-bindings 0.3 reads a u32).
    pub gro_flush_timeout_nsecs: Option<u64>,
    /// How long hardirqs stay off while an application busy-polls.
    pub irq_suspend_timeout_nsecs: Option<u64>,
    /// Whether it polls in a kthread (0 no, 1 yes, 2 yes and busy-polling).
    pub threaded: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rx_queue_finds_its_napi_and_not_that_of_the_tx_queue_of_the_same_number() {
        let queue = |direction, napi_id| Queue {
            ifindex: 2,
            id: 0,
            direction,
            napi_id: Some(napi_id),
            owners: vec![QueueOwner::Xsk],
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
        let told = NetdevGenl {
            queues: vec![queue(Direction::Tx, 8193), queue(Direction::Rx, 8194)],
            napis: vec![napi(8193), napi(8194)],
        };
        assert_eq!(told.rx_napi(2, 0).map(|napi| napi.id), Some(8194));
        assert_eq!(told.rx_napi(3, 0), None);
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<NetdevGenl>(&json).unwrap(), told);
    }
}
