//! Verdicts as a table: the effect of each remedy on each netdev, and why in one line.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::{Claim, RemedyVerdict};

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::check::{evidence, measure};
use crate::views::forecast::forecast_in_words;
use crate::views::table::whole;

/// Renders the verdicts, each with its forecast, and the source of the weights. Remedies that would
/// help have rows, the others are counted by claim; with `all` each has a row, and the numbers
/// behind it follow.
pub(crate) fn render(check: &Check, all: bool) -> Styled {
    let verdicts = &check.verdicts;
    let mut text = Styled::default();
    if verdicts.is_empty() {
        return text;
    }
    let row = |it: &RemedyVerdict| {
        let gain = match it.gain {
            Gain::Forecast { load_that_fits: gain, .. } => {
                Styled::new(meaning(it.claim), gain.in_percent())
            }
            _ => "-".to_owned().into(),
        };
        vec![
            format!("  {}", it.remedy).into(),
            it.subject.to_string().into(),
            Styled::new(meaning(it.claim), it.claim),
            gain,
            it.reason.clone().into(),
        ]
    };
    let is_shown = |it: &&RemedyVerdict| all || it.claim == Claim::Help || !it.changes.is_empty();
    let (shown, others): (Vec<&RemedyVerdict>, Vec<_>) = verdicts.iter().partition(is_shown);
    let rows: Vec<_> = shown.into_iter().map(row).collect();
    if rows.is_empty() {
        text.push(
            Meaning::Quiet,
            format_args!("\nRPS, RFS and other remedies (-v): {}\n", counted(&others)),
        );
        return text;
    }
    text.push(Meaning::Title, "\nwhat each remedy would do\n");
    let header = ["  remedy", "netdev", "verdict", "forecast", "why"];
    text.append(&whole(&header, &rows, |_| false));
    let _ = writeln!(text);
    if !others.is_empty() {
        text.push(Meaning::Quiet, format_args!("  {} (-v shows why)\n", counted(&others)));
    }
    text.push(
        Meaning::Quiet,
        "  forecast: change of the load that fits, with a 90% interval (docs/predict.md)\n",
    );
    if !check.distances.is_empty() {
        let _ = writeln!(text, "  estimated with {}", check.distances);
    }
    if all {
        verdicts.iter().for_each(|verdict| reasons(&mut text, verdict));
    }
    text
}

/// The remedies of each claim: `hurts RPS, RFS; no clear change 7`.
fn counted(verdicts: &[&RemedyVerdict]) -> String {
    let words = |claim: Claim| {
        let names = || verdicts.iter().filter(|it| it.claim == claim).map(|it| it.remedy);
        // each once, though it may hurt several netdevs
        let different: BTreeSet<_> = names().collect();
        let words = match claim {
            Claim::Hurt => different.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            _ => names().count().to_string(),
        };
        (!different.is_empty()).then(|| format!("{claim} {words}"))
    };
    let claims = [Claim::Help, Claim::Hurt, Claim::Unknown, Claim::NoClearChange];
    claims.into_iter().filter_map(words).collect::<Vec<_>>().join("; ")
}

/// Whether a claim is wanted.
fn meaning(claim: Claim) -> Meaning {
    match claim {
        Claim::Help => Meaning::Good,
        Claim::Hurt => Meaning::Bad,
        Claim::NoClearChange | Claim::Unknown => Meaning::Quiet,
    }
}

fn reasons(text: &mut Styled, verdict: &RemedyVerdict) {
    let RemedyVerdict { remedy, subject, claim, .. } = verdict;
    text.push(Meaning::Title, format_args!("\n{remedy} on {subject}"));
    let _ = write!(text, ": ");
    text.push(meaning(*claim), claim);
    let _ = writeln!(text);
    evidence(text, &verdict.reasons, true);
    let _ = match &verdict.gain {
        Gain::Forecast { load_that_fits, limit } => {
            writeln!(text, "  {}", forecast_in_words(*load_that_fits, limit))
        }
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
        insta::assert_snapshot!(render(&check, false));
        let is_clear = |verdict: &RemedyVerdict| verdict.claim != Claim::NoClearChange;
        let none: Vec<_> = check.verdicts.iter().filter(|it| !is_clear(it)).cloned().collect();
        let none = Check { verdicts: none, ..check.clone() };
        let text = render(&none, false);
        let counted = format!("other remedies (-v): no clear change {}\n", none.verdicts.len());
        assert!(text.as_str().contains(&counted), "{text}");
        assert!(render(&check, true).as_str().contains("\nRPS on eth0: "));
        assert_eq!(render(&Check { verdicts: Vec::new(), ..check }, true), Styled::default());
    }
}
