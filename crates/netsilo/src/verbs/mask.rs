//! `netsilo mask`: a set of CPUs in each notation that the kernel uses, for writing its files by
//! hand.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use netsilo_model::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};
use netsilo_model::machine::topology::{Cpu, NodeId, Topology};
use serde::Serialize;

use crate::args::look::BundleArg;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::versioned::Versioned;
use crate::tell::words::plural;

/// Arguments of `netsilo mask`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CPU list (0-3,40) or mask (ff, 0x0f, 0100,0000000f); digits alone are a list
    #[arg(value_name = "LIST|MASK", required_unless_present_any = ["llc", "node", "near"])]
    cpus: Option<String>,
    /// CPUs of each last-level cache, or of the last-level cache of CPU
    #[arg(long, value_name = "CPU", num_args = 0..=1, group = "place", conflicts_with = "cpus")]
    llc: Option<Option<String>>,
    /// CPUs of each NUMA node, or of node N
    #[arg(long, value_name = "N", num_args = 0..=1, group = "place", conflicts_with = "cpus")]
    node: Option<Option<u32>>,
    /// CPUs that share the last-level cache of CPU, except those of its own core
    #[arg(long, value_name = "CPU", group = "place", conflicts_with = "cpus")]
    near: Option<String>,
    /// Width of the mask in CPUs [default: this machine's CPUs, or more if needed]
    #[arg(
        long,
        value_name = "CPUS",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS))
    )]
    width: Option<u32>,
    #[command(flatten)]
    from: BundleArg,
    /// Print the sets as JSON
    #[arg(short, long)]
    json: bool,
}

/// A set of CPUs in each notation.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Spelled {
    what: String,
    count: usize,
    /// A kernel list: `0-3,40`.
    list: String,
    /// Words of 32 bits, the highest first: `0100,0000000f`.
    mask: String,
    /// One number: `0x1000000000f`.
    hex: String,
}

/// The sets that the arguments select.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CpuSets {
    sets: Vec<Spelled>,
}

/// Prints the sets that the arguments select.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let (sets, cpu_ids) = match &args.cpus {
        Some(text) => {
            let possible = args.from.possible()?;
            let cpu_ids = possible.highest().map_or(0, |cpu| cpu.0 + 1);
            (vec![named(text, args.width, &possible)?], cpu_ids)
        }
        None => {
            let topology = args.from.topology()?;
            (placed(args, &topology)?, topology.nr_cpu_ids)
        }
    };
    let width = args.width.unwrap_or(cpu_ids);
    let sets = sets.into_iter().map(|(what, cpus)| spell(what, &cpus, width)).collect();
    if args.json {
        out::json(&Versioned::first(CpuSets { sets }))?;
    } else {
        out::text(&render(&sets));
    }
    Ok(Exit::Printed)
}

/// The set that a list or mask names.
fn named(text: &str, width: Option<u32>, possible: &CpuSet) -> Result<(String, CpuSet)> {
    let read = CpuSet::parse_user(text, width.unwrap_or(MAX_CPUS));
    let (cpus, _) = read.map_err(|error| ExitError(Exit::Usage, error.to_string()))?;
    let missing = cpus.minus(possible);
    if !missing.is_empty() && width.is_none() {
        out::note(&format!("this machine has cpus {possible}, not {missing}"));
    }
    Ok((format!("cpus {cpus}"), cpus))
}

