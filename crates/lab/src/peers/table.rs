//! The results of a workload as text.

use comfy_table::{CellAlignment, Table, presets};
use netsilo_stats::Estimate;

use crate::locality::Shares;
use crate::peers::results::{Comparison, Lost, SettingResults, WorkloadResults};

/// A table with one row per state and per lost setting, and one with a row per quantity.
pub(crate) fn show(results: &WorkloadResults) -> String {
    let WorkloadResults { workload, settings, comparisons, lost } = results;
    let header = [
        "per transaction:",
        "transactions/s",
        "IPIs",
        "softirqs",
        "switches",
        "read on same cpu",
        "same LLC",
        "other socket",
    ];
    let mut text = format!(
        "\n=== {workload}\n{}",
        aligned(
            header.map(String::from),
            settings.iter().map(row).chain(lost.iter().filter_map(lost_row))
        )
    );
    for Lost { setting, why } in lost {
        let what = setting.map_or("LOST", |setting| setting.name());
        text += &format!("\n{what}: {why}");
    }
    if !comparisons.is_empty() {
        let header = ["netsilo over the best peer", "", "netsilo", "peer", "ratio (95%)", ""];
        let rows = comparisons.iter().map(|it| comparison(it, it.quantity));
        let irqbalance = results.over_irqbalance();
        let last = irqbalance.iter().map(|it| comparison(it, "per_second, over irqbalance"));
        text += &format!("\n\n{}", aligned(header.map(String::from), rows.chain(last)));
    }
    text
}

fn row(state: &SettingResults) -> [String; 8] {
    let names: Vec<_> = state.settings.iter().map(|setting| setting.name()).collect();
    let percent = |share: fn(Shares) -> f64| {
        state.bytes.map_or_else(|| "-".into(), |bytes| format!("{:.0}%", share(bytes) * 100.0))
    };
    [
        names.join(" = "),
        format!("{:.0}", state.median(|round| round.per_second)),
        format!("{:.3}", state.median(|round| round.ipis)),
        format!("{:.3}", state.median(|round| round.softirqs)),
        format!("{:.3}", state.median(|round| round.switches)),
        percent(|bytes| bytes.same_cpu),
        percent(|bytes| bytes.same_llc),
        percent(|bytes| bytes.remote),
    ]
}

/// The row of a setting that was not measured.
fn lost_row(lost: &Lost) -> Option<[String; 8]> {
    let mut row = [const { String::new() }; 8];
    (row[0], row[1]) = (lost.setting?.name().to_owned(), "LOST".to_owned());
    Some(row)
}

fn comparison(it: &Comparison, quantity: &str) -> [String; 6] {
    let ratio = |Estimate { value, low, high }| format!("{value:.2} ({low:.2} to {high:.2})");
    let digits = if it.quantity == "per_second" { 0 } else { 3 };
    [
        quantity.to_owned(),
        it.peer.name().to_owned(),
        format!("{:.digits$}", it.netsilo),
        format!("{:.digits$}", it.other),
        it.ratio.map_or_else(|| "-".to_owned(), ratio),
        if it.falls_short { "FALLS SHORT" } else { "" }.to_owned(),
    ]
}

/// Lines in columns, all but the first one aligned to the right.
fn aligned<const N: usize>(header: [String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::setting::Setting;
    use crate::workload::Kind;

    #[test]
    fn what_was_lost_is_marked_with_the_reason() {
        let lost = vec![
            Lost { setting: Some(Setting::NetsiloTune), why: "the guest has hung".into() },
            Lost { setting: None, why: "2 of 6 rounds: the guest has hung".into() },
        ];
        let text = show(&WorkloadResults::new(Kind::TcpRr, Vec::new(), lost));
        let lines: Vec<&str> = text.trim().lines().map(str::trim).collect();
        assert_eq!(lines[0], "=== tcp-rr");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["netsilo-tune", "LOST"]);
        assert_eq!(lines[3], "netsilo-tune: the guest has hung");
        assert_eq!(lines[4], "LOST: 2 of 6 rounds: the guest has hung");
    }
}
