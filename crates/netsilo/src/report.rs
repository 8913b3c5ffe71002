//! `netsilo report --incident`: a bundle and netsilo's findings about it, as one page for a ticket.
//!
//! The page contains the bundle itself as a link, so that others can examine it with `--from`. May
//! use `tell`, `views` and `verbs::capture`.

mod page;

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
use crate::tell::exit::{Exit, ExitError};
use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::printable::printable;
use crate::tell::styled::Styled;
use crate::tell::words::plural;
use crate::verbs::capture;
use crate::views;

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
    let text = text(args)?;
    output::write(&args.output, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    Ok(Exit::Done)
}

/// Reads the bundle, or captures one of this machine, and renders the page.
fn text(args: &Args) -> Result<String> {
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
    let bundle = Bundle::open(path).context("cannot use the bundle")?;
    refuse_addresses(path, &bundle, with_addresses)?;
    let (holds, version) = (bundle.manifest().holds.clone(), bundle.manifest().netsilo.clone());
    let observation = bundle.whole().context("cannot use the bundle")?;
    let costs = costs_for(is_elsewhere)?;
    let analysis = Analysis::new(&observation, &costs);
    let (check, report) = (check(&analysis), Report::of(&analysis));
    let plan = plan_with_verdicts(&analysis, &Goal { costs: costs.clone(), ..Goal::default() });
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let queues = views::show::render(&report, None, Presentation::default());
    let sections: [Section; 5] = [
        ("findings", "Findings", findings(&check)),
        ("remedies", "What each remedy would do", pre(&views::verdict::render(&check, false))),
        ("machine", "Queues, CPUs and readers", pre(&queues)),
        ("plan", "What netsilo plan would write", pre(&views::plan::render(&plan))),
        ("bundle", "The bundle", download(&holds, &bytes)),
    ];
    let title = format!("incident on {}", check.hostname);
    let observed = format!("{:.1} s observed", check.interval.as_secs_f64());
    let subtitle = format!("Linux {} · {observed} · {}", check.release, queues_in_words(&report));
    Ok(document(&title, &subtitle, &version, &sections))
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

fn queues_in_words(report: &Report) -> String {
    plural(report.netdevs.iter().map(|netdev| netdev.queues.len()).sum(), "rx queue")
}

/// The findings, most severe first, then a line for what is in order.
fn findings(check: &Check) -> Markup {
    let (passed, wrong): (Vec<&Finding>, Vec<&Finding>) =
        check.findings.iter().partition(|finding| finding.severity == Severity::Ok);
    html! {
        @if wrong.is_empty() { p { "No check found a problem." } }
        @for finding in wrong { (one(finding)) }
        @if !passed.is_empty() {
            details {
                summary { (plural(passed.len(), "check")) " passed" }
                ul.notes { @for finding in passed {
                    li { (shown(&finding.subject.to_string())) ": " (shown(&finding.title)) }
                } }
            }
        }
        @let ledger = views::check::ledger(&check.ledger, true);
        @if ledger.width() > 0 { (pre(&ledger)) }
    }
}

/// A finding with its evidence and remedies, and a link to the page about its kind.
fn one(finding: &Finding) -> Markup {
    let mut text = Styled::default();
    views::check::one(&mut text, finding, true);
    html! {
        div.card {
            (pre(&text))
            details { summary { "About " (finding.id) } pre { (FindingId::page(finding.id)) } }
        }
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

/// The text of a view, in the colours of its meanings.
fn pre(text: &Styled) -> Markup {
    html! {
        pre.view {
            @for (part, meaning) in text.parts() {
                @match class(meaning) {
                    Some(class) => span class=(class) { (shown(part)) },
                    None => (shown(part)),
                }
            }
        }
    }
}

/// A text without control characters.
fn shown(text: &str) -> String {
    printable(text).into_owned()
}

/// The class of a meaning in the style sheet.
fn class(meaning: Meaning) -> Option<&'static str> {
    match meaning {
        Meaning::Plain | Meaning::Changed => None,
        Meaning::Quiet => Some("quiet"),
        Meaning::Title => Some("title"),
        Meaning::Good => Some("good"),
        Meaning::Fair => Some("fair"),
        Meaning::Bad => Some("bad"),
        Meaning::Work => Some("work"),
    }
}
