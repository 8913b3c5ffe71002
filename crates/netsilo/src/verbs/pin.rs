//! `netsilo pin`: restricts a consumer to some CPUs, as one transaction that undo takes back.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_decide::plan::pin::{pin_cgroup, pin_threads};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::consumer::Thread;
use netsilo_sys::consumer::{self, Who};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::topology;

use crate::tell::exit::Exit;
use crate::tell::out;
use crate::verbs::apply::{How, apply, count, say};
use crate::verbs::plan::some_cpus;
use crate::views;

/// How often threads that appear in the meantime are pinned too.
const ROUNDS: usize = 5;

/// Arguments of `netsilo pin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    who: WhoArgs,
    /// The CPUs that it may run on (list or mask)
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: CpuSet,
    /// Print what would be written, as plan does, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    how: How,
}

/// Whom.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct WhoArgs {
    /// All threads of all processes of this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// All threads of these processes
    #[arg(long, value_name = "PID,..", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Whatever runs in this cgroup (v2), now and later: its cpuset.cpus
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

/// Finds, shows, asks, pins; then whatever has been started in between.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let root = args.how.place.root()?;
    let topology = topology::topology(&root).context("cannot read this machine's cpus")?;
    let who = match (&args.who.comm, &args.who.cgroup) {
        (_, Some(path)) => {
            let cgroup = consumer::cgroup(&root, path)?;
            return carry_out(&pin_cgroup(&topology, &cgroup, &args.cpus), args);
        }
        (Some(comm), None) => Who::Comm(comm.clone()),
        (None, None) => Who::Pids(args.who.pid.clone()),
    };
    let threads = consumer::threads(&root, &who)?;
    let plan = pin_threads(&topology, &threads, &args.cpus);
    let exit = carry_out(&plan, args)?;
    if args.dry_run || exit != Exit::Ok || plan.changes.is_empty() {
        return Ok(exit);
    }
    newcomers(&root, &topology, &who, threads, args)?;
    say(
        "note: threads that it starts later keep to these cpus too, also after undo; --cgroup leaves no such rest",
    );
    Ok(exit)
}

fn carry_out(plan: &Plan, args: &Args) -> Result<Exit> {
    if !args.dry_run {
        return apply(plan, &args.how);
    }
    if args.how.json {
        out::json(plan)?;
    } else {
        out::text(&views::plan::render(plan))?;
    }
    Ok(crate::verbs::plan::exit(plan, false))
}

/// Threads that a thread started before it was pinned have its old CPUs: pinned too, until none
/// appears any more.
fn newcomers(
    root: &Root,
    topology: &Topology,
    who: &Who,
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
        let appeared = count(plan.changes.len(), "thread");
        if args.how.awaits_confirmation() {
            say(format_args!(
                "{appeared} appeared in between and can be pinned after `netsilo confirm`: run this again"
            ));
            return Ok(());
        }
        say(format_args!("{appeared} appeared in between"));
        apply(&plan, &args.how.without_asking())?;
    }
    say(
        "threads keep appearing with other cpus: run this again, or restrict the cgroup (--cgroup)",
    );
    Ok(())
}
