//! `netsilo report --incident`: a bundle and netsilo's findings about it, as one page for a ticket.
//!
//! The page contains the bundle itself as a link, so that others can examine it with `--from`. May
//! use `tell`, `views` and `verbs::capture`.

mod page;
mod path;
mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maud::{Markup, html};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::findings::{Check, Finding, FindingId, Severity, check};
use netsilo_decide::plan::Goal;
use netsilo_decide::report::Report;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::bundle::{Addresses, Bundle};
use netsilo_sys::files::output;
use netsilo_sys::files::private_dir::PrivateDir;
use netsilo_sys::observe::CountingMode;

use crate::args::costs::costs_for;
use crate::report::page::{Section, document};
use crate::report::path::path;
use crate::report::text::{shown, text};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::presentation::Presentation;
use crate::tell::words::plural;
use crate::verbs::capture;
use crate::views;
use crate::views::show::worth_showing;
use crate::views::units::{bytes_per_s, count};

/// Maximum size of a bundle on a page. Mail and ticket systems refuse larger files.
const LARGEST: usize = 8 << 20;

/// Arguments of `netsilo report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Report an incident: netsilo's findings on this machine now, or in a bundle, as a page to
    /// attach to a ticket
    #[arg(long, required = true)]
    incident: bool,
    /// Write the page (HTML) to this file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Read this bundle (from `netsilo capture`) instead of this machine
    #[arg(long, value_name = "BUNDLE")]
    from: Option<PathBuf>,
    /// Time to observe this machine (500ms, 2s, 1m)
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "5s",
        conflicts_with = "from",
        value_parser = crate::args::parse::counting_time
    )]
    interval: Duration,
    /// Observe without eBPF
    #[arg(long, conflicts_with = "from")]
    no_bpf: bool,
    /// Keep hardware addresses, addresses and ports of flows, and the host name [default: replaced]
    #[arg(long)]
    with_addresses: bool,
}

/// Writes the page.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let page = rendered(args)?;
    output::write(&args.output, |file| file.write_all(page.as_bytes()))
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    Ok(Exit::Done)
}

/// Reads the bundle, or captures one of this machine, and renders the page.
fn rendered(args: &Args) -> Result<String> {
    match &args.from {
        Some(path) => page(path, args.with_addresses, true),
        None => {
            let dir =
                PrivateDir::new("netsilo-incident").context("cannot create a temporary folder")?;
            let path = dir.path().join("host.tar.zst");
            capture_to(&path, args)?;
            page(&path, args.with_addresses, false)
        }
    }
}

fn capture_to(path: &Path, args: &Args) -> Result<()> {
    let counting = if args.no_bpf { CountingMode::WithoutBpf } else { CountingMode::Continuous };
    let addresses = if args.with_addresses { Addresses::Keep } else { Addresses::Replace };
    capture::save(path, args.interval, counting, addresses)?;
    Ok(())
}

fn page(path: &Path, with_addresses: bool, is_elsewhere: bool) -> Result<String> {
    let bundle = Bundle::open(&[path]).context("cannot use the bundle")?;
    if bundle.is_of_reports() {
        let why = format!(
            "{}: report puts a bundle into its page, and this is no bundle; show, check, explain \
             and plan read it",
            path.display()
        );
        return Err(ExitError(Exit::Refused, why).into());
    }
    refuse_addresses(path, &bundle, with_addresses)?;
    let (holds, version) = (bundle.manifest().holds.clone(), bundle.manifest().netsilo.clone());
    let observation = bundle.whole().context("cannot use the bundle")?;
    let costs = costs_for(is_elsewhere)?;
    let analysis = Analysis::new(&observation, &costs);
    let (check, report) = (check(&analysis), Report::of(&analysis));
    let plan = plan_with_verdicts(&analysis, &Goal { costs: costs.clone(), ..Goal::default() });
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let queues = views::show::render(&report, None, Presentation::default());
    let scenario = scenario(&report);
    let found = format!("Found on {scenario}.");
    let predicted = format!("Predicted for {scenario}, if one remedy is written.");
    let lost = format!("Lost on {scenario}.");
    let sections: [Section; 6] = [
        ("findings", "Findings", found, findings(&check)),
        ("losses", "Where packets were lost", lost, losses(&check, &report)),
        (
            "remedies",
            "What each remedy would do",
            predicted,
            text(&views::verdict::render(&check, false)),
        ),
        ("machine", "Queues, CPUs and readers", format!("As seen on {scenario}."), text(&queues)),
        (
            "plan",
            "What netsilo plan would write",
            format!("For {scenario}."),
            text(&views::plan::render(&plan)),
        ),
        ("bundle", "The bundle", format!("What was read on {scenario}."), download(&holds, &bytes)),
    ];
    Ok(document(&format!("incident on {}", check.hostname), &scenario, &version, &sections))
}

