//! Reads data about packets of another process's socket, or the namespace of its tap. `pidfd_getfd`
//! borrows the descriptor; socket options or a request give the data.
//!
//! Needs permission to trace that process (root). The borrowed socket is closed at once.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use netsilo_model::derive::sock_diag::Incoming;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::NapiId;
use rustix::io::Errno;
use rustix::net::sockopt::{socket_cookie, socket_incoming_cpu};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// A process whose sockets are borrowed.
pub(crate) struct Process(OwnedFd);

impl Process {
    /// Opens a process by its thread group id.
    pub(crate) fn open(tgid: u32) -> Result<Self, Errno> {
        let pid = i32::try_from(tgid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        pidfd_open(pid, PidfdFlags::empty()).map(Process)
    }

    /// Queries its socket `fd`, if that is still the socket with this cookie.
    pub(crate) fn incoming(&self, fd: i32, cookie: u64) -> Result<Option<Incoming>, Errno> {
        let socket = pidfd_getfd(&self.0, fd, PidfdGetfdFlags::empty())?;
        if socket_cookie(&socket)? != cookie {
            return Ok(None);
        }
        let napi = socket_option(&socket, libc::SO_INCOMING_NAPI_ID)?;
        let cpu = socket_incoming_cpu(&socket)?;
        Ok(Some(Incoming {
            // 0: no packet came through a NAPI (sk_getsockopt hides ids up to the number of CPUs)
            napi: (napi != 0).then_some(NapiId(napi)),
            // -1 before the first packet
            cpu: i32::try_from(cpu).ok().map(|_| CpuId(cpu)),
        }))
    }

    /// The size of the receive buffer of its socket `fd`, and whether the process has set it
    /// (`None` before 5.14).
    pub(crate) fn receive_buffer(&self, fd: i32) -> Result<(u32, Option<bool>), Errno> {
        let socket = pidfd_getfd(&self.0, fd, PidfdGetfdFlags::empty())?;
        let bytes = socket_option(&socket, libc::SO_RCVBUF)?;
        let locks = socket_option(&socket, libc::SO_BUF_LOCK).ok();
        Ok((bytes, locks.map(|locks| locks & SOCK_RCVBUF_LOCK != 0)))
    }

    /// The inode number of the network namespace that has the tun or tap of its descriptor `fd`
    /// (`TUNGETDEVNETNS`, 5.2).
    #[allow(unsafe_code)]
    pub(crate) fn netns_of_tun(&self, fd: i32) -> Result<u32, Errno> {
        let tun = pidfd_getfd(&self.0, fd, PidfdGetfdFlags::empty())?;
        // SAFETY: the request has no argument.
        let namespace = unsafe { libc::ioctl(tun.as_raw_fd(), TUNGETDEVNETNS) };
        if namespace < 0 {
            return Err(Errno::from_raw_os_error(errno()));
        }
        // SAFETY: the kernel has just opened it for this process.
        let namespace = unsafe { OwnedFd::from_raw_fd(namespace) };
        u32::try_from(rustix::fs::fstat(&namespace)?.st_ino).map_err(|_| Errno::OVERFLOW)
    }
}

/// `include/uapi/linux/if_tun.h`: `_IO('T', 227)`.
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// `include/uapi/linux/socket.h`
const SOCK_RCVBUF_LOCK: u32 = 2;

/// A socket option of one word, which rustix 1.1 lacks: `SO_INCOMING_NAPI_ID`, `SO_BUF_LOCK`.
#[allow(unsafe_code)]
fn socket_option(socket: &OwnedFd, option: i32) -> Result<u32, Errno> {
    let mut value: u32 = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: `value` and `len` live through the call, and `len` is the size of `value`.
    let status = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    if status == 0 { Ok(value) } else { Err(Errno::from_raw_os_error(errno())) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
