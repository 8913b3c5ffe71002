//! The outcomes as tables, in Markdown.

use anyhow::Result;
use netsilo_model::cost::assumed::Assumed;
use netsilo_predict::live::claim::Claim;
use netsilo_trial::stats::Estimate;

use crate::experiment::record::{LoadRecord, SettingRecord, middle};
use crate::outcome::forecasts::Checked;
use crate::outcome::outcomes::RecordedOutcomes;
use crate::say::markdown;

/// A column: its head, the figure, and how to print its median.
type Column = (&'static str, &'static str, fn(f64) -> String);

/// Of a veth per transaction, or per megabyte of a stream; of a guest per transaction, and shares
/// of all bytes by the distance to their reader.
const COLUMNS: [Column; 10] = [
    ("p50", "p50_us", us),
    ("p99", "p99_us", us),
    ("CPU", "cpu_us", us),
    ("in run queues", "run_queue_us", us),
    ("IPIs", "ipis", count),
    ("softirqs", "softirqs", count),
    ("switches", "switches", count),
    ("read on the same CPU", "bytes_same_cpu", whole_percent),
    ("same LLC", "bytes_same_llc", whole_percent),
    ("other node", "bytes_remote", whole_percent),
];

/// What the default chooses under each load, and its regret.
pub(super) fn choices(outcomes: &RecordedOutcomes, assumed: Assumed) -> Result<String> {
    // The names of the counts are those of their columns.
    let counted = outcomes.counted().and_then(|figure| COLUMNS.iter().find(|it| it.1 == figure));
    let mut table = match counted {
        Some((name, ..)) => markdown(&[
            "load",
            &format!("fewest {name} on"),
            "per transaction",
            "chosen from",
            &format!("{name} beyond"),
        ]),
        None => markdown(&["load", "best measured on", "it gives", "chosen from", "regret"]),
    };
    let regrets = outcomes.regrets(assumed)?;
    for (load, regret) in outcomes.recorded.loads.iter().zip(&regrets) {
        let on = |setting: usize| load.settings[setting].cpus.join(",");
        let chosen = outcomes.chosen(load, assumed)?.into_iter().zip(&load.starts);
        let mut ways: Vec<String> =
            chosen.map(|(to, start)| format!("{} -> {}", on(start.placement), on(to))).collect();
        ways.dedup();
        let best = load.best();
        let (gives, regret) = if load.counted().is_some() {
            (count(-load.score(best)), count(regret.value.max(0.0)))
        } else {
            (rate(load, load.rate(best)), with_interval(*regret))
        };
        table.add_row([load.name.clone(), on(best), gives, ways.join("; "), regret]);
    }
    let order = outcomes.order(assumed);
    let (mean, worst) = mean_and_worst(&regrets);
    let lost = match counted {
        Some((name, ..)) => {
            format!("More {name} than the fewest: {mean:.2} on average, {worst:.2} at most")
        }
        None => format!("Regret: {}", summary(&regrets)),
    };
    Ok(format!(
        "{table}\n\n{lost}.\nPairs of placements in the measured order: {} of {}; rank correlation \
         {:.2}.",
        order.right, order.pairs, order.tau
    ))
}

/// What each setting gave, and what the model expects; `None` if only rates were recorded.
pub(super) fn measured(outcomes: &RecordedOutcomes, assumed: Assumed) -> Option<String> {
    let loads = &outcomes.recorded.loads;
    let has = |(_, figure, _): &Column| {
        loads.iter().flat_map(|load| &load.settings).any(|it| it.figures.contains_key(*figure))
    };
    let columns: Vec<Column> = COLUMNS.into_iter().filter(has).collect();
    if columns.is_empty() {
        return None;
    }
    let mut head = vec!["load", "setting", "rate"];
    head.extend(columns.iter().map(|(head, _, _)| *head));
    head.push("expected cost");
    let mut table = markdown(&head);
    for load in loads {
        let expected = outcomes.expected(load, assumed);
        for (at, setting) in load.settings.iter().enumerate() {
            let name = if at == 0 { load.name.clone() } else { String::new() };
            let mut row = vec![name, setting.label(), rate(load, load.rate(at))];
            row.extend(columns.iter().map(|column| cell(setting, column)));
            let cost = expected.iter().find(|(placement, _)| *placement == at);
            row.push(cost.map_or_else(String::new, |(_, cost)| percent(*cost)));
            table.add_row(row);
        }
    }
    Some(table.to_string())
}

