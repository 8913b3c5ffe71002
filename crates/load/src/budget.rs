//! The memory that a server grants to the loads of its clients, all together.
//!
//! Counts the maximum that workers may use: stacks, buffers, connections. Does not count the
//! buffers of sockets, because the kernel limits those (`net.ipv4.tcp_mem`, `udp_mem`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netsilo_trial::traffic::{InstancesAs, Spec};

use crate::answer::buffer_bytes;
use crate::{answer, share};

/// Default memory of a server for loads, in bytes.
pub const MEMORY: u64 = 1 << 30;

/// A process of the client: its private memory, with some reserve.
const PROCESS: u64 = 8 << 20;

/// A connection with its entries in lists, and a row of counters.
const INSTANCE: u64 = 1 << 10;

/// The memory of a server and how much of it is granted.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    granted: AtomicU64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, granted: AtomicU64::new(0) })
    }

    /// Grants memory until the grant is dropped. Fails with an error for the client if too little
    /// is left.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Result<Grant, String> {
        let more = |granted: u64| granted.checked_add(bytes).filter(|sum| *sum <= self.bytes);
        match self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Grant { budget: Arc::clone(self), bytes }),
            Err(granted) => Err(format!(
                "this load needs up to {} MiB of memory at the server, which has {} MiB left of \
                 {}: use fewer instances, smaller messages or --instances-as multiplexed, or a \
                 server with a larger --memory",
                bytes.div_ceil(1 << 20),
                (self.bytes - granted) >> 20,
                self.bytes >> 20
            )),
        }
    }
}

/// Granted memory; returned when dropped.
#[derive(Debug)]
pub(super) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.granted.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Maximum memory in bytes that a load needs on the answering side, with this many workers.
pub(super) fn to_answer(spec: &Spec, workers: usize) -> u64 {
    let worker = answer::STACK + buffer_bytes(spec);
    workers as u64 * worker as u64 + spec.instances as u64 * INSTANCE
}

/// Maximum memory in bytes that a load needs on the generating side.
pub(super) fn to_generate(spec: &Spec) -> u64 {
    let (workers, process) = match spec.instances_as {
        InstancesAs::Multiplexed => (spec.workers.min(spec.instances), 0),
        InstancesAs::Threads => (spec.instances, 0),
        InstancesAs::Processes => (spec.instances, PROCESS),
    };
    let message = if spec.test.has_responses() {
        spec.request_bytes.max(spec.response_bytes) + 1
    } else {
        spec.send_bytes
    };
    let worker = (share::STACK + message) as u64 + process;
    workers as u64 * worker + spec.instances as u64 * INSTANCE
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netsilo_trial::traffic::{MAX_INSTANCES, Test};

    use super::*;

    #[test]
    fn what_is_granted_returns_and_more_is_refused() {
        let budget = Budget::new(10 << 20);
        let most = budget.take(8 << 20).unwrap();
        let refused = budget.take(3 << 20).unwrap_err();
        assert!(
            refused.starts_with(
                "this load needs up to 3 MiB of memory at the server, which has 2 MiB left of 10:"
            ),
            "{refused}"
        );
        assert!(budget.take(u64::MAX).is_err());
        let rest = budget.take(2 << 20).unwrap();
        drop((most, rest));
        assert!(budget.take(10 << 20).is_ok());
    }

    #[test]
    fn the_largest_load_that_a_spec_allows_is_counted_in_full() {
        let mut spec = Spec::default_for(Test::TcpRr, Duration::from_secs(1));
        (spec.instances, spec.request_bytes) = (MAX_INSTANCES, 16 << 20);
        assert_eq!(spec.check(), Ok(()));
        let all_messages = (MAX_INSTANCES as u64) << 24;
        assert!(to_generate(&spec) > all_messages, "each thread has a whole message");
        assert!(to_answer(&spec, spec.instances) < all_messages / 50, "and a worker one piece");
        spec.instances_as = InstancesAs::Multiplexed;
        assert!(to_generate(&spec) < 64 << 20, "one thread, with one message");
        (spec.instances_as, spec.request_bytes) = (InstancesAs::Processes, 1);
        assert!(to_generate(&spec) > MAX_INSTANCES as u64 * PROCESS);
    }
}
