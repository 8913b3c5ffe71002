//! The page of findings: what `netsilo check` finds in this window.

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::{Finding, Severity};
use netsilo_decide::judge::fix::FixRequest;

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::plural;
use crate::top::listing::{Cell, Column, Listing, Row, left, wide};
use crate::top::window::Window;
use crate::views::check::measure;

const COLUMNS: &[Column] = &[
    left("severity", 0),
    left("subject", 1),
    wide("what", 0, 60),
    left("gain", 2),
    left("p plans", 3),
];

/// Lists the findings, most severe first. Checks without a finding are only counted.
pub(super) fn listing(window: &Window, palette: Palette) -> Listing {
    let findings = &window.check.findings;
    let (wrong, well): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|finding| finding.severity > Severity::Ok);
    Listing {
        columns: COLUMNS,
        rows: wrong.into_iter().map(|finding| row(finding, palette)).collect(),
        empty: "no check found a problem in this window; netsilo check observes for 5 s".into(),
        notes: vec![format!("{} without a finding", plural(well.len(), "check"))],
    }
}

fn row(finding: &Finding, palette: Palette) -> Row {
    let (glyph, meaning) = match finding.severity {
        Severity::Critical => (palette.glyph("‼", "!!"), Meaning::Bad),
        Severity::Warning => ("!", Meaning::Fair),
        Severity::Info | Severity::Ok => ("i", Meaning::Work),
    };
    let key = FixRequest::of(finding).to_string();
    let remedy = finding.remedies.first();
    let gain = remedy.map_or_else(String::new, |remedy| match &remedy.gain {
        Gain::AtMost { measure: most, of, .. } => format!("at most {} of {of}", measure(most)),
        Gain::Forecast { load_that_fits: gain, .. } => {
            format!("{:+.0}% of the load that fits", 100.0 * gain.value)
        }
        Gain::Unknown(_) => "not known".into(),
        Gain::Nothing(_) => "nothing".into(),
    });
    let settings = finding.writable().map_or(0, |remedy| remedy.changes.len());
    let plans = if settings == 0 { "-".to_owned() } else { plural(settings, "setting") };
    let severity = format!("{glyph} {}", finding.severity.as_str());
    // the worst come first, because numbers are sorted that way
    let rank = Some(f64::from(finding.severity as u8));
    Row {
        cells: vec![
            Cell { value: rank, ..Cell::text(severity).meaning(meaning) },
            Cell::text(finding.subject.to_string()),
            Cell::text(finding.title.clone()),
            Cell::text(gain),
            Cell::text(plans),
        ],
        key,
    }
}
