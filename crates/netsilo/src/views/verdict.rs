//! Verdicts as a table: the outcome of each remedy on each netdev, and why in one line.

use std::fmt::Write as _;

use netsilo_decide::judge::evidence::Gain;
use netsilo_decide::judge::findings::Check;
use netsilo_decide::judge::verdict::RemedyVerdict;

use crate::views::check::measure;
use crate::views::table::{table, trim_lines};

/// Renders all verdicts and the source of the weights; with `all`, the numbers behind each verdict.
pub(crate) fn render(check: &Check, all: bool) -> String {
    let verdicts = &check.verdicts;
    if verdicts.is_empty() {
        return String::new();
    }
    let mut rows = table(&["  remedy", "netdev", "outcome", "why"], |_| false);
    for it in verdicts {
        rows.add_row([
            format!("  {}", it.remedy),
            it.subject.to_string(),
            it.outcome.to_string(),
            it.reason.clone(),
        ]);
    }
    let mut text = format!("\nwhat each remedy would do\n{}\n", trim_lines(&rows));
    if !check.distances.is_empty() {
        let _ = writeln!(text, "  estimated with {}", check.distances);
    }
    if all {
        verdicts.iter().for_each(|verdict| reasons(&mut text, verdict));
    }
    text
}

fn reasons(text: &mut String, verdict: &RemedyVerdict) {
    let _ = writeln!(text, "\n{} on {}: {}", verdict.remedy, verdict.subject, verdict.outcome);
    let width =
        verdict.reasons.iter().map(|reason| reason.quantity.chars().count()).max().unwrap_or(0);
    for reason in &verdict.reasons {
        let _ = writeln!(
            text,
            "  {:width$}  {} ({})",
            reason.quantity,
            measure(&reason.measure),
            reason.source
        );
    }
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
        assert!(render(&check, true).contains("\nRPS on eth0: "));
        assert_eq!(render(&Check { verdicts: Vec::new(), ..check }, true), "");
    }
}
