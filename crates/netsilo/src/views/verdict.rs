//! Verdicts as a table: the outcome of each remedy on each netdev, and why in one line.

use std::fmt::Write as _;

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::{Outcome, RemedyVerdict};

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::check::{evidence, measure};
use crate::views::table::{joined, lines};

/// Renders all verdicts and the source of the weights; with `all`, the numbers behind each verdict.
pub(crate) fn render(check: &Check, all: bool) -> Styled {
    let verdicts = &check.verdicts;
    let mut text = Styled::default();
    if verdicts.is_empty() {
        return text;
    }
    let row = |it: &RemedyVerdict| {
        vec![
            format!("  {}", it.remedy).into(),
            it.subject.to_string().into(),
            Styled::new(meaning(it.outcome), it.outcome),
            it.reason.clone().into(),
        ]
    };
    let rows: Vec<_> = verdicts.iter().map(row).collect();
    text.push(Meaning::Title, "\nwhat each remedy would do\n");
    let header = ["  remedy", "netdev", "outcome", "why"];
    text.append(&joined(lines(&header, &rows, |_| false).into_iter()));
    let _ = writeln!(text);
    if !check.distances.is_empty() {
        let _ = writeln!(text, "  estimated with {}", check.distances);
    }
    if all {
        verdicts.iter().for_each(|verdict| reasons(&mut text, verdict));
    }
    text
}

/// Whether an outcome is wanted.
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
    evidence(text, &verdict.reasons);
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

    use super::*;

    #[test]
    fn each_remedy_has_a_line_and_its_numbers_on_request() {
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
        let check = check(&Analysis::new(&scene.observation(), &Costs::default()));
        insta::assert_snapshot!(render(&check, false));
        assert!(render(&check, true).as_str().contains("\nRPS on eth0: "));
        assert_eq!(render(&Check { verdicts: Vec::new(), ..check }, true), Styled::default());
    }
}
