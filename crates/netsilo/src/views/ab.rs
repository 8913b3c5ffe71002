//! The result of `ab`, as JSON and as text.

use std::fmt::Write as _;

use netsilo_trial::comparison::{Comparison, ComparisonSpec, Conclusion, Scale};
use netsilo_trial::stats::Estimate;
use netsilo_trial::stats::sequential::Stop;
use netsilo_trial::stats::steadiness::Steadiness;
use serde::Serialize;

use crate::args::ab_setting::AbSetting;
use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::tell::words::plural;
use crate::views::units;

/// Renders the verdict, its numbers, and the reasons to doubt it.
pub(crate) fn render(result: &AbResult<'_>) -> Styled {
    let AbResult { comparison, question, .. } = result;
    let mut text = Styled::default();
    let title = format_args!("A {}, B {}: {}\n", result.a, result.b, result.measured).to_string();
    text.push(Meaning::Title, title);
    if let Some((a, b)) = comparison.medians {
        let number = if result.unit.is_some() { units::nanoseconds } else { number };
        let _ = writeln!(text, "  median        A {}, B {}", number(a), number(b));
    }
    let meaning = match comparison.verdict {
        Conclusion::Better => Meaning::Good,
        Conclusion::Worse => Meaning::Bad,
        Conclusion::NoDifferenceShown => Meaning::Quiet,
    };
    text.push(meaning, format_args!("  {}\n", verdict(comparison, question.scale)));
    let _ = writeln!(text, "  {}", stopped(result));
    if let Some(bootstrap) = comparison.bootstrap {
        let _ = writeln!(
            text,
            "  bootstrap interval of these pairs, as for a fixed number of pairs: {}",
            interval(&bootstrap, question.scale)
        );
    }
    for (name, steadiness) in [("A", &comparison.a), ("B", &comparison.b)] {
        for note in notes(name, steadiness) {
            text.push(Meaning::Quiet, format_args!("  note: {note}\n"));
        }
    }
    if !comparison.outliers.is_empty() {
        let pairs: Vec<String> = comparison.outliers.iter().map(|n| (n + 1).to_string()).collect();
        let pairs = pairs.join(", ");
        text.push(
            Meaning::Quiet,
            format_args!("  note: outlier: the difference of pair {pairs}\n"),
        );
    }
    text
}

/// The verdict in one line: `B is 9.8% higher (+9.1% .. +10.4%, 95%): better`.
pub(crate) fn verdict(comparison: &Comparison, scale: Scale) -> String {
    let Some(change) = comparison.change else {
        return "no difference shown: too few pairs for an interval".into();
    };
    let interval = interval(&change, scale);
    let sure = (1.0 - comparison.error_rate) * 100.0;
    let size = size(change.value.abs(), scale);
    let higher = if change.value > 0.0 { "higher" } else { "lower" };
    match comparison.verdict {
        Conclusion::NoDifferenceShown => format!("no difference shown ({interval}, {sure:.0}%)"),
        Conclusion::Better => format!("B is {size} {higher} ({interval}, {sure:.0}%): better"),
        Conclusion::Worse => format!("B is {size} {higher} ({interval}, {sure:.0}%): worse"),
    }
}

/// The interval of the pairs measured so far.
pub(crate) fn so_far(comparison: &Comparison, scale: Scale) -> String {
    comparison.change.map_or_else(String::new, |change| interval(&change, scale))
}

fn stopped(result: &AbResult<'_>) -> String {
    let AbResult { comparison, question, .. } = result;
    let pairs = plural(comparison.pairs.len(), "pair");
    if result.interrupted {
        return format!(
            "interrupted after {pairs}; the interval uses the first {}",
            comparison.pairs_used
        );
    }
    let most = question.rules.max_pairs;
    match comparison.stop {
        Some(Stop::Clear) => format!("stopped after {pairs}: clear"),
        Some(Stop::Alike) => {
            let matters = size(question.rules.smallest_relevant, question.scale);
            format!("stopped after {pairs}: any difference is below {matters}")
        }
        Some(Stop::Hopeless) => {
            format!("stopped after {pairs}: all {most} would not show a difference")
        }
        Some(Stop::Exhausted) | None => format!("all {pairs} used"),
    }
}

