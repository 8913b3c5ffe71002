//! Verdicts on netdevs without hardware that no NAPI was seen to poll, and whose receive work is
//! not their own: bridges, bonds, VLANs, macvlans, VRFs, and tun devices without `IFF_NAPI`.
//!
//! They follow from where the kernel reads the netdev's settings, not from loads.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::name::has_driver;
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_predict::live::claim::Claim;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};

/// The verdict on a remedy; `None` if the netdev is hardware, is down, receives nothing, or has its
/// own receive work, or if nothing is known of the remedy there.
pub(super) fn verdict(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    remedy: RemedyName,
) -> Option<RemedyVerdict> {
    let kind = SoftwareNetdev::from_netdev(netdev)?;
    let rate = *analysis.rates.netdevs.get(&netdev.name)?.get("rx_packets")?;
    if !netdev.up || rate <= 0.0 || analysis.is_polled(netdev) {
        return None;
    }
    if kind.receive == SoftwareReceive::Backlog || kind.is_polled_without_id() {
        return None;
    }
    let knob = match remedy {
        RemedyName::Rps => "rps_cpus",
        RemedyName::Rfs => "rps_flow_cnt",
        RemedyName::ThreadedNapi => {
            let reason = match kind.receive {
                SoftwareReceive::Writer => "no NAPI polls it (it was opened without IFF_NAPI)",
                _ => "no NAPI polls it",
            };
            return Some(judged(netdev, remedy, Claim::NoClearChange, reason.to_owned(), rate));
        }
        _ => return None,
    };
    let below = below(analysis, netdev);
    let function = kind.function_name();
    let (claim, reason) = match kind.receive {
        SoftwareReceive::SamePass if kind.on_backlog.is_empty() => (
            Claim::NoClearChange,
            format!(
                "the kernel never reads its {knob}: its packets stay in the pass of {below} \
                 ({function}), so {remedy} belongs there"
            ),
        ),
        SoftwareReceive::SamePass => (
            Claim::Unknown,
            format!(
                "the kernel reads its {knob} only for {}; all others stay in the pass of {below} \
                 ({function}), and {remedy} of those belongs there",
                kind.on_backlog
            ),
        ),
        SoftwareReceive::Reader => (
            Claim::NoClearChange,
            format!(
                "the kernel never reads its {knob}: {below} puts its packets into a queue for a \
                 program ({function}), so {remedy} belongs there"
            ),
        ),
        SoftwareReceive::Tasklet => (
            Claim::NoClearChange,
            format!(
                "the kernel never reads its {knob}: a tasklet gives its packets back to {below} \
                 ({function}), so {remedy} belongs there"
            ),
        ),
        SoftwareReceive::Reentry => (
            Claim::Unknown,
            format!(
                "it can move only what {} delivers to this host, after {below} received and \
                 bridged it ({function}); the time of that is not measured separately",
                netdev.name
            ),
        ),
        SoftwareReceive::Writer => (
            Claim::Unknown,
            format!(
                "the program that writes its packets processes them ({function}), in its system \
                 time; the share of that is not measured"
            ),
        ),
        _ => return None,
    };
    Some(judged(netdev, remedy, claim, reason, rate))
}

fn judged(
    netdev: &Netdev,
    remedy: RemedyName,
    claim: Claim,
    reason: String,
    rate: f64,
) -> RemedyVerdict {
    let source = "/sys/class/net/*/statistics/rx_packets";
    let packets = Evidence::new("packets received", Measure::PerSecond(rate), source);
    RemedyVerdict::on(netdev, remedy, claim, reason).reasons(vec![packets])
}

/// The netdevs whose packets it takes, in words.
pub(crate) fn below(analysis: &Analysis<'_>, netdev: &Netdev) -> String {
    let all = &analysis.after().netdevs;
    let is_port = |it: &&Netdev| it.master.as_deref() == Some(netdev.name.as_str());
    let ports: Vec<&str> = all.iter().filter(is_port).map(|it| it.name.as_str()).collect();
    match ports.as_slice() {
        [] if has_driver(netdev, &["ifb"]) => "the netdev that redirects to it".into(),
        [] => "the netdev below it".to_owned(),
        ports => ports.join(", "),
    }
}
