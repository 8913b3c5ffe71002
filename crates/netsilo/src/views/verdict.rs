//! Verdicts as a table: the outcome of each remedy on each netdev, and the reason in one line.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::{Outcome, RemedyVerdict};
use netsilo_predict::live::forecast::Forecast;

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::check::{evidence, measure};
use crate::views::forecast::gain;
use crate::views::table::{joined, lines};

/// Renders the verdicts, each with its forecast, and the source of the weights. Remedies that would
/// help or have a forecast get rows; the others are counted by outcome. With `all`, each has a row,
/// followed by its numbers.
pub(crate) fn render(
    check: &Check,
    forecast: Option<&Result<Forecast, String>>,
    all: bool,
) -> Styled {
    let verdicts = &check.verdicts;
    let mut text = Styled::default();
    if verdicts.is_empty() {
        return text;
    }
    let gain = |it: &RemedyVerdict| match forecast {
        Some(Ok(forecast)) => gain(forecast, &it.name()),
        _ => None,
    };
    let has_gains = verdicts.iter().any(|it| gain(it).is_some());
    let row = |it: &RemedyVerdict| {
        let gain = gain(it).unwrap_or_else(|| "-".to_owned().into());
        let mut row = vec![
            format!("  {}", it.remedy).into(),
            it.subject.to_string().into(),
            Styled::new(meaning(it.outcome), it.outcome),
        ];
        row.extend(has_gains.then_some(gain));
        row.push(it.reason.clone().into());
        row
    };
    let is_shown = |it: &&RemedyVerdict| all || it.outcome == Outcome::Help || gain(it).is_some();
    let (shown, others): (Vec<&RemedyVerdict>, Vec<_>) = verdicts.iter().partition(is_shown);
    let rows: Vec<_> = shown.into_iter().map(row).collect();
    if rows.is_empty() {
        text.push(
            Meaning::Quiet,
            format_args!("\nRPS, RFS and other remedies (-v): {}\n", counted(&others)),
        );
        if let Some(Err(why)) = forecast {
            let _ = writeln!(text, "  no forecast: {why}");
        }
        return text;
    }
    text.push(Meaning::Title, "\nwhat each remedy would do\n");
    let mut header = vec!["  remedy", "netdev", "outcome"];
    header.extend(has_gains.then_some("forecast"));
    header.push("why");
    text.append(&joined(lines(&header, &rows, |_| false).into_iter()));
    let _ = writeln!(text);
    if !others.is_empty() {
        text.push(Meaning::Quiet, format_args!("  {} (-v shows why)\n", counted(&others)));
    }
    if has_gains {
        text.push(
            Meaning::Quiet,
            "  forecast: change of the load that fits, with a 90% interval (docs/predict.md)\n",
        );
    }
    if let Some(Err(why)) = forecast {
        let _ = writeln!(text, "  no forecast: {why}");
    }
    if !check.distances.is_empty() {
        let _ = writeln!(text, "  estimated with {}", check.distances);
    }
    if all {
        verdicts.iter().for_each(|verdict| reasons(&mut text, verdict));
    }
    text
}

/// The remedies of each outcome: `hurts RPS, RFS; no clear change 7`.
fn counted(verdicts: &[&RemedyVerdict]) -> String {
    let words = |outcome: Outcome| {
        let names = || verdicts.iter().filter(|it| it.outcome == outcome).map(|it| it.remedy);
        // each once, though it may hurt several netdevs
        let different: BTreeSet<_> = names().collect();
        let words = match outcome {
            Outcome::Hurt => {
                different.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            _ => names().count().to_string(),
        };
        (!different.is_empty()).then(|| format!("{outcome} {words}"))
    };
    let outcomes = [Outcome::Help, Outcome::Hurt, Outcome::Unknown, Outcome::NoClearChange];
    outcomes.into_iter().filter_map(words).collect::<Vec<_>>().join("; ")
}

/// Whether an outcome is good or bad.
fn meaning(outcome: Outcome) -> Meaning {
    match outcome {
        Outcome::Help => Meaning::Good,
        Outcome::Hurt => Meaning::Bad,
        Outcome::NoClearChange | Outcome::Unknown => Meaning::Quiet,
    }
}

fn reasons(text: &mut Styled, verdict: &RemedyVerdict) {
    let RemedyVerdict { remedy, subject, outcome, .. } = verdict;
    text.push(Meaning::Title, format_args!("\n{remedy} on {subject}"));
    let _ = write!(text, ": ");
    text.push(meaning(*outcome), outcome);
    let _ = writeln!(text);
    evidence(text, &verdict.reasons, true);
    let _ = match &verdict.bound {
        Gain::AtMost { measure: most, of, basis } => {
            writeln!(text, "  gains at most {} of {of}: {basis}", measure(most))
        }
        Gain::Unknown(why) => writeln!(text, "  gain not known: {why}"),
        Gain::Nothing(why) => writeln!(text, "  gains nothing: {why}"),
    };
    if let Some(not_when) = &verdict.not_when {
        let _ = writeln!(text, "  not when {not_when}");
    }
    for change in &verdict.changes {
        let _ = writeln!(text, "  {}: {} -> {}", change.target, change.old, change.new);
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::findings::check;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::scene::Scene;

    use crate::forecast::forecast_of_remedies;

    use super::*;

    #[test]
    fn clear_changes_have_a_line_and_all_have_their_numbers_on_request() {
        let scene: Scene = serde_json::from_value(serde_json::json!({
            "grid": { "l2s": 4 },
            "virtual_machine": false,
            "netdevs": [{ "name": "eth0", "driver": "virtio_net", "queues": [{
                "irq": 30, "cpus": "0", "rps_cpus": "", "packets_per_s": 200000,
                "packets_per_poll": 32, "load": 0.95,
                "readers": [
                    { "comm": "a", "cpu": 1, "bytes_per_s": 100 },
                    { "comm": "b", "cpu": 2, "bytes_per_s": 100 },
                ],
            }] }]
        }))
        .unwrap();
        let (observation, costs) = (scene.observation(), Costs::default());
        let analysis = Analysis::new(&observation, &costs);
        let check = check(&analysis);
        let forecast = forecast_of_remedies(&analysis, &check);
        insta::assert_snapshot!("with_forecast", render(&check, forecast.as_ref(), false));
        insta::assert_snapshot!(render(&check, None, false));
        let is_clear = |verdict: &RemedyVerdict| verdict.outcome != Outcome::NoClearChange;
        let none: Vec<_> = check.verdicts.iter().filter(|it| !is_clear(it)).cloned().collect();
        let none = Check { verdicts: none, ..check.clone() };
        let text = render(&none, None, false);
        let counted = format!("other remedies (-v): no clear change {}\n", none.verdicts.len());
        assert!(text.as_str().contains(&counted), "{text}");
        assert!(render(&check, None, true).as_str().contains("\nRPS on eth0: "));
        let why = Err("no packets".to_owned());
        let text = render(&check, Some(&why), false);
        assert!(text.as_str().contains("\n  no forecast: no packets\n"), "{}", text.as_str());
        assert_eq!(render(&Check { verdicts: Vec::new(), ..check }, None, true), Styled::default());
    }
}