fn notes(name: &str, steadiness: &Steadiness) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(drift) = steadiness.drift {
        notes.push(format!(
            "{name} drifted by {:+.1}% from the first pair to the last",
            drift * 100.0
        ));
    }
    if let Some(alike) = steadiness.autocorrelation {
        notes
            .push(format!("{name} is autocorrelated: neighbouring pairs are similar ({alike:.2})"));
    }
    if !steadiness.outliers.is_empty() {
        let pairs: Vec<String> = steadiness.outliers.iter().map(|n| (n + 1).to_string()).collect();
        notes.push(format!("{name} has an outlier in pair {}", pairs.join(", ")));
    }
    notes
}

/// An interval of a change: `-9.1% .. +0.4%`, in words if it goes so far that it says nothing.
pub(crate) fn interval(estimate: &Estimate, scale: Scale) -> String {
    let Estimate { low, high, .. } = *estimate;
    if scale == Scale::Ratio && low < 0.0 && high > 0.0 && (1.0 + high) > 4.0 * (1.0 + low) {
        return "less than half to more than twice".into();
    }
    format!("{} .. {}", signed(low, scale), signed(high, scale))
}

/// A change with its sign.
pub(crate) fn signed(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Ratio => format!("{:+.1}%", value * 100.0),
        Scale::Difference => format!("{value:+.3}"),
    }
}

/// The size of a change, without its sign.
pub(crate) fn size(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Ratio => format!("{:.1}%", value * 100.0),
        Scale::Difference => format!("{value:.3}"),
    }
}

/// Three significant digits, also below 1.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:.3}") } else { units::count(value) }
}

/// The result of a comparison as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AbResult<'a> {
    pub(crate) schema: u32,
    // `a` and `b` belong to the comparison
    #[serde(rename = "setting_a")]
    pub(crate) a: &'a AbSetting,
    #[serde(rename = "setting_b")]
    pub(crate) b: &'a AbSetting,
    pub(crate) measured: String,
    /// Unit of the measured numbers: `ns`, or `None` when unknown.
    pub(crate) unit: Option<&'static str>,
    pub(crate) question: ComparisonSpec,
    pub(crate) interrupted: bool,
    #[serde(flatten)]
    pub(crate) comparison: &'a Comparison,
}

#[cfg(test)]
mod tests {
    use netsilo_trial::comparison::{Better, ComparisonSpec, Pair};
    use netsilo_trial::stats::sequential::Rules;

    use super::*;

    fn told(values: impl Fn(usize) -> (f64, f64), n: usize, interrupted: bool) -> Styled {
        let pairs: Vec<Pair> =
            (0..n).map(|n| Pair { a: values(n).0, b: values(n).1, b_first: n % 3 == 0 }).collect();
        let question = ComparisonSpec {
            rules: Rules::default(),
            scale: Scale::Ratio,
            better: Better::Higher,
            seed: 1,
        };
        let comparison = question.compare(&pairs);
        let (a, b, measured) =
            (&AbSetting::None, &AbSetting::Plan(None), "netsilo-bench run".to_owned());
        render(&AbResult {
            schema: 1,
            a,
            b,
            measured,
            unit: None,
            question,
            interrupted,
            comparison: &comparison,
        })
    }

    #[test]
    fn a_clear_difference_and_what_speaks_against_it() {
        let values = |n: usize| {
            (1e5 + 4000.0 * n as f64, if n == 5 { 9e5 } else { 1.2e5 + 4100.0 * n as f64 })
        };
        let text = told(values, 8, false);
        insta::assert_snapshot!(text);
        assert!(text.with_meanings().contains("<Good   B is "), "{text}");
    }

    #[test]
    fn no_difference_shown_says_how_large_one_may_be() {
        let values = |n: usize| (100.0 + (n * 7 % 5) as f64, 100.0 + (n * 3 % 5) as f64);
        insta::assert_snapshot!(format!(
            "{}\n{}\n{}",
            told(values, 60, false),
            told(values, 9, true),
            told(values, 2, false)
        ));
    }
}
