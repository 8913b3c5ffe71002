//! What a consumer has received.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::traffic::consume_args::Mode;

/// What was received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Consumed {
    /// How it was received.
    pub mode: Mode,
    /// Process id of the consumer.
    pub pid: u32,
    /// Name of the consumer's process.
    pub comm: String,
    /// Bytes on all sockets.
    pub bytes: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Counts of each socket.
    pub sockets: Vec<ConsumedSocket>,
}

/// One socket that received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumedSocket {
    /// Local port.
    pub local_port: u16,
    /// The sender's port; 0 if there were several senders.
    pub peer_port: u16,
    /// Bytes removed from the socket's queue, each counted once.
    pub bytes: u64,
    /// Calls that returned data.
    pub calls: u64,
    /// Bytes that were mapped instead of copied; included in `bytes`.
    pub mapped_bytes: u64,
    /// `SO_INCOMING_NAPI_ID` at the end.
    pub incoming_napi_id: u32,
    /// `SO_INCOMING_CPU` at the end.
    pub incoming_cpu: Option<u32>,
    /// UDP: bytes by the sender's port.
    pub flows: BTreeMap<u16, u64>,
}

impl ConsumedSocket {
    /// Adds the result of one call; returns `false` at the end of the stream.
    pub(crate) fn count_read(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.calls += u64::from(bytes > 0);
        bytes > 0
    }
}
