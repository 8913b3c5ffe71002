//! What a receiver has received.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Process id of the receiver.
    pub pid: u32,
    /// Bytes on all sockets.
    pub bytes: u64,
    /// Counts of each socket.
    pub sockets: Vec<ReceivedSocket>,
}

/// One socket that received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedSocket {
    /// Bytes removed from the socket's queue, each counted once.
    pub bytes: u64,
    /// Bytes that were mapped instead of copied. They are included in `bytes`.
    pub mapped_bytes: u64,
    /// `SO_INCOMING_NAPI_ID` at the end: the NAPI instance that delivered last. 0 if none did.
    pub incoming_napi_id: u32,
}

impl ReceivedSocket {
    /// Adds the result of one call. Returns `false` at the end of the stream.
    pub(crate) fn count_read(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        bytes > 0
    }
}

/// Returns `SO_INCOMING_NAPI_ID`, which neither rustix nor nix offers.
#[allow(unsafe_code)]
pub(crate) fn incoming_napi_id(socket: impl AsFd) -> Result<u32> {
    let mut id = 0_u32;
    let mut length = libc::socklen_t::try_from(size_of_val(&id))?;
    // SAFETY: both pointers are to live locals, and `length` is the size of `id`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    };
    ensure!(failed == 0, "SO_INCOMING_NAPI_ID: {}", std::io::Error::last_os_error());
    Ok(id)
}