/// The machine and its load: what all findings and forecasts are about.
fn scenario(report: &Report) -> String {
    let machine = &report.machine;
    let shown_netdevs = report.netdevs.iter().filter(|netdev| worth_showing(netdev));
    let queues = shown_netdevs.map(|netdev| netdev.queues.len()).sum();
    let mut parts = vec![
        machine.hostname.clone(),
        format!("Linux {}", machine.release),
        plural(machine.online.len(), "cpu"),
        plural(queues, "rx queue"),
    ];
    parts.extend(report.totals.packets_per_s.map(|rate| format!("{} packets/s", count(rate))));
    let (read, forwarded) = (report.totals.bytes_per_s, &report.totals.forwarded);
    parts.extend(read.map(|rate| format!("{} read", bytes_per_s(rate))));
    if forwarded.packets_per_s > 0.0 {
        parts.push(format!("{} packets/s forwarded", count(forwarded.packets_per_s)));
    }
    parts.push(format!("{:.1} s observed", report.elapsed_s));
    shown(&parts.join(", "))
}

/// Refuses a bundle with addresses unless the user asked for them.
fn refuse_addresses(path: &Path, bundle: &Bundle, with_addresses: bool) -> Result<()> {
    if !bundle.manifest().with_addresses || with_addresses {
        return Ok(());
    }
    let why = format!(
        "{} contains addresses and the host's name: --with-addresses puts them into the page; \
         netsilo capture without that option replaces them",
        path.display()
    );
    Err(ExitError(Exit::Refused, why).into())
}

/// The findings, most severe first, then a line for what is in order.
fn findings(check: &Check) -> Markup {
    let (passed, wrong): (Vec<&Finding>, Vec<&Finding>) =
        check.findings.iter().partition(|finding| finding.severity == Severity::Ok);
    html! {
        @if wrong.is_empty() { p { "No check found a problem." } }
        @for (id, findings) in views::check::groups(wrong.into_iter(), true) {
            div.card {
                (text(&findings))
                details { summary { "About " (id) } pre { (FindingId::page(id)) } }
            }
        }
        @if !passed.is_empty() {
            details {
                summary { (plural(passed.len(), "check")) " passed" }
                ul.notes { @for finding in passed {
                    li { (shown(&finding.subject.to_string())) ": " (shown(&finding.title)) }
                } }
            }
        }
    }
}

/// The packets' way as a drawing, then the ledger of loss.
fn losses(check: &Check, report: &Report) -> Markup {
    let totals = &report.totals;
    let arrive = match totals.packets_per_s {
        Some(rate) => format!("the wire: {} packets/s", count(rate)),
        None => "the wire".to_owned(),
    };
    let read = match totals.bytes_per_s {
        Some(rate) => format!("the readers: {}", bytes_per_s(rate)),
        None => "the readers".to_owned(),
    };
    let ledger = views::ledger::render(&check.ledger, true);
    html! {
        div.card { (path(&check.ledger, &arrive, &read)) }
        @if ledger.width() > 0 { (text(&ledger)) }
    }
}

/// The bundle as a link, and what it contains.
fn download(holds: &[String], bytes: &[u8]) -> Markup {
    let file = "host.tar.zst";
    html! {
        @if bytes.len() > LARGEST {
            p { "It is too large for this page: attach it as a file." }
        } @else {
            @let data = BASE64_STANDARD.encode(bytes);
            p {
                a download=(file) href={ "data:application/zstd;base64," (data) } { "Save " (file) }
                ", then examine it on any machine: "
                code { "netsilo check --from " (file) } ", "
                code { "netsilo top --from " (file) } "."
            }
        }
        ul.notes { @for line in holds { li { (shown(line)) } } }
    }
}
