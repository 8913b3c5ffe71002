//! Reads queues and NAPIs of this thread's network namespace by the `netdev` generic netlink
//! family.

use std::io;

use netlink_bindings::netdev::{IterableNapi, IterableQueue, QueueType, Request};
use netlink_socket2::NetlinkSocket;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::netdev_genl::{Direction, Napi, NetdevGenl, Queue, QueueHolder};
use rustix::io::Errno;

/// Why a kernel that has the family did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NetdevGenlError {
    /// The request for queues failed.
    #[error("the netdev netlink family does not list queues")]
    Queues(#[source] io::Error),
    /// The request for NAPIs failed.
    #[error("the netdev netlink family does not list NAPIs")]
    Napis(#[source] io::Error),
}

/// Reads all queues and NAPIs; a kernel without the family (before 6.8) yields `Reading::Absent`,
/// not an error.
pub fn read() -> Result<Reading<NetdevGenl>, NetdevGenlError> {
    let mut socket = NetlinkSocket::new();
    let queues = match queues(&mut socket) {
        Err(error) if is_unknown(&error) => return Ok(Reading::Absent(TOO_OLD.into())),
        other => other.map_err(NetdevGenlError::Queues)?,
    };
    let napis = napis(&mut socket).map_err(NetdevGenlError::Napis)?;
    Ok(Reading::Value(NetdevGenl { queues, napis }))
}

/// Reads the NAPIs of one netdev, by id. NAPIs that cannot be busy-polled have no id and are left
/// out.
pub(crate) fn napis_of(ifindex: u32) -> io::Result<Vec<Napi>> {
    let mut all = napis(&mut NetlinkSocket::new())?;
    all.retain(|napi| napi.ifindex == ifindex);
    all.sort_unstable_by_key(|napi| napi.id);
    Ok(all)
}

/// Reads whether a NAPI has its own kthread.
pub(crate) fn threaded(id: u32) -> io::Result<String> {
    let mut socket = NetlinkSocket::new();
    let napi = napis(&mut socket)?.into_iter().find(|napi| napi.id == id);
    let threaded = napi.and_then(|napi| napi.threaded);
    threaded.map(|threaded| format!("{threaded}\n")).ok_or_else(|| Errno::NOENT.into())
}

/// Sets whether a NAPI has its own kthread.
pub(crate) fn set_threaded(id: u32, threaded: u32) -> io::Result<()> {
    let mut request = Request::new().op_napi_set_do();
    request.encode().push_id(id).push_threaded(threaded);
    Ok(NetlinkSocket::new().request(&request)?.recv_ack()?)
}

const TOO_OLD: &str = "not available: kernel < 6.8 (no netdev queue-get)";

/// Whether the family (ENOENT, before 6.3) or the request (EOPNOTSUPP, before 6.8) is unknown.
fn is_unknown(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::OPNOTSUPP))
}

fn queues(socket: &mut NetlinkSocket) -> io::Result<Vec<Queue>> {
    let mut replies = socket.request(&Request::new().op_queue_get_dump())?;
    let mut queues = Vec::new();
    while let Some(reply) = replies.recv() {
        queues.extend(queue(&reply?));
    }
    Ok(queues)
}

fn napis(socket: &mut NetlinkSocket) -> io::Result<Vec<Napi>> {
    let mut replies = socket.request(&Request::new().op_napi_get_dump())?;
    let mut napis = Vec::new();
    while let Some(reply) = replies.recv() {
        napis.extend(napi(&reply?));
    }
    Ok(napis)
}

/// `None` for a queue of an unknown type.
fn queue(attributes: &IterableQueue<'_>) -> Option<Queue> {
    let direction = match QueueType::from_value(attributes.get_type().ok()?.into())? {
        QueueType::Rx => Direction::Rx,
        QueueType::Tx => Direction::Tx,
    };
    let xsk = attributes.get_xsk().ok().map(|_| QueueHolder::Xsk);
    let io_uring = attributes.get_io_uring().ok().map(|_| QueueHolder::IoUring);
    let dmabuf = attributes.get_dmabuf().ok().map(QueueHolder::Dmabuf);
    let lease = attributes.get_lease().ok().map(|lease| QueueHolder::Lease {
        ifindex: lease.get_ifindex().ok(),
        queue: lease.get_queue().ok().and_then(|queue| queue.get_id().ok()),
        netns_id: lease.get_netns_id().ok(),
    });
    Some(Queue {
        ifindex: attributes.get_ifindex().ok()?,
        id: attributes.get_id().ok()?,
        direction,
        napi_id: attributes.get_napi_id().ok(),
        owners: [xsk, io_uring, dmabuf, lease].into_iter().flatten().collect(),
    })
}

fn napi(attributes: &IterableNapi<'_>) -> Option<Napi> {
    Some(Napi {
        ifindex: attributes.get_ifindex().ok()?,
        id: attributes.get_id().ok()?,
        irq: attributes.get_irq().ok(),
        pid: attributes.get_pid().ok(),
        defer_hard_irqs: attributes.get_defer_hard_irqs().ok(),
        gro_flush_timeout_nsecs: attributes.get_gro_flush_timeout().ok().map(u64::from),
        irq_suspend_timeout_nsecs: attributes.get_irq_suspend_timeout().ok().map(u64::from),
        threaded: attributes.get_threaded().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes an attribute: length, type, value. The values here are multiples of 4 bytes and need
    /// no padding.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (value.len() as u16 + 4).to_ne_bytes();
        [&len[..], &kind.to_ne_bytes()[..], value].concat()
    }

    fn number(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_ne_bytes())
    }

    #[test]
    fn a_leased_queue_is_not_the_kernels_own() {
        let lease = [number(1, 7), attribute(2, &[number(1, 3), number(2, 0)].concat())].concat();
        let bytes = [number(1, 5), number(2, 4), number(3, 0), attribute(8, &lease)].concat();
        let leased = queue(&netlink_bindings::netdev::Queue::new(&bytes)).unwrap();
        let owner = QueueHolder::Lease { ifindex: Some(7), queue: Some(3), netns_id: None };
        assert_eq!((leased.id, leased.direction, leased.napi_id), (5, Direction::Rx, None));
        assert_eq!(leased.owners, [owner]);
    }

    #[test]
    fn a_napi_without_irq_has_none() {
        let bytes = [number(1, 2), number(2, 8193), number(6, 20_000)].concat();
        let parsed = napi(&netlink_bindings::netdev::Napi::new(&bytes)).unwrap();
        assert_eq!((parsed.ifindex, parsed.id, parsed.irq), (2, 8193, None));
        assert_eq!(parsed.gro_flush_timeout_nsecs, Some(20_000));
    }

    #[test]
    fn this_kernel_answers_or_is_too_old() {
        match read().unwrap() {
            Reading::Value(parsed) => assert!(parsed.napis.iter().all(|napi| napi.id > 0)),
            Reading::Absent(reason) => assert_eq!(reason, TOO_OLD),
        }
    }
}
