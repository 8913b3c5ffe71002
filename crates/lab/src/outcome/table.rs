//! The outcomes as tables, in Markdown.

use anyhow::Result;
use netsilo_model::cost::assumed::Assumed;

use crate::outcome::recorded::{Load, Outcomes};
use crate::say::markdown;

/// What each placement gave, what the default chooses, and its regret.
pub(super) fn choices(outcomes: &Outcomes, assumed: Assumed) -> Result<String> {
    let placements = &outcomes.recorded.placements;
    let on = |placement: usize| placements[placement].join(",");
    let mut table = markdown(&["load", "best measured on", "it gives", "chosen from", "regret"]);
    let regrets = outcomes.regrets(assumed)?;
    for (load, regret) in outcomes.recorded.loads.iter().zip(&regrets) {
        let best = best(load);
        let chosen = outcomes.chosen(load, assumed)?.into_iter().zip(&load.starts);
        let mut ways: Vec<String> =
            chosen.map(|(to, start)| format!("{} -> {}", on(start.placement), on(to))).collect();
        ways.dedup();
        table.add_row([
            load.name.clone(),
            on(best),
            format!("{:.0}/s", load.rate(best)),
            ways.join("; "),
            percent(*regret),
        ]);
    }
    let (right, pairs) = outcomes.ordered(assumed);
    Ok(format!(
        "{table}\n\nRegret: {}; {right} of {pairs} pairs of placements in the measured order.",
        summary(&regrets)
    ))
}

/// The regret over all recorded outcomes when each assumed parameter is half or double as large.
pub(super) fn sensitivity(all: &[Outcomes]) -> Result<String> {
    let regret = |assumed: Assumed| -> Result<String> {
        let each: Vec<Vec<f64>> =
            all.iter().map(|it| it.regrets(assumed)).collect::<Result<_>>()?;
        Ok(summary(&each.concat()))
    };
    let mut table = markdown(&["assumed", "half", "double"]);
    let as_is = regret(Assumed::default())?;
    table.add_row(["all as they are", &as_is, &as_is]);
    for (name, [half, double]) in Assumed::half_and_double() {
        table.add_row([name, &regret(half)?, &regret(double)?]);
    }
    Ok(table.to_string())
}

fn best(load: &Load) -> usize {
    let rates = (0..load.rates.len()).map(|placement| (placement, load.rate(placement)));
    rates.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(placement, _)| placement)
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// The mean and the worst of some regrets.
fn summary(regrets: &[f64]) -> String {
    let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
    let worst = regrets.iter().copied().fold(0.0, f64::max);
    format!("{} on average, {} at most", percent(mean), percent(worst))
}
