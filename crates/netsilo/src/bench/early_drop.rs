//! Loads that the machine between drops where they come in: what the rest of their way costs is the
//! difference.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use netsilo_load::early_drop::EarlyDrop;
use netsilo_trial::experiment::Load;

use crate::bench::experiment::Made;
use crate::bench::folder::{How, Sender};
use crate::bench::runner;
use crate::tell::out;

/// The same load, dropped early; `None`, and said why, where that cannot be.
pub(super) fn dropped_early(made: &Made<'_>, load: Load) -> Result<Option<Load>> {
    let load = Load { name: format!("{}, dropped early", load.name), early_drop: true, ..load };
    match runner::is_dropped(&made.how, &load, made.stop) {
        Ok(()) => Ok(Some(load)),
        Err(error) if made.stop.load(Ordering::Relaxed) => Err(error),
        Err(error) => {
            out::note(&format!("{}: left out: {error}", load.name));
            Ok(None)
        }
    }
}

/// While the answer lives, drops what a load's senders send where it comes in; `None` of a load
/// that is passed on.
pub(super) fn drop_early(how: &How, load: &Load) -> Result<Option<EarlyDrop>> {
    let flows = dropped_flows(how, load)?;
    Ok(if flows.is_empty() { None } else { Some(EarlyDrop::of(&flows)?) })
}

/// What does the same for those who make a load by hand; nothing where nothing is dropped.
pub(super) fn rule_by_hand(how: &How, load: &Load) -> Result<String> {
    let mut text = String::new();
    for (from, to) in dropped_flows(how, load)? {
        let ip = if from.is_ipv4() { "ip" } else { "ip6" };
        let rule = format!("{ip} saddr {from} {ip} daddr {to} meta l4proto udp drop");
        let table = format!(
            "table {ip} early {{ chain in {{ type filter hook prerouting priority -300; {rule}; }}; }}"
        );
        text += &format!(
            "# meanwhile on the machine under test (a bridge: table bridge early)\nnft '{table}'\n"
        );
    }
    Ok(text)
}

/// Who sends what is dropped, and to whom.
fn dropped_flows(how: &How, load: &Load) -> Result<Vec<(IpAddr, IpAddr)>> {
    let ends = |sender: &Sender| {
        let (Some(from), Some(to)) = (&sender.agent, &sender.against) else {
            bail!("this machine is one of its ends")
        };
        Ok((crate::bench::address(from)?.ip(), crate::bench::address(to)?.ip()))
    };
    let senders = how.senders.iter().take(load.senders as usize).filter(|_| load.early_drop);
    senders.map(ends).collect()
}
