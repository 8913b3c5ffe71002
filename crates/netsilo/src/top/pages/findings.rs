//! The page of findings: what `netsilo check` finds in this window.

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::Severity;

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::plural;
use crate::top::listing::{Cell, Column, Listing, Row, left, wide};
use crate::top::state::{FINDINGS_STAY, Seen, State};
use crate::top::window::Window;
use crate::views::check::measure;

const COLUMNS: &[Column] = &[
    left("severity", 0),
    left("subject", 1),
    wide("what", 0, 60),
    left("gain", 2),
    left("p plans", 3),
];

/// Lists the findings of this window and those of the last 30 s, most severe first. Checks without
/// a finding are only counted.
pub(super) fn listing(state: &State, window: &Window) -> Listing {
    let well = window.check.findings.iter().filter(|it| it.severity == Severity::Ok).count();
    let stay = humantime::format_duration(FINDINGS_STAY);
    Listing {
        columns: COLUMNS,
        rows: state.history.findings.iter().map(|seen| row(seen, state.palette)).collect(),
        empty: "no check found a problem in this window; netsilo check observes for 5 s".into(),
        notes: vec![format!(
            "{} without a finding; a finding stays for {stay} after its last window",
            plural(well, "check")
        )],
    }
}

fn row(seen: &Seen, palette: Palette) -> Row {
    let finding = &seen.finding;
    let (glyph, meaning) = match finding.severity {
        Severity::Critical => (palette.glyph("‼", "!!"), Meaning::Bad),
        Severity::Warning => ("!", Meaning::Fair),
        Severity::Info | Severity::Ok => ("i", Meaning::Work),
    };
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
    let earlier = seen.earlier();
    let when = earlier.as_deref().unwrap_or(finding.severity.as_str());
    let severity = Cell::text(format!("{glyph} {when}")).meaning(meaning);
    let plain = if earlier.is_some() { Meaning::Quiet } else { Meaning::Plain };
    let text = |text: String| Cell::text(text).meaning(plain);
    // the worst come first, because numbers are sorted that way
    let rank = Some(f64::from(finding.severity as u8));
    Row {
        key: seen.key(),
        cells: vec![
            Cell { value: rank, ..severity },
            text(finding.subject.to_string()),
            text(finding.title.clone()),
            text(gain),
            text(plans),
        ],
    }
}
