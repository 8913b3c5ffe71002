//! Diagnosis: from an observation to [`Finding`]s, each with its evidence, what to do about it, and
//! what that is worth.
//!
//! One file per family under `diagnose/`. A family sees all that was observed ([`Analysis`]) and knows
//! neither files nor knobs beyond the [`Target`](netsilo_model::change::Target)s of its remedies. A finding
//! without evidence is no finding, and a gain that nothing measured bounds is [`Gain::Unknown`].

mod growth;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::rates::rates;
use netsilo_model::derive::silo::silos;
use netsilo_model::snapshot::observation::Observation;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::{Evidence, Remedy};
use crate::judge::ledger::{Ledger, ledger};
use crate::judge::verdict::{Verdict, verdicts};

/// Makes the lists of families and findings: for each family its file and its findings, each with
/// the id that people type. The page of a finding is `docs/findings/<id>.md`.
macro_rules! findings {
    ($($family:ident { $($(#[$doc:meta])* $variant:ident = $name:literal;)* })*) => {
        $(mod $family;)*

        /// What can be found, by id.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum FindingId {
            $($($(#[$doc])* #[serde(rename = $name)] $variant,)*)*
        }

        impl FindingId {
            /// All of them.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// The id that people type.
            pub fn as_str(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// Its page, Markdown.
            pub fn page(self) -> &'static str {
                match self { $($(Self::$variant => include_str!(
                    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings/", $name, ".md")
                ),)*)* }
            }
        }

        /// The families, in the order in which they are asked.
        const FAMILIES: &[fn(&Analysis<'_>) -> Vec<Finding>] = &[$($family::find,)*];
    };
}

findings! {
    placement {
        /// A queue's data is read far from where its packets are processed, and moving its
        /// interrupt would cost less.
        FarFromConsumers = "far-from-consumers";
        /// Receive work is where the cost model wants it.
        PlacedWell = "placed-well";
    }
    softirq {
        /// One CPU is held by receive work, while others idle.
        SoftirqOneCpu = "softirq-one-cpu";
        /// No CPU is held by receive work.
        SoftirqCalm = "softirq-calm";
        /// ksoftirqd runs or waits for a good part of the time: softirq work is late.
        KsoftirqdBusy = "ksoftirqd-busy";
        /// A queue's interrupt comes on CPUs that it was not asked for on.
        IrqNotWhereAsked = "irq-not-where-asked";
        /// Several busy queues are polled on one core, while other cores poll none.
        QueuesShareCore = "queues-share-core";
        /// Receive work runs on an isolated or tickless CPU.
        ReceiveOnIsolatedCpu = "receive-on-isolated-cpu";
        /// RPS hands packets to the CPU that has them already.
        RpsToItself = "rps-to-itself";
        /// Only one of the two tables that RFS needs is there.
        RfsHalfOn = "rfs-half-on";
        /// Inter-processor interrupts take a good part of a CPU.
        IpiShare = "ipi-share";
        /// Clock ticks tell another story of a CPU's interrupt time than the measurement.
        SoftirqTimeMisread = "softirq-time-misread";
    }
    loss {
        /// A NIC, or its receive ring, had no room for packets.
        NicDrops = "nic-drops";
        /// The backlog of a CPU was full.
        BacklogOverflow = "backlog-overflow";
        /// The backlog dropped packets of one flow that filled it.
        FlowLimitDrops = "flow-limit-drops";
        /// NET_RX stops with work left where packets are lost or no time is left.
        BudgetSqueeze = "budget-squeeze";
        /// IP, fragments or checksums threw packets away.
        ProtocolDrops = "protocol-drops";
        /// The queue of a listening socket was full.
        ListenOverflow = "listen-overflow";
        /// The buffer of a socket was full.
        SocketBufferOverflow = "socket-buffer-overflow";
        /// No stage lost anything.
        NothingLost = "nothing-lost";
    }
    rss {
        /// UDP flows share one queue, as ports are not hashed.
        UdpOneQueue = "udp-one-queue";
        /// The two directions of connections that pass here are processed on two CPUs.
        RssAsymmetric = "rss-asymmetric";
    }
    rss_skew {
        /// The indirection table loads the queues unevenly, and another one would not.
        RssTableSkew = "rss-table-skew";
        /// One flow is more than a queue's fair part.
        RssElephant = "rss-elephant";
    }
    tunnels {
        /// Many flows look like one from outside.
        TunnelOneQueue = "tunnel-one-queue";
    }
    hardware {
        /// A PCIe link carries less than the ports behind it can take.
        PcieLinkNarrow = "pcie-link-narrow";
        /// A device's data is read on another node than its own.
        ReadersOnAnotherNode = "readers-on-another-node";
        /// Full packets of the smallest common MTU keep a CPU busy.
        MtuSmall = "mtu-small";
        /// A large MTU that the peers do not use.
        MtuUnused = "mtu-unused";
        /// A CPU that is busy with softirqs runs below its frequency.
        FrequencyLow = "frequency-low";
        /// Interrupts find CPUs in idle states that take long to leave.
        DeepIdle = "deep-idle";
        /// Memory traffic, or why it is not known.
        MemoryBandwidth = "memory-bandwidth";
        /// Links, frequency and idle states leave room.
        HardwareFits = "hardware-fits";
    }
    offloads {
        /// LRO is on where packets are forwarded or bridged.
        LroForwarding = "lro-forwarding";
        /// GRO is off while TCP arrives in bulk.
        GroOff = "gro-off";
        /// TSO or scatter-gather is off while large data is sent.
        SegmentationOff = "segmentation-off";
        /// Checksums are made by the CPU that the device could make.
        ChecksumOff = "checksum-off";
        /// Offloads are as the traffic wants them.
        OffloadsFit = "offloads-fit";
    }
    transmit {
        /// A queueing discipline drops for want of room.
        QdiscDrops = "qdisc-drops";
        /// Packets are put back into the discipline again and again.
        QdiscRequeues = "qdisc-requeues";
        /// Several tx queues go through one discipline.
        QdiscOneLock = "qdisc-one-lock";
        /// A tx queue stood still.
        TxTimeouts = "tx-timeouts";
        /// A full tx ring stops its queue.
        TxRingStops = "tx-ring-stops";
        /// XPS leaves CPUs without a queue.
        XpsGaps = "xps-gaps";
        /// Completion interrupts are far from the CPUs that send.
        CompletionsFar = "completions-far";
        /// Nothing is held up on the way out.
        TransmitFlows = "transmit-flows";
    }
    tuning {
        /// A receive window is full and its buffer may not grow.
        ReceiveBufferSmall = "receive-buffer-small";
        /// A sender waits for room in a buffer that may not grow.
        SendBufferSmall = "send-buffer-small";
        /// A sender waits for its peer's window.
        PeerWindowSmall = "peer-window-small";
        /// Several programs write the same settings.
        SeveralWriters = "several-writers";
        /// One CPU does the receive work of containers.
        ContainersOnOneCpu = "containers-on-one-cpu";
        /// No setting of the stack holds a connection up.
        TuningFits = "tuning-fits";
    }
    cloud {
        /// The instance is over an allowance.
        CloudAllowance = "cloud-allowance";
        /// The hypervisor gave a virtio device one queue.
        VirtioOneQueue = "virtio-one-queue";
        /// A netvsc device without a virtual function.
        NetvscWithoutVf = "netvsc-without-vf";
        /// No allowance of the instance was used up.
        CloudLimitsFree = "cloud-limits-free";
    }
    polling {
        /// Readers busy-poll where CPUs have no idle time.
        BusyPollNoRoom = "busy-poll-no-room";
        /// Interrupts are deferred or suspended without the timer that it takes.
        DeferralHalfOn = "deferral-half-on";
    }
    remedies {
        /// One CPU is full of receive work, others are idle, and RPS would relieve it.
        RpsWouldHelp = "rps-would-help";
        /// RPS is on and costs more than it relieves.
        RpsHurts = "rps-hurts";
        /// RPS is off, and would cost more than it relieves.
        RpsWouldHurt = "rps-would-hurt";
        /// RFS is on, and what arrives cannot be steered by it.
        RfsUseless = "rfs-useless";
        /// One CPU is full of receive work, and the device has queues that are not used.
        MoreQueues = "more-queues";
        /// One CPU is full, much of its time goes into interrupts of few packets each, and they
        /// could wait for each other.
        FewerInterrupts = "fewer-interrupts";
        /// One CPU is full of receive work whose interrupts cannot be moved, and kthreads could be.
        ThreadedWouldHelp = "threaded-would-help";
        /// One CPU is full of receive work that is read elsewhere, and the device could bring it
        /// there.
        ArfsWouldHelp = "arfs-would-help";
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The host's name.
    pub hostname: String,
    /// The kernel's release.
    pub release: String,
    /// Time between the two looks.
    pub interval: Duration,
    /// The findings, the gravest first.
    pub findings: Vec<Finding>,
    /// Where packets were lost on their way.
    #[serde(default)]
    pub ledger: Ledger,
    /// What each remedy would do to each netdev that something arrives on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Verdict>,
    /// Where the distances between CPUs come from that all this is reckoned with, in words.
    #[serde(default)]
    pub distances: String,
}

/// Something that is so, and what may be done about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub id: FindingId,
    /// How grave.
    pub severity: Severity,
    /// What it is about (`eth0`, `cpu3`, `eth0 rx-0`, `machine`).
    pub subject: String,
    /// What is so, in one line.
    pub title: String,
    /// The numbers behind it.
    pub evidence: Vec<Evidence>,
    /// What may be done, the best first; empty where all is well.
    pub remedies: Vec<Remedy>,
}

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Looked at, and well.
    Ok,
    /// A risk or a chance, without a measured cost.
    Info,
    /// It costs, by measurement.
    Warning,
    /// Packets are lost, results are wrong, or a CPU is at its limit.
    Critical,
}

/// Looks for all that can be found in an observation.
pub fn check(observation: &Observation, costs: &Costs) -> Check {
    let rates = rates(&observation.before, &observation.after);
    let silos = silos(observation, &rates);
    let seen = Analysis { observation, rates: &rates, silos: &silos, costs };
    let mut findings: Vec<Finding> = FAMILIES.iter().flat_map(|find| find(&seen)).collect();
    // Stable: what is equally grave stays in the order of the families.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let machine = &observation.after.machine;
    Check {
        hostname: machine.hostname.clone(),
        release: machine.release.clone(),
        interval: rates.elapsed,
        findings,
        ledger: ledger(&seen),
        verdicts: verdicts(&seen),
        distances: costs.source_in_words(),
    }
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No such finding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no finding is called {0:?}: netsilo explain lists them")]
pub struct UnknownFinding(String);

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

impl Severity {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Info, Self::Warning, Self::Critical];

    /// As people type it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_opens_with_its_id_and_has_all_its_parts() {
        for id in FindingId::ALL {
            let page = id.page();
            assert!(
                page.starts_with(&format!("# {id}\n")),
                "{id}: the page opens with another title"
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
    fn an_id_is_read_as_it_is_written_and_anything_else_is_refused() {
        for id in FindingId::ALL {
            assert_eq!(id.as_str().parse(), Ok(*id));
            assert_eq!(serde_json::to_value(id).unwrap(), id.as_str());
        }
        assert!("far".parse::<FindingId>().unwrap_err().to_string().contains("\"far\""));
    }
}
