//! [`FindingId`]: the ids of all findings, each with its page in `docs/findings/`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::selection::nearest;

/// Declares the findings by family, each with its id on the command line.
///
/// The page of a finding is `docs/findings/<id>.md`.
macro_rules! finding_ids {
    ($($family:literal { $($variant:ident = $name:literal;)* })*) => {
        /// The id of a finding. `netsilo explain ID` explains it.
        #[allow(missing_docs, reason = "the page of each id explains it")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum FindingId {
            $($(#[serde(rename = $name)] $variant,)*)*
        }

        impl FindingId {
            /// The ids of each family, with its name.
            pub const BY_FAMILY: &[(&str, &[Self])] = &[$(($family, &[$(Self::$variant,)*]),)*];

            /// All ids, in the order of their families.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// The id as it is typed and printed.
            pub fn as_str(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// The page of the finding, in Markdown.
            pub fn page(self) -> &'static str {
                match self { $($(Self::$variant => include_str!(
                    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings/", $name, ".md")
                ),)*)* }
            }
        }
    };
}

finding_ids! {
    "Placement" {
        FarFromConsumers = "far-from-consumers";
        PlacedWell = "placed-well";
        TapReaderWaits = "tap-reader-waits";
    }
    "Softirqs" {
        SoftirqOneCpu = "softirq-one-cpu";
        SoftirqCalm = "softirq-calm";
        KsoftirqdBusy = "ksoftirqd-busy";
        NetfilterHeavy = "netfilter-heavy";
        DmaMappingHeavy = "dma-mapping-heavy";
        StolenTime = "stolen-time";
        IrqNotWhereAsked = "irq-not-where-asked";
        IrqMapDisagrees = "irq-map-disagrees";
        QueuesShareCore = "queues-share-core";
        ReceiveOnIsolatedCpu = "receive-on-isolated-cpu";
        RpsToItself = "rps-to-itself";
        RfsHalfOn = "rfs-half-on";
        IpiShare = "ipi-share";
        SoftirqTimeMisread = "softirq-time-misread";
    }
    "Loss" {
        NicDrops = "nic-drops";
        BacklogOverflow = "backlog-overflow";
        FlowLimitDrops = "flow-limit-drops";
        BudgetSqueeze = "budget-squeeze";
        PacketsDropped = "packets-dropped";
        ProtocolDrops = "protocol-drops";
        ListenOverflow = "listen-overflow";
        SocketBufferOverflow = "socket-buffer-overflow";
        ThrottledReader = "throttled-reader";
        ReuseportOneSocket = "reuseport-one-socket";
        NothingLost = "nothing-lost";
    }
    "RSS" {
        UdpOneQueue = "udp-one-queue";
        RssAsymmetric = "rss-asymmetric";
        RssTableIgnored = "rss-table-ignored";
        RssTableSkew = "rss-table-skew";
        RssElephant = "rss-elephant";
        TunnelOneQueue = "tunnel-one-queue";
    }
    "Hardware" {
        PcieLinkNarrow = "pcie-link-narrow";
        ReadersOnAnotherNode = "readers-on-another-node";
        MtuSmall = "mtu-small";
        MtuUnused = "mtu-unused";
        FrequencyLow = "frequency-low";
        DeepIdle = "deep-idle";
        MemoryBandwidth = "memory-bandwidth";
        HardwareFits = "hardware-fits";
    }
    "Offloads" {
        LroForwarding = "lro-forwarding";
        GroOff = "gro-off";
        SegmentationOff = "segmentation-off";
        ChecksumOff = "checksum-off";
        OffloadsFit = "offloads-fit";
    }
    "Transmit" {
        QdiscDrops = "qdisc-drops";
        QdiscRequeues = "qdisc-requeues";
        QdiscOneLock = "qdisc-one-lock";
        TxTimeouts = "tx-timeouts";
        TxStalled = "tx-stalled";
        TxRingStops = "tx-ring-stops";
        TxOneQueue = "tx-one-queue";
        XpsGaps = "xps-gaps";
        CompletionsFar = "completions-far";
        TransmitFlows = "transmit-flows";
    }
    "Tuning" {
        ReceiveBufferSmall = "receive-buffer-small";
        SendBufferSmall = "send-buffer-small";
        PeerWindowSmall = "peer-window-small";
        SeveralWriters = "several-writers";
        ContainersOnOneCpu = "containers-on-one-cpu";
        TuningFits = "tuning-fits";
    }
    "Cloud" {
        CloudAllowance = "cloud-allowance";
        VirtioOneQueue = "virtio-one-queue";
        NetvscWithoutVf = "netvsc-without-vf";
        CloudLimitsFree = "cloud-limits-free";
    }
    "Polling" {
        BusyPollNoRoom = "busy-poll-no-room";
        DeferralHalfOn = "deferral-half-on";
    }
    "Remedies" {
        RpsWouldHelp = "rps-would-help";
        RpsHurts = "rps-hurts";
        RpsWouldHurt = "rps-would-hurt";
        RfsUseless = "rfs-useless";
        MoreQueues = "more-queues";
        FewerInterrupts = "fewer-interrupts";
        ThreadedWouldHelp = "threaded-would-help";
        ArfsWouldHelp = "arfs-would-help";
    }
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the id of a finding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no finding is called {0:?}{meant}: netsilo explain lists all findings", meant = meant(.0))]
pub struct UnknownFinding(String);

impl UnknownFinding {
    /// The error for a text that is neither an id nor an id with a subject.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The finding that may have been meant.
fn meant(text: &str) -> String {
    let id = text.split_once(':').map_or(text, |(id, _)| id);
    let known: Vec<&str> = FindingId::ALL.iter().map(|id| id.as_str()).collect();
    nearest(id, &known).map_or_else(String::new, |id| format!(" (did you mean {id}?)"))
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
    fn every_page_starts_with_its_id() {
        for id in FindingId::ALL {
            assert!(id.page().starts_with(&format!("# {id}\n\n")), "{id}: another title");
        }
    }

    #[test]
    fn every_id_is_the_name_of_its_variant() {
        for id in FindingId::ALL {
            let variant = id.as_str().split('-').map(|word| word[..1].to_uppercase() + &word[1..]);
            assert_eq!(variant.collect::<String>(), format!("{id:?}"));
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
