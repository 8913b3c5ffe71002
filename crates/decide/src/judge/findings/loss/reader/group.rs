//! One socket of a `SO_REUSEPORT` group that gets nearly all packets, without a loss.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::attribution::GroupReads;
use netsilo_model::snapshot::sockets::{Holder, SocketKind};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::reader::full::by_hand;
use crate::judge::verdict::percent;

/// A socket that gets this share of a group's packets gets nearly all.
pub(super) const NEARLY_ALL: f64 = 0.75;

/// Fewer reads per second need no second socket.
const ENOUGH_PER_S: f64 = 1000.0;

/// How to spread the packets of a group.
pub(super) fn spread(sockets: u32, reader: &str) -> String {
    format!(
        "spread the packets over the {sockets} sockets of {reader}: more source ports or addresses \
         at the senders, or a program that chooses the socket (SO_ATTACH_REUSEPORT_EBPF)"
    )
}

pub(super) fn find(analysis: &Analysis<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<(u32, u16), Vec<&GroupReads>> = BTreeMap::new();
    for row in &analysis.observation.attribution.group_reads {
        groups.entry((row.netns, row.port)).or_default().push(row);
    }
    groups.values().filter_map(|rows| one_gets_all(analysis, rows)).collect()
}

fn one_gets_all(analysis: &Analysis<'_>, rows: &[&GroupReads]) -> Option<Finding> {
    let all = rows.iter().map(|row| row.reads).fold(0, u64::saturating_add);
    let most = rows.iter().max_by_key(|row| row.reads)?;
    let share = most.reads as f64 / all.max(1) as f64;
    let per_s = all as f64 / analysis.observation.attribution.elapsed.as_secs_f64();
    // Rows of several groups may have one port: they have different addresses.
    if most.sockets < 2 || share < NEARLY_ALL || !per_s.is_finite() || per_s < ENOUGH_PER_S {
        return None;
    }
    let holder = Holder { tgid: most.tgid, comm: most.comm.clone() };
    let reader = format!("{} (pid {})", holder.comm, holder.tgid);
    Some(Finding {
        id: FindingId::ReuseportOneSocket,
        severity: Severity::Info,
        subject: Subject::Socket(SocketKind::Udp, most.port, holder),
        title: format!("1 of {} sockets gets {} of the packets", most.sockets, percent(share)),
        evidence: vec![
            Evidence::new("reads", Measure::PerSecond(per_s), "skb_consume_udp"),
            Evidence::new(
                "sockets that got packets",
                Measure::Count(rows.len() as u64),
                "skb_consume_udp",
            ),
        ],
        remedies: vec![by_hand(
            spread(most.sockets.into(), &reader),
            Gain::Unknown("it helps only when one thread cannot read all packets".into()),
        )],
    })
}
