//! `netsilo pin`: restricts a consumer to some CPUs, as one transaction that undo restores.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_decide::plan::pin::{pin_cgroup, pin_threads};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::consumer::Thread;
use netsilo_sys::consumer::{self, ConsumerSelector};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::topology;

use crate::args::apply_options::ApplyOptions;
use crate::args::parse::some_cpus;
use crate::tell::exit::Exit;
use crate::tell::out::eprint_line;
use crate::tell::words::plural;
use crate::verbs::apply::apply;
use crate::verbs::plan::print;

/// How often to search for threads that appeared meanwhile, and pin them.
const ROUNDS: usize = 5;

/// Arguments of `netsilo pin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    who: WhoArgs,
    /// CPUs that the consumer may run on (list or mask)
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: CpuSet,
    /// Print what would be written, as plan does, without writing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    options: ApplyOptions,
}

/// The consumer to restrict.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct WhoArgs {
    /// Restrict all threads of all processes of this name
    #[arg(value_name = "PROCESS")]
    name: Option<String>,
    /// The same
    #[arg(long, value_name = "PROCESS")]
    comm: Option<String>,
    /// Restrict all threads of these processes
    #[arg(long, value_name = "PID,..", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Restrict everything that runs in this cgroup (v2), now and later, by its cpuset.cpus
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

/// Finds the consumer, shows the change, asks, and pins. Then pins threads that appeared meanwhile.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let root = args.options.state.root()?;
    let topology = topology::topology(&root).context("cannot read this machine's cpus")?;
    let name = args.who.name.as_ref().or(args.who.comm.as_ref());
    let who = match (name, &args.who.cgroup) {
        (_, Some(path)) => {
            let cgroup = consumer::cgroup(&root, path)?;
            return carry_out(&pin_cgroup(&topology, &cgroup, &args.cpus), args);
        }
        (Some(comm), None) => ConsumerSelector::Comm(comm.clone()),
        (None, None) => ConsumerSelector::Pids(args.who.pid.clone()),
    };
    let threads = consumer::threads(&root, &who)?;
    let plan = pin_threads(&topology, &threads, &args.cpus);
    let exit = carry_out(&plan, args)?;
    if args.dry_run || exit != Exit::Done || plan.changes.is_empty() {
        return Ok(exit);
    }
    newcomers(&root, &topology, &who, threads, args)?;
    eprint_line(
        "note: threads that it starts later inherit these cpus, also after undo; \
         use --cgroup to avoid this",
    );
    Ok(exit)
}

fn carry_out(plan: &Plan, args: &Args) -> Result<Exit> {
    if args.dry_run {
        return print(plan, args.options.json);
    }
    apply(plan, &args.options, false)
}

/// Pins threads that were started before their parent was pinned, because they still have the old
/// CPUs. Repeats until no more appear.
fn newcomers(
    root: &Root,
    topology: &Topology,
    who: &ConsumerSelector,
    mut known: Vec<Thread>,
    args: &Args,
) -> Result<()> {
    for _ in 0..ROUNDS {
        let seen: BTreeSet<(u32, u64)> =
            known.iter().map(|thread| (thread.tid, thread.start_time)).collect();
        known = consumer::threads(root, who)?;
        let new: Vec<Thread> =
            known.iter().filter(|it| !seen.contains(&(it.tid, it.start_time))).cloned().collect();
        let plan = pin_threads(topology, &new, &args.cpus);
        if plan.changes.is_empty() {
            return Ok(());
        }
        let appeared = plural(plan.changes.len(), "thread");
        if args.options.awaits_confirmation() {
            eprint_line(format_args!(
                "{appeared} appeared meanwhile: run this again after `{}` to pin them",
                args.options.state.command("confirm")
            ));
            return Ok(());
        }
        eprint_line(format_args!("{appeared} appeared meanwhile"));
        apply(&plan, &args.options.without_asking(), false)?;
    }
    eprint_line(
        "threads with other cpus keep appearing: run this again, or restrict the cgroup (--cgroup)",
    );
    Ok(())
}
