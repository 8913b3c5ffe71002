//! `TCP_ZEROCOPY_RECEIVE`: whole pages are mapped, other bytes are copied.

use crate::exact::received::ReceivedSocket;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};

/// Size of the address range into which pages are mapped, in bytes.
const WINDOW_BYTES: usize = 1 << 20;
/// Value from `include/uapi/linux/tcp.h`.
const TCP_ZEROCOPY_RECEIVE: libc::c_int = 35;

/// `struct tcp_zerocopy_receive` as in 4.18; newer kernels accept the short form.
#[repr(C)]
#[derive(Debug, Default)]
struct Request {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
}

pub(crate) fn receive(
    stream: &TcpStream,
    buffer: &mut [u8],
    counts: &mut ReceivedSocket,
) -> Result<()> {
    let window = Mapping::new(stream)?;
    let mut stream = stream;
    loop {
        poll(&mut [PollFd::new(&stream, PollFlags::IN)], None)?;
        let (mapped, mut to_copy) = window.receive(stream)?;
        counts.mapped_bytes += mapped as u64;
        counts.count_read(mapped);
        if mapped == 0 && to_copy == 0 {
            // The kernel mapped nothing: end of stream, or too few bytes to map.
            to_copy = buffer.len();
        }
        while to_copy > 0 {
            let wanted = to_copy.min(buffer.len());
            let taken = stream.read(&mut buffer[..wanted])?;
            if !counts.count_read(taken) {
                return Ok(());
            }
            // After a short read there may be whole pages to map again.
            to_copy = if taken < wanted { 0 } else { to_copy - taken };
        }
    }
}

/// An address range that belongs to a socket.
struct Mapping(*mut c_void);

#[allow(unsafe_code)]
impl Mapping {
    fn new(stream: impl AsFd) -> Result<Self> {
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap(null, WINDOW_BYTES, ProtFlags::READ, MapFlags::SHARED, stream, 0) };
        Ok(Self(address.context("cannot map a socket")?))
    }

    /// Returns bytes mapped, and bytes that must be read before more can be mapped.
    fn receive(&self, stream: &TcpStream) -> Result<(usize, usize)> {
        let mut request = Request {
            address: self.0 as u64,
            length: u32::try_from(WINDOW_BYTES)?,
            recv_skip_hint: 0,
        };
        let mut size = libc::socklen_t::try_from(size_of::<Request>())?;
        // SAFETY: `request` is the structure of this option and `size` its size; the pages it maps
        // into the window replace earlier ones, and no reference into the window exists.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_ZEROCOPY_RECEIVE,
                (&raw mut request).cast(),
                &raw mut size,
            )
        };
        if failed != 0 {
            let error = io::Error::last_os_error();
            // The peer of a listener's socket has closed: read() will report the end.
            if error.raw_os_error() == Some(libc::EIO) {
                return Ok((0, 0));
            }
            return Err(error).context("TCP_ZEROCOPY_RECEIVE failed");
        }
        Ok((usize::try_from(request.length)?, usize::try_from(request.recv_skip_hint)?))
    }
}

#[allow(unsafe_code)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is our own, and no reference into it exists.
        let _ = unsafe { munmap(self.0, WINDOW_BYTES) };
    }
}