/// The regret of each recording, by its name, and the load that loses most.
pub(super) fn recordings(all: &[(&str, &RecordedOutcomes)], assumed: Assumed) -> Result<String> {
    let mut table = markdown(&[
        "recording",
        "loads",
        "regret on average",
        "at most",
        "there",
        "by forecast alone",
        "correlation",
        "forecasts",
        "in their interval",
        "signs of clear ones",
    ]);
    for (name, outcomes) in all {
        let (regrets, loads) = (outcomes.regrets(assumed)?, &outcomes.recorded.loads);
        let (mean, most) = mean_and_worst(&regrets);
        let worst = loads.iter().zip(&regrets).find(|(_, it)| it.value > 0.0 && it.value == most);
        let worst = worst.map_or_else(String::new, |(load, _)| load.name.clone());
        let forecasts = outcomes.forecasts()?;
        let held = forecasts.iter().filter(|(_, it)| it.is_held()).count();
        let all = forecasts.iter().map(|(_, it)| it);
        let is_clear = |it: &&Checked| matches!(it.claim, Claim::Help | Claim::Hurt);
        let clear: Vec<&Checked> = all.filter(is_clear).collect();
        let right = clear.iter().filter(|it| it.expected.value * it.measured > 0.0).count();
        table.add_row([
            format!("`{name}`"),
            loads.len().to_string(),
            percent(mean),
            percent(most),
            worst,
            percent(mean_and_worst(&outcomes.regrets_by_forecast()).0),
            format!("{:.2}", outcomes.order(assumed).tau),
            forecasts.len().to_string(),
            whole_percent(held as f64 / forecasts.len() as f64),
            format!("{right} of {}", clear.len()),
        ]);
    }
    Ok(table.to_string())
}

fn cell(setting: &SettingRecord, (_, figure, print): &Column) -> String {
    setting.figures.get(*figure).map_or_else(String::new, |rounds| print(middle(rounds)))
}

/// The regret over all recorded rates when each assumed parameter is half or double as large.
pub(super) fn sensitivity<'a>(
    all: impl IntoIterator<Item = &'a RecordedOutcomes>,
) -> Result<String> {
    let rated: Vec<&RecordedOutcomes> =
        all.into_iter().filter(|outcomes| outcomes.counted().is_none()).collect();
    let regret = |assumed: Assumed| -> Result<String> {
        let each: Vec<Vec<Estimate>> =
            rated.iter().map(|it| it.regrets(assumed)).collect::<Result<_>>()?;
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

fn rate(load: &LoadRecord, rate: f64) -> String {
    if load.unit == "byte" {
        return format!("{:.0} MB/s", rate / 1e6);
    }
    format!("{rate:.0}/s")
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn whole_percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Microseconds with three digits.
fn us(us: f64) -> String {
    let digits = if us < 10.0 { 2 } else { usize::from(us < 100.0) };
    format!("{us:.digits$} us")
}

fn count(count: f64) -> String {
    format!("{count:.2}")
}

fn with_interval(Estimate { value, low, high }: Estimate) -> String {
    if low.is_nan() || low == high {
        return percent(value);
    }
    format!("{} ({:.1} to {:.1})", percent(value), low * 100.0, high * 100.0)
}

fn summary(regrets: &[Estimate]) -> String {
    let (mean, worst) = mean_and_worst(regrets);
    format!("{} on average, {} at most", percent(mean), percent(worst))
}

/// Of some regrets; a choice that is better than the best one has none.
fn mean_and_worst(regrets: &[Estimate]) -> (f64, f64) {
    let values = regrets.iter().map(|regret| regret.value.max(0.0));
    let mean = values.clone().sum::<f64>() / regrets.len() as f64;
    (mean, values.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_are_known() {
        assert_eq!(
            (us(1.234), us(12.34), us(1234.0)),
            ("1.23 us".into(), "12.3 us".into(), "1234 us".into())
        );
        let regret = Estimate { value: 0.05, low: 0.01, high: 0.1 };
        assert_eq!(with_interval(regret), "5.0% (1.0 to 10.0)");
        let sure = Estimate { value: 0.0, low: 0.0, high: 0.0 };
        assert_eq!(with_interval(sure), "0.0%");
        let better = Estimate { value: -0.1, low: f64::NAN, high: f64::NAN };
        assert_eq!(summary(&[regret, better]), "2.5% on average, 5.0% at most");
    }
}
