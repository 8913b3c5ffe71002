//! The netfilter rule that drops the packets of a load on arrival.

use std::net::IpAddr;

use anyhow::{Result, bail};
use netsilo_load::early_drop::EarlyDrop;
use netsilo_sys::files::root::Root;
use netsilo_trial::experiment::Load;

use crate::folder::{RunOptions, Sender};
use crate::load_args::address;

/// Drops a load's packets on arrival while the returned value lives; `None` for a load that is not
/// dropped.
pub(crate) fn drop_early(options: &RunOptions, load: &Load) -> Result<Option<EarlyDrop>> {
    let flows = dropped_flows(options, load)?;
    Ok(if flows.is_empty() { None } else { Some(EarlyDrop::install(&Root::live(), &flows)?) })
}

/// Returns the nft command with the same effect, for running a load by hand. Empty if the load is
/// not dropped.
pub(crate) fn nft_command(options: &RunOptions, load: &Load) -> Result<String> {
    let mut text = String::new();
    for (from, to) in dropped_flows(options, load)? {
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
fn dropped_flows(options: &RunOptions, load: &Load) -> Result<Vec<(IpAddr, IpAddr)>> {
    let ends = |sender: &Sender| {
        let (Some(from), Some(to)) = (&sender.agent, &sender.against) else {
            bail!("this machine is one of its ends")
        };
        Ok((address(from)?.ip(), address(to)?.ip()))
    };
    let senders = options.senders.iter().take(load.senders as usize).filter(|_| load.early_drop);
    senders.map(ends).collect()
}
