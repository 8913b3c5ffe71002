//! The protocol counters that count losses, with the names of `nstat`.

use crate::drivers::loss_stage::LossStage;
use crate::snapshot::subject::ProtocolPart;

/// Protocol counters: name, stage, subject, and the reason if it is not a loss. Counters of one
/// subject overlap, so the ledger takes the largest.
pub const PROTOCOLS: &[(&str, LossStage, ProtocolPart, &str)] = &[
    ("IpInDiscards", LossStage::Protocol, ProtocolPart::Ipv4, ""),
    ("IpInHdrErrors", LossStage::Protocol, ProtocolPart::Ipv4Headers, ""),
    ("IpReasmFails", LossStage::Protocol, ProtocolPart::Ipv4Fragments, ""),
    ("Ip6InDiscards", LossStage::Protocol, ProtocolPart::Ipv6, ""),
    ("Ip6InHdrErrors", LossStage::Protocol, ProtocolPart::Ipv6Headers, ""),
    ("Ip6ReasmFails", LossStage::Protocol, ProtocolPart::Ipv6Fragments, ""),
    ("UdpInCsumErrors", LossStage::Protocol, ProtocolPart::UdpChecksums, ""),
    ("TcpInCsumErrors", LossStage::Protocol, ProtocolPart::TcpChecksums, ""),
    ("TcpExtPFMemallocDrop", LossStage::Protocol, ProtocolPart::MemoryReserve, ""),
    ("IpExtInNoRoutes", LossStage::Protocol, ProtocolPart::Ipv4Routes, ""),
    ("Ip6InNoRoutes", LossStage::Protocol, ProtocolPart::Ipv6Routes, ""),
    ("IpExtInTruncatedPkts", LossStage::Protocol, ProtocolPart::Ipv4, ""),
    ("Ip6InTruncatedPkts", LossStage::Protocol, ProtocolPart::Ipv6, ""),
    ("SctpInPktDiscards", LossStage::Protocol, ProtocolPart::Sctp, ""),
    ("XfrmInError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInBufferError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInNoStates", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInStateProtoError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInStateSeqError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    (
        "XfrmInPolBlock",
        LossStage::Protocol,
        ProtocolPart::Ipsec,
        "rejected by a rule, not dropped because of a full queue",
    ),
    (
        "TcpExtIPReversePathFilter",
        LossStage::Protocol,
        ProtocolPart::RpFilter,
        "rejected by a rule, not dropped because of a full queue",
    ),
    ("UdpNoPorts", LossStage::Protocol, ProtocolPart::Udp, "no socket listens on the port"),
    ("TcpExtListenOverflows", LossStage::Listen, ProtocolPart::Tcp, ""),
    ("TcpExtListenDrops", LossStage::Listen, ProtocolPart::Tcp, ""),
    ("TcpExtTCPReqQFullDrop", LossStage::Listen, ProtocolPart::TcpRequests, "part of ListenDrops"),
    ("UdpRcvbufErrors", LossStage::Socket, ProtocolPart::Udp, ""),
    ("Udp6RcvbufErrors", LossStage::Socket, ProtocolPart::Udp6, ""),
    ("UdpMemErrors", LossStage::Socket, ProtocolPart::UdpMemory, ""),
    ("TcpExtTCPBacklogDrop", LossStage::Socket, ProtocolPart::TcpBacklog, ""),
    ("TcpExtTCPRcvQDrop", LossStage::Socket, ProtocolPart::Tcp, ""),
    ("TcpExtRcvPruned", LossStage::Socket, ProtocolPart::Tcp, ""),
    ("TcpExtTCPOFODrop", LossStage::Socket, ProtocolPart::TcpOutOfOrder, ""),
    (
        "TcpExtPruneCalled",
        LossStage::Socket,
        ProtocolPart::Tcp,
        "memory was reclaimed from the buffer",
    ),
];

/// Counters of a full SYN queue that still answers.
const COOKIES: [&str; 4] = [
    "TcpExtTCPReqQFullDoCookies",
    "TcpExtSyncookiesSent",
    "TcpExtSyncookiesRecv",
    "TcpExtSyncookiesFailed",
];

/// Whether a counter is of use where only losses are looked for.
pub fn is_of_losses(counter: &str) -> bool {
    PROTOCOLS.iter().any(|(name, ..)| *name == counter) || COOKIES.contains(&counter)
}
