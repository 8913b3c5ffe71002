//! `netsilo report --incident`: a bundle and what netsilo finds in it, as one page for a ticket.
//!
//! The page has the bundle itself as a link, so that others can examine it with `--from`.

use std::path::Path;
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
use netsilo_sys::files::private_dir::PrivateDir;
use netsilo_sys::observe::CountingMode;

use crate::args::costs::costs_for;
use crate::args::look::CHECK_INTERVAL;
use crate::forecast::forecast_of_remedies;
use crate::report::options::IncidentArgs;
use crate::report::page::{Section, document};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::printable::printable;
use crate::tell::styled::Styled;
use crate::tell::words::plural;
use crate::verbs::capture;
use crate::views;

/// The largest bundle that a page holds: mail and tickets refuse larger files.
const LARGEST: usize = 8 << 20;

/// Reads the bundle, or captures one of this machine, and renders the page.
pub(super) fn text(args: &IncidentArgs) -> Result<String> {
    match &args.from {
        Some(path) => page(path, args.with_addresses, true),
        None => {
            let dir =
                PrivateDir::new("netsilo-incident").context("cannot create a temporary folder")?;
            let path = dir.path().join("host.tar.zst");
            let interval = args.interval.unwrap_or(CHECK_INTERVAL);
            capture_to(&path, args, interval)?;
            page(&path, args.with_addresses, false)
        }
    }
}

fn capture_to(path: &Path, args: &IncidentArgs, interval: Duration) -> Result<()> {
    let counting = if args.no_bpf { CountingMode::WithoutBpf } else { CountingMode::Continuous };
    let addresses = if args.with_addresses { Addresses::Keep } else { Addresses::Replace };
    capture::save(path, interval, counting, addresses)?;
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
    let forecast = forecast_of_remedies(&analysis, &check);
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let queues = views::show::render(&report, None, Presentation::default());
    let sections: [Section; 5] = [
        ("findings", "Findings", findings(&check)),
        (
            "remedies",
            "What each remedy would do",
            pre(&views::verdict::render(&check, forecast.as_ref(), false)),
        ),
        ("machine", "Queues, CPUs and readers", pre(&queues)),
        ("plan", "What netsilo plan would write", pre(&views::plan::render(&plan))),
        ("bundle", "The bundle", download(&holds, &bytes)),
    ];
    let title = format!("incident on {}", check.hostname);
    let observed = format!("{:.1} s observed", check.interval.as_secs_f64());
    let subtitle = format!("Linux {} · {observed} · {}", check.release, queues_in_words(&report));
    Ok(document(&title, &subtitle, &version, &sections))
}

/// Refuses a bundle with addresses that nobody has asked for.
fn refuse_addresses(path: &Path, bundle: &Bundle, with_addresses: bool) -> Result<()> {
    if !bundle.manifest().with_addresses || with_addresses {
        return Ok(());
    }
    let why = format!(
        "{} holds addresses and the host's name: --with-addresses puts them into the page; \
         netsilo capture without that option replaces them",
        path.display()
    );
    Err(ExitError(Exit::Refused, why).into())
}

fn queues_in_words(report: &Report) -> String {
    plural(report.netdevs.iter().map(|netdev| netdev.queues.len()).sum(), "rx queue")
}

/// What is wrong, the worst first, then a line for what is well.
fn findings(check: &Check) -> Markup {
    let (passed, wrong): (Vec<&Finding>, Vec<&Finding>) =
        check.findings.iter().partition(|finding| finding.severity == Severity::Ok);
    html! {
        @if wrong.is_empty() { p { "No check found anything wrong." } }
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

/// A finding, its evidence and remedies, and the page about its kind.
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

/// The bundle as a link, and what it holds.
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

/// A view's text, in the colours of its meanings.
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
