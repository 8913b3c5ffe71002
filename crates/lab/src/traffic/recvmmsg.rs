//! Receives several datagrams in one call; none of the project's crates offers this.

use anyhow::{Context, Result};
use rustix::io::Errno;
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

const BATCH: usize = 16;
const DATAGRAM_BYTES: usize = 65536;

/// Receives up to 16 datagrams; returns length and IPv4 sender of each, none after the socket's
/// timeout.
#[allow(unsafe_code)]
pub(crate) fn receive(socket: &UdpSocket) -> Result<Vec<(usize, SocketAddr)>> {
    let mut buffers = vec![0_u8; BATCH * DATAGRAM_BYTES];
    // SAFETY: all-zero is a valid value of these C structures.
    let (mut senders, mut vectors, mut messages) = unsafe {
        (
            [zeroed::<libc::sockaddr_in>(); BATCH],
            [zeroed::<libc::iovec>(); BATCH],
            [zeroed::<libc::mmsghdr>(); BATCH],
        )
    };
    for (index, buffer) in buffers.chunks_mut(DATAGRAM_BYTES).enumerate() {
        vectors[index] =
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let header = &mut messages[index].msg_hdr;
        header.msg_iov = &raw mut vectors[index];
        header.msg_iovlen = 1;
        header.msg_name = (&raw mut senders[index]).cast();
        header.msg_namelen = libc::socklen_t::try_from(size_of::<libc::sockaddr_in>())?;
    }
    // SAFETY: each header points to a live buffer, vector and address of the sizes it states.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            libc::c_uint::try_from(BATCH)?,
            libc::MSG_WAITFORONE,
            std::ptr::null_mut(),
        )
    };
    let Ok(received) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::INTR) => Ok(Vec::new()),
            _ => Err(error).context("recvmmsg failed"),
        };
    };
    let taken = messages.iter().zip(&senders).take(received);
    Ok(taken
        .map(|(message, sender)| {
            let address = Ipv4Addr::from(u32::from_be(sender.sin_addr.s_addr));
            (message.msg_len as usize, SocketAddr::from((address, u16::from_be(sender.sin_port))))
        })
        .collect())
}
