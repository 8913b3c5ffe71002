//! Streams without copying to the kernel: `MSG_ZEROCOPY` and the kernel's completion notifications.
//!
//! Until a send is completed, its buffer must not change (ours never does). Pending notifications
//! use the socket's option memory (`net.core.optmem_max`) and the process's locked memory, so the
//! number of outstanding sends is limited.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netsilo_trial::traffic::Spec;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::shared_counters::add;
use crate::socket::{PATIENCE, Poll, STOP_CHECK_INTERVAL, Socket};
use crate::stream::Pace;
use crate::tally::Tally;

/// Maximum number of sends of one socket without a notification. The kernel's own limit is about
/// 200 if `optmem_max` is 128 KiB.
const OUTSTANDING: u64 = 1024;

/// Maximum number of sends of one socket before other sockets are served.
const BURST: usize = 16;

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of `linux/errqueue.h`.
const ORIGIN: u8 = 5;
const COPIED: u8 = 1;

/// Sends on one or more sockets from one thread.
pub(super) fn stream(sockets: Vec<Socket>, spec: &Spec, tally: &Tally<'_>) -> io::Result<()> {
    let buffer = vec![0; spec.send_bytes];
    let mut notifications = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let mut pace =
        spec.rate_per_s.map(|rate| Pace::new(rate * sockets.len() as f64 / spec.instances as f64));
    let mut poll = Poll::new()?;
    let flow = |socket| Flow { socket, offset: 0, outstanding: 0, waits: false };
    let mut flows: Vec<Flow> = sockets.into_iter().map(flow).collect();
    for (key, flow) in flows.iter().enumerate() {
        flow.begin()?;
        poll.add(&flow.socket, key, EventFlags::OUT)?;
    }
    let mut last_sent = Instant::now();
    while !tally.is_stopped() {
        let ready: Vec<usize> = poll.wait()?.collect();
        for key in ready {
            let Some(flow) = flows.get_mut(key) else { continue };
            flow.read_completions(&mut notifications, tally)?;
            let after = flow.burst(&buffer, &mut pace, &mut last_sent, tally)?;
            // an empty event set still wakes for the error queue
            let waits = after == Next::Completions && flow.outstanding > 0;
            if waits != flow.waits {
                flow.waits = waits;
                let flags = if waits { EventFlags::empty() } else { EventFlags::OUT };
                poll.change(flow.socket.as_fd(), key, flags)?;
            }
            if after == Next::Completions && !waits {
                no_room(last_sent, spec.send_bytes)?;
            }
        }
    }
    flows.iter_mut().try_for_each(|flow| flow.end(&mut notifications, tally))
}

/// Fails if no send has succeeded for [`PATIENCE`].
///
/// The locked memory may belong to another socket or process, whose completions are not visible
/// here. So wait for some time.
fn no_room(last_sent: Instant, bytes: usize) -> io::Result<()> {
    if last_sent.elapsed() > PATIENCE {
        return Err(io::Error::other(format!(
            "the kernel refuses a zero-copy send of {bytes} bytes: raise net.core.optmem_max or \
             the limit of locked memory (ulimit -l), or use smaller sends"
        )));
    }
    sleep(Duration::from_millis(1));
    Ok(())
}

/// The next step for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It can send more.
    Send,
    /// It waits for room in the send buffer.
    Room,
    /// It waits for notifications, to free memory for new ones.
    Completions,
}

/// A socket, its offset in the buffer, and its number of sends without a notification.
struct Flow {
    socket: Socket,
    offset: usize,
    outstanding: u64,
    /// Waits for notifications only.
    waits: bool,
}

