//! [`FindingId`]: the ids of all findings, each with its page in `docs/findings/`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Declares the findings, each with its id on the command line, in the order of their families.
///
/// The page of a finding is `docs/findings/<id>.md`.
macro_rules! finding_ids {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// The id of a finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum FindingId {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl FindingId {
            /// All ids, in the order of their families.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The id as it is typed and printed.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The page of the finding, in Markdown.
            pub fn page(self) -> &'static str {
                match self { $(Self::$variant => include_str!(
                    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings/", $name, ".md")
                ),)* }
            }
        }
    };
}

finding_ids! {
    // placement
    /// A queue's data is read far from where its packets are processed, and the cost model
    /// estimates a lower cost for another CPU.
    FarFromConsumers = "far-from-consumers";
    /// The cost model finds no better place for receive work.
    PlacedWell = "placed-well";
    // softirq
    /// One CPU is overloaded by receive work while others are idle.
    SoftirqOneCpu = "softirq-one-cpu";
    /// No CPU is overloaded by receive work.
    SoftirqCalm = "softirq-calm";
    /// ksoftirqd runs or waits for at least 10% of the time: softirq work is late.
    KsoftirqdBusy = "ksoftirqd-busy";
    /// A queue's interrupt arrives on CPUs outside its requested affinity.
    IrqNotWhereAsked = "irq-not-where-asked";
    /// Several busy queues are polled on one core while other cores poll none.
    QueuesShareCore = "queues-share-core";
    /// Receive work runs on an isolated or tickless CPU.
    ReceiveOnIsolatedCpu = "receive-on-isolated-cpu";
    /// RPS steers packets to the CPU that already polls them.
    RpsToItself = "rps-to-itself";
    /// Only one of the two tables that RFS needs is configured.
    RfsHalfOn = "rfs-half-on";
    /// Inter-processor interrupts take at least 5% of a CPU's time.
    IpiShare = "ipi-share";
    /// Clock tick accounting and measurement disagree on a CPU's interrupt time.
    SoftirqTimeMisread = "softirq-time-misread";
    // loss
    /// A NIC or its receive ring was full and dropped packets.
    NicDrops = "nic-drops";
    /// The backlog of a CPU was full.
    BacklogOverflow = "backlog-overflow";
    /// The flow limit dropped packets of one flow that filled the backlog.
    FlowLimitDrops = "flow-limit-drops";
    /// NET_RX stops with work left, and packets are lost or the CPU has no idle time.
    BudgetSqueeze = "budget-squeeze";
    /// IP, fragment reassembly or checksum validation dropped packets.
    ProtocolDrops = "protocol-drops";
    /// The queue of a listening socket was full.
    ListenOverflow = "listen-overflow";
    /// The buffer of a socket was full.
    SocketBufferOverflow = "socket-buffer-overflow";
    /// No stage lost anything.
    NothingLost = "nothing-lost";
    // rss
    /// UDP flows share one queue because ports are not hashed.
    UdpOneQueue = "udp-one-queue";
    /// The two directions of forwarded connections are processed on different CPUs.
    RssAsymmetric = "rss-asymmetric";
    // rss_skew
    /// The indirection table loads the queues unevenly; another table would load them evenly.
    RssTableSkew = "rss-table-skew";
    /// One flow exceeds a queue's fair share.
    RssElephant = "rss-elephant";
    // tunnels
    /// The flows inside a tunnel look like one flow to the NIC.
    TunnelOneQueue = "tunnel-one-queue";
    // hardware
    /// A PCIe link carries less than the ports behind it can receive.
    PcieLinkNarrow = "pcie-link-narrow";
    /// A device's data is read on another NUMA node than the device's own.
    ReadersOnAnotherNode = "readers-on-another-node";
    /// Full-sized packets of an MTU of at most 1500 bytes keep a CPU busy.
    MtuSmall = "mtu-small";
    /// The peers do not use the large MTU of a netdev.
    MtuUnused = "mtu-unused";
    /// A CPU that is busy with softirqs runs below its maximum frequency.
    FrequencyLow = "frequency-low";
    /// Interrupts wake CPUs from idle states with a long exit latency.
    DeepIdle = "deep-idle";
    /// Memory traffic, or why it is not known.
    MemoryBandwidth = "memory-bandwidth";
    /// PCIe links, CPU frequency and idle states limit nothing.
    HardwareFits = "hardware-fits";
    // offloads
    /// LRO is on where packets are forwarded or bridged.
    LroForwarding = "lro-forwarding";
    /// GRO is off while TCP arrives in full-sized segments.
    GroOff = "gro-off";
    /// TSO or scatter-gather is off while large packets are sent.
    SegmentationOff = "segmentation-off";
    /// The CPU computes checksums that the device could compute.
    ChecksumOff = "checksum-off";
    /// The offloads suit the traffic.
    OffloadsFit = "offloads-fit";
    // transmit
    /// A queueing discipline drops packets because it is full.
    QdiscDrops = "qdisc-drops";
    /// Packets are often requeued into the discipline.
    QdiscRequeues = "qdisc-requeues";
    /// Several tx queues share one discipline and its lock.
    QdiscOneLock = "qdisc-one-lock";
    /// A tx queue stalled until the transmit watchdog fired.
    TxTimeouts = "tx-timeouts";
    /// A tx queue completed nothing in the interval, although the device holds bytes of it.
    TxStalled = "tx-stalled";
    /// A full tx ring stops its queue.
    TxRingStops = "tx-ring-stops";
    /// XPS leaves CPUs without a queue.
    XpsGaps = "xps-gaps";
    /// Completion interrupts arrive far from the CPUs that send.
    CompletionsFar = "completions-far";
    /// Nothing delays or drops packets on the transmit path.
    TransmitFlows = "transmit-flows";
    // tuning
    /// A receive window is full and its buffer has reached its limit.
    ReceiveBufferSmall = "receive-buffer-small";
    /// A sender waits for space in a buffer that has reached its limit.
    SendBufferSmall = "send-buffer-small";
    /// A sender waits for its peer's receive window.
    PeerWindowSmall = "peer-window-small";
    /// Several programs write the same settings.
    SeveralWriters = "several-writers";
    /// One CPU does the receive work of all containers.
    ContainersOnOneCpu = "containers-on-one-cpu";
    /// No setting of the network stack limits a connection.
    TuningFits = "tuning-fits";
    // cloud
    /// The cloud instance exceeds an allowance.
    CloudAllowance = "cloud-allowance";
    /// The hypervisor offers a virtio device only one queue.
    VirtioOneQueue = "virtio-one-queue";
    /// A netvsc device has no virtual function.
    NetvscWithoutVf = "netvsc-without-vf";
    /// The cloud instance exceeds no allowance.
    CloudLimitsFree = "cloud-limits-free";
    // polling
    /// Readers busy-poll although the CPUs have no idle time.
    BusyPollNoRoom = "busy-poll-no-room";
    /// Interrupts are deferred or suspended without the timer that this needs.
    DeferralHalfOn = "deferral-half-on";
    // remedies
    /// Receive work saturates one CPU, others are idle, and RPS would relieve it.
    RpsWouldHelp = "rps-would-help";
    /// RPS is on and costs more than it relieves.
    RpsHurts = "rps-hurts";
    /// RPS is off, and would cost more than it relieves.
    RpsWouldHurt = "rps-would-hurt";
    /// RFS is on, and nearly all arriving traffic is of a kind that RFS cannot steer.
    RfsUseless = "rfs-useless";
    /// Receive work saturates one CPU, and the device has unused queues.
    MoreQueues = "more-queues";
    /// One CPU is saturated, spends much time on interrupts of few packets each, and the
    /// interrupts can be delayed.
    FewerInterrupts = "fewer-interrupts";
    /// Receive work saturates one CPU, its interrupts cannot be moved, but NAPI kthreads can.
    ThreadedWouldHelp = "threaded-would-help";
    /// Receive work saturates one CPU, its data is read on other CPUs, and the device can steer
    /// flows to them.
    ArfsWouldHelp = "arfs-would-help";
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the id of a finding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no finding is called {0:?}: netsilo explain lists all findings")]
pub struct UnknownFinding(String);

impl UnknownFinding {
    /// For a text that is neither an id nor an id with a subject.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for FindingId {
    type Err = UnknownFinding;

    fn from_str(text: &str) -> Result<Self, UnknownFinding> {
        Self::ALL
            .iter()
            .copied()
            .find(|id| id.as_str() == text)
            .ok_or_else(|| UnknownFinding(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_starts_with_its_id_and_has_all_sections() {
        for id in FindingId::ALL {
            let page = id.page();
            assert!(
                page.starts_with(&format!("# {id}\n")),
                "{id}: the page starts with another title"
            );
            for part in [
                "## Why it matters",
                "## Evidence",
                "## What to do",
                "## When not to",
                "## References",
            ] {
                assert!(page.contains(part), "{id}: {part:?} is missing");
            }
        }
    }

    #[test]
    fn ids_parse_as_they_are_printed_and_unknown_ids_are_errors() {
        for id in FindingId::ALL {
            assert_eq!(id.as_str().parse(), Ok(*id));
            assert_eq!(serde_json::to_value(id).unwrap(), id.as_str());
        }
        assert!("far".parse::<FindingId>().unwrap_err().to_string().contains("\"far\""));
    }
}