/// The sets by their place in the machine.
fn placed(args: &Args, topology: &Topology) -> Result<Vec<(String, CpuSet)>> {
    if let Some(cpu) = &args.llc {
        return match cpu {
            Some(cpu) => {
                let (cpu, place) = present(cpu, topology)?;
                known_llc(cpu, place)?;
                Ok(vec![(format!("llc of cpu {cpu}"), place.llc.clone())])
            }
            None => {
                let mut llcs = topology.llc_groups();
                llcs.retain(|llc| !topology.is_guess(llc));
                if llcs.is_empty() {
                    bail!("the kernel shows no caches; `netsilo mask --node` shows the nodes");
                }
                let numbered = llcs.into_iter().enumerate();
                Ok(numbered.map(|(i, cpus)| (format!("llc {i}"), cpus)).collect())
            }
        };
    }
    if let Some(node) = args.node {
        return match node {
            Some(n) => match topology.nodes.get(&NodeId(n)) {
                Some(node) if !node.cpus.is_empty() => {
                    Ok(vec![(format!("node {n}"), node.cpus.clone())])
                }
                Some(_) => bail!("node {n} has memory but no cpus"),
                None => {
                    bail!("there is no node {n} on this machine; it has {}", known_nodes(topology))
                }
            },
            None if topology.nodes.is_empty() => bail!("this machine reports no nodes"),
            None => Ok(topology
                .nodes_with_cpus()
                .map(|(n, node)| (format!("node {n}"), node.cpus.clone()))
                .collect()),
        };
    }
    let near = args.near.as_deref().unwrap_or_default();
    let (cpu, place) = present(near, topology)?;
    known_llc(cpu, place)?;
    let cpus = topology.near(cpu);
    if cpus.is_empty() {
        bail!(
            "no other core shares the last-level cache of cpu {cpu}; \
             `netsilo mask --node` shows its node"
        );
    }
    Ok(vec![(format!("near cpu {cpu}"), cpus)])
}

/// Refuses a last-level cache that is only a guess.
fn known_llc(cpu: CpuId, place: &Cpu) -> Result<()> {
    if place.llc_is_guess {
        bail!("the kernel shows no caches of cpu {cpu}; `netsilo mask --node` shows its node");
    }
    Ok(())
}

/// Returns the CPU that `cpu5` or `5` names, and its topology.
fn present<'t>(text: &str, topology: &'t Topology) -> Result<(CpuId, &'t Cpu)> {
    let number = text.strip_prefix("cpu").unwrap_or(text);
    let cpu =
        CpuId(number.parse().with_context(|| format!("{text:?} is not a cpu; write 5 or cpu5"))?);
    let place = topology.cpus.get(&cpu).with_context(|| {
        format!(
            "there is no cpu {cpu} on this machine; it has {}",
            topology.cpus.keys().copied().collect::<CpuSet>()
        )
    })?;
    Ok((cpu, place))
}

fn known_nodes(topology: &Topology) -> String {
    if topology.nodes.is_empty() {
        return "none".to_owned();
    }
    topology.nodes.keys().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

fn spell(what: String, cpus: &CpuSet, width: u32) -> Spelled {
    let mask = cpus.to_mask(width);
    let digits: String = mask.chars().filter(|c| *c != ',').collect();
    let digits = digits.trim_start_matches('0');
    let hex = format!("0x{}", if digits.is_empty() { "0" } else { digits });
    Spelled { what, count: cpus.len(), list: cpus.to_string(), mask, hex }
}

fn render(sets: &[Spelled]) -> String {
    let mut text = String::new();
    for set in sets {
        let Spelled { what, count, list, mask, hex } = set;
        let _ = writeln!(text, "{what}: {}", plural(*count, "cpu"));
        let _ = writeln!(text, "  list  {list:<26}  smp_affinity_list, cpuset.cpus, taskset -c");
        let _ = writeln!(text, "  mask  {mask:<26}  smp_affinity, rps_cpus, xps_cpus");
        let _ = writeln!(text, "  hex   {hex:<26}  taskset");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notation_names_the_same_cpus() {
        let cpus = CpuSet::parse_list("0-3,40").unwrap();
        insta::assert_snapshot!(render(&[spell("cpus 0-3,40".into(), &cpus, 48)]), @"
        cpus 0-3,40: 5 cpus
          list  0-3,40                      smp_affinity_list, cpuset.cpus, taskset -c
          mask  0100,0000000f               smp_affinity, rps_cpus, xps_cpus
          hex   0x1000000000f               taskset
        ");
    }
}