impl Flow {
    fn begin(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.set_nonblocking(true)?,
            Socket::Udp(socket) => socket.set_nonblocking(true)?,
        }
        allow(&self.socket)
    }

    /// Sends until the socket has to wait, or [`BURST`] is reached.
    fn burst(
        &mut self,
        buffer: &[u8],
        pace: &mut Option<Pace>,
        last_sent: &mut Instant,
        tally: &Tally<'_>,
    ) -> io::Result<Next> {
        for _ in 0..BURST {
            let next = self.send(buffer, tally)?;
            if next != Next::Send || tally.is_stopped() {
                return Ok(next);
            }
            *last_sent = Instant::now();
            if let Some(pace) = pace {
                pace.keep();
            }
        }
        Ok(Next::Send)
    }

    fn send(&mut self, buffer: &[u8], tally: &Tally<'_>) -> io::Result<Next> {
        if self.outstanding >= OUTSTANDING {
            return Ok(Next::Completions);
        }
        let flags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32) | SendFlags::NOSIGNAL;
        match send(&self.socket, &buffer[self.offset..], flags) {
            Ok(bytes) => {
                self.outstanding += 1;
                tally.sent(bytes);
                add(&tally.row.zerocopy_sends, 1);
                match self.socket {
                    Socket::Tcp(_) => self.offset = (self.offset + bytes) % buffer.len(),
                    Socket::Udp(_) => add(&tally.row.datagrams_sent, 1),
                }
                Ok(Next::Send)
            }
            Err(Errno::NOBUFS) => Ok(Next::Completions),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Next::Room),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all queued notifications.
    fn read_completions(&mut self, notifications: &mut [u8], tally: &Tally<'_>) -> io::Result<()> {
        loop {
            match recvmsg::<()>(
                self.socket.as_fd().as_raw_fd(),
                &mut [],
                Some(&mut *notifications),
                MsgFlags::MSG_ERRQUEUE,
            ) {
                Ok(message) => {
                    for (sends, copied) in message.cmsgs()?.filter_map(done) {
                        self.outstanding = self.outstanding.saturating_sub(sends);
                        add(&tally.row.zerocopy_completed, sends as usize);
                        add(&tally.row.zerocopy_copied, if copied { sends as usize } else { 0 });
                    }
                }
                Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends sending and waits for the pending notifications, up to [`PATIENCE`].
    fn end(&mut self, notifications: &mut [u8], tally: &Tally<'_>) -> io::Result<()> {
        if let Socket::Tcp(stream) = &self.socket {
            stream.shutdown(Shutdown::Write)?;
        }
        let until = Instant::now() + PATIENCE;
        self.read_completions(notifications, tally)?;
        while self.outstanding > 0 && Instant::now() < until {
            match poll(
                &mut [PollFd::new(&self.socket, PollFlags::empty())],
                Some(&STOP_CHECK_INTERVAL),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.read_completions(notifications, tally)?;
        }
        Ok(())
    }
}

/// The number of completed sends in a notification, and whether the kernel copied them anyway.
///
/// Sends are numbered, and one notification covers a range (`__msg_zerocopy_callback`).
fn done(notification: ControlMessageOwned) -> Option<(u64, bool)> {
    let (ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _)) =
        notification
    else {
        return None;
    };
    let sends = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
    (error.ee_origin == ORIGIN).then_some((sends, error.ee_code & COPIED != 0))
}

/// Enables zero copy. Without it the send flag is ignored.
fn allow(socket: &impl AsFd) -> io::Result<()> {
    let (fd, on) = (socket.as_fd().as_raw_fd(), 1_i32);
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the kernel reads the four bytes of `on` and keeps no reference to them.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), length)
    };
    if result == 0 {
        return Ok(());
    }
    let why = io::Error::last_os_error();
    Err(io::Error::new(
        why.kind(),
        format!("the kernel does not support zero-copy sends (TCP from 4.14, UDP from 5.0): {why}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(first: u32, last: u32, origin: u8, code: u8) -> Option<(u64, bool)> {
        let error = libc::sock_extended_err {
            ee_errno: 0,
            ee_origin: origin,
            ee_type: 0,
            ee_code: code,
            ee_pad: 0,
            ee_info: first,
            ee_data: last,
        };
        done(ControlMessageOwned::Ipv4RecvErr(error, None))
    }

    #[test]
    fn a_notification_has_the_first_and_last_send_number_which_wraps() {
        assert_eq!(completed(7, 7, ORIGIN, 0), Some((1, false)));
        assert_eq!(completed(7, 9, ORIGIN, COPIED), Some((3, true)));
        assert_eq!(completed(u32::MAX, 1, ORIGIN, 0), Some((3, false)));
        assert_eq!(completed(7, 9, libc::SO_EE_ORIGIN_ICMP, 3), None);
    }
}
