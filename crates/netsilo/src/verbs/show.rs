//! `netsilo show`: which CPU processes each rx queue, and which process reads its data, on which
//! CPU.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use netsilo_decide::plan::selection::missing;
use netsilo_decide::report::Report;
use netsilo_decide::report::difference::Difference;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle;

use crate::args::look;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::views;

/// Arguments of `netsilo show`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only these netdevs, and the CPUs that poll them
    #[arg(value_name = "DEV")]
    netdevs: Vec<String>,
    /// The same
    #[arg(short = 'n', long = "netdev", value_name = "DEV,..", value_delimiter = ',')]
    more_netdevs: Vec<String>,
    #[command(flatten)]
    observe: look::ObserveArgs,
    /// Repeat after each interval, COUNT times or until interrupted; without --exact or --stages
    /// the softirq time is the kernel's own (~), and wakeups are not counted
    #[arg(short, long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "0")]
    watch: Option<u64>,
    /// Also sample in which stages receive work spends its time: driver, bridge and IP, netfilter,
    /// delivery, sending
    #[arg(long, conflicts_with = "no_bpf")]
    stages: bool,
    /// Examine every read, poll and softirq, however many there are, also with --watch; this costs
    /// more
    #[arg(long, conflicts_with = "no_bpf")]
    exact: bool,
    /// Compare with this bundle: settings, places and rates that differ, as `old -> new`
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = ["watch", "stages", "exact", "netdevs",
        "more_netdevs"])]
    against: Option<PathBuf>,
    /// Print the report as JSON (schema 1); with --watch one line per interval
    #[arg(short, long)]
    json: bool,
}

impl Args {
    /// The eBPF programs. If they ran all the time, measuring softirq time would cost as much as
    /// all others together, and what arrives and is dropped more.
    fn options(&self) -> Options {
        Options {
            time: self.watch.is_none() || self.exact || self.stages,
            stages: self.stages,
            packet_sockets: true,
            ip_packets: self.watch.is_none() || self.exact,
            drops: self.watch.is_none() || self.exact,
            ..if self.exact { Options::exact() } else { Options::default() }
        }
    }
}

/// Observes and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if let Some(path) = &args.against {
        return compare(args, path);
    }
    let (mut shown, mut before) = (0, None);
    let only = [&args.netdevs[..], &args.more_netdevs].concat();
    args.observe.each(args.options(), |observation| {
        if let Some(it) = only.iter().find_map(|name| missing(name, &observation.after)) {
            bail!("{}: {}", it.subject, it.reason);
        }
        let report = Report::of(&Analysis::new(&observation, &Costs::default()));
        let report = if only.is_empty() { report } else { report.only(&only) };
        if args.stages && report.stages.is_none() {
            out::eprint_line(
                "note: no stages: this bundle was captured by an older netsilo, or without eBPF",
            );
        }
        shown += 1;
        let on = Presentation::of_stdout();
        let is_read = match (args.json, args.watch) {
            (true, None) => out::next(&out::indented(&report)?),
            (true, Some(_)) => out::next(&out::line(&report)?),
            (false, None) => {
                out::styled(&views::show::render(&report, None, on));
                false
            }
            (false, Some(_)) => {
                let is_read = out::redraw(&views::show::render(&report, before.as_ref(), on));
                before = Some(report);
                is_read
            }
        };
        let again = args.watch.is_some_and(|count| count == 0 || shown < count);
        Ok((Exit::Printed, is_read && again))
    })
}

/// Prints what differs from the observation in a bundle.
fn compare(args: &Args, path: &Path) -> Result<Exit> {
    let other = bundle::open(path).with_context(|| format!("--against {}", path.display()))?;
    let observation = args.observe.observe_with(args.options())?;
    let costs = Costs::default();
    let [new, old] = [&observation, &other].map(|it| Analysis::new(it, &costs));
    let difference = Difference::of(&new, &old);
    if args.json {
        out::json(&Versioned::first(difference))?;
    } else {
        out::text(&views::difference::render(&difference));
    }
    Ok(Exit::Printed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    #[test]
    fn watching_leaves_out_softirq_time_and_samples_unless_exact() {
        let options = |words: &str| {
            let options = parsed::<Args>(words).options();
            (options.time, options.examined_per_s.is_some())
        };
        assert_eq!(options(""), (true, true));
        assert_eq!(options("--watch"), (false, true));
        assert_eq!(options("--watch --stages"), (true, true));
        assert_eq!(options("--watch --exact"), (true, false));
    }
}
