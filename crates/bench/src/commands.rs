//! The commands that repeat an experiment by hand, for each machine.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::experiment::Experiment;

use crate::drop_rule::nft_command;
use crate::folder::{RunOptions, Sender};
use crate::load_args::{address, run_command};

/// Returns the commands that repeat the experiment by hand.
pub(crate) fn commands(
    experiment: &Experiment,
    options: &RunOptions,
    here: Option<IpAddr>,
) -> Result<String> {
    let mut text = format!("# on the machine under test\n{}\n", words(&experiment.command));
    let mut seen = Vec::new();
    for Sender { agent, against } in &options.senders {
        let may_load = if agent.is_some() { against } else { &None };
        let Some(agent) = agent.as_ref().or(against.as_ref()).filter(|agent| !seen.contains(agent))
        else {
            continue;
        };
        seen.push(agent);
        let address = address(agent)?;
        let may_load =
            may_load.as_ref().map_or_else(String::new, |other| format!(" --may-load {other}"));
        let _ = writeln!(
            text,
            "\n# at {agent}\nnetsilo-bench serve --bind {} --port {}{may_load}",
            address.ip(),
            address.port()
        );
    }
    let under_test = || here.map(|address| address.to_string());
    let to = options
        .senders
        .first()
        .and_then(|sender| sender.against.clone())
        .or_else(under_test)
        .unwrap_or_default();
    if options.senders.iter().any(|sender| sender.against.is_none()) {
        let work = if options.work_usecs > 0 {
            format!(" --work-usecs {}", options.work_usecs)
        } else {
            String::new()
        };
        let pinned =
            options.pinned.map_or_else(String::new, |CpuId(cpu)| format!("taskset -c {cpu} "));
        let _ = writeln!(
            text,
            "\n# each load by hand; its server\n{pinned}netsilo-bench serve --bind {to}{work}"
        );
    }
    for load in &experiment.loads {
        let times = if load.senders > 1 {
            format!(", {} times at once", load.senders)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "\n# {}{times}\n{}",
            load.name,
            run_command(&load.spec, &to, options.bpf)
        );
        text += &nft_command(options, load)?;
    }
    Ok(text)
}

fn words(command: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c))
    };
    let quoted = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
