//! The request for TCP sockets of both families at once.
//!
//! The kernel walks its whole table of connections for each dump, which costs 2 ms where the table
//! has 262,144 rows. `SOCK_DIAG_BY_FAMILY` walks once per family; the older `TCPDIAG_GETSOCK`
//! ignores the family (`net/ipv4/inet_diag.c:inet_diag_dump_compat`).

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg, OpTcpDiagDump, TcpState};
use netlink_bindings::traits::{NetlinkRequest, Protocol};

/// `NETLINK_SOCK_DIAG`.
const SOCK_DIAG: u16 = 4;
/// `TCPDIAG_GETSOCK` of `include/uapi/linux/inet_diag.h`.
const GETSOCK: u16 = 18;
/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;
/// Length of `struct inet_diag_req`, and the offsets of its `idiag_ext` and `idiag_states`.
const LENGTH: usize = 60;
const EXT: usize = 3;
const STATES: usize = 52;

/// A dump of the TCP sockets in some states.
pub(crate) struct TcpDump {
    payload: [u8; LENGTH],
}

impl TcpDump {
    /// Requests these extensions, one bit per attribute from bit 0.
    pub(crate) fn new(extensions: u8, states: &[TcpState]) -> Self {
        let mut payload = [0; LENGTH];
        payload[EXT] = extensions;
        let states: u32 = states.iter().fold(0, |states, state| states | 1 << *state as u32);
        payload[STATES..STATES + 4].copy_from_slice(&states.to_ne_bytes());
        Self { payload }
    }
}

impl NetlinkRequest for TcpDump {
    type ReplyType<'buf> = (Msg, IterableReplyAttrs<'buf>);

    fn protocol(&self) -> Protocol {
        Protocol::Raw { protonum: SOCK_DIAG, request_type: GETSOCK }
    }

    fn flags(&self) -> u16 {
        DUMP
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn decode_reply(buf: &[u8]) -> Self::ReplyType<'_> {
        <OpTcpDiagDump<'_> as NetlinkRequest>::decode_reply(buf)
    }
}
