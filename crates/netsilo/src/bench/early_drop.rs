//! Loads that the forwarding machine drops on arrival: the difference to the forwarded load is what
//! the rest of the path costs.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use netsilo_load::early_drop::EarlyDrop;
use netsilo_sys::files::root::Root;
use netsilo_trial::experiment::Load;

use crate::bench::experiment::Made;
use crate::bench::folder::{How, Sender};
use crate::bench::runner;
use crate::tell::out;

/// Returns the same load, dropped early; `None`, with a note, where that is not possible.
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

/// Drops a load's packets on arrival while the returned value lives; `None` for a load that is
/// not dropped.
pub(super) fn drop_early(how: &How, load: &Load) -> Result<Option<EarlyDrop>> {
    let flows = dropped_flows(how, load)?;
    Ok(if flows.is_empty() { None } else { Some(EarlyDrop::install(&Root::live(), &flows)?) })
}

/// Returns the nft command with the same effect, for running a load by hand; empty if none.
pub(super) fn rule_by_hand(how: &How, load: &Load) -> Result<String> {
    let mut text = String::new();
    for (from, to) in dropped_flows(how, load)? {
        let ip = if from.is_ipv4() { "ip" } else { "ip6" };
        let rule = format!("{ip} saddr {from} {ip} daddr {to} meta l4proto udp drop");
        let table = format!(
            "table {ip} early {{ chain in {{ \
             type filter hook prerouting priority -300; {rule}; }}; }}"
        );
        text += &format!(
            "# meanwhile on the machine under test (a bridge: table bridge early)\nnft '{table}'\n"
        );
    }
    Ok(text)
}

/// Source and destination addresses of the dropped packets.
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
