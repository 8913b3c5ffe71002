//! Receives through `io_uring`, one request at a time.

use crate::exact::received::ReceivedSocket;
use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, types};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

pub(crate) fn receive(
    stream: &TcpStream,
    buffer: &mut [u8],
    counts: &mut ReceivedSocket,
) -> Result<()> {
    let mut ring =
        IoUring::new(2).context("io_uring is unavailable (kernel.io_uring_disabled?)")?;
    while counts.count_read(recv(&mut ring, stream, buffer)?) {}
    Ok(())
}

#[allow(unsafe_code)]
fn recv(ring: &mut IoUring, stream: &TcpStream, buffer: &mut [u8]) -> Result<usize> {
    let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let entry =
        opcode::Recv::new(types::Fd(stream.as_raw_fd()), buffer.as_mut_ptr(), length).build();
    // SAFETY: `buffer` and `stream` outlive the request: this function waits for its completion.
    unsafe { ring.submission().push(&entry) }.context("the io_uring is full")?;
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().context("io_uring returned without a completion")?;
    match usize::try_from(done.result()) {
        Ok(length) => Ok(length),
        Err(_) => Err(std::io::Error::from_raw_os_error(-done.result()))
            .context("cannot receive by io_uring"),
    }
}
