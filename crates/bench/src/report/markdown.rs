//! The results of an experiment as Markdown.

use std::fmt::Write as _;

use netsilo::tell::words::plural;
use netsilo::views::units::nanoseconds;
use netsilo_trial::experiment::compared::{Cell, UnderLoad};
use netsilo_trial::experiment::measure::TrialMeasure;
use netsilo_trial::experiment::results::Results;
use netsilo_trial::experiment::stage_costs::{EarlyDrop, StageCosts};

use crate::report::folder::ReportFolder;
use crate::report::words;

/// Renders the verdicts, the reasons to doubt them, and all figures.
pub(super) fn render(folder: &ReportFolder, results: &Results) -> String {
    let machine = &folder.experiment.machine;
    let mut text = format!(
        "# {} on {}\n\n{} CPUs, Linux {}; compared with **{}** by round, {}.\n\n",
        results.kind,
        plain(&machine.hostname),
        machine.cpus,
        plain(&machine.kernel),
        plain(&results.reference),
        plural(results.rounds as usize, "round")
    );
    for (setting, sentences) in words::summary(results) {
        let _ = writeln!(text, "- **{}**: {}", plain(&setting), sentences.join("; "));
    }
    text.push('\n');
    for note in words::caveats(results).iter().chain(&folder.note) {
        let _ = writeln!(text, "> {}\n", plain(note));
    }
    text += &verdicts(results);
    for load in &results.loads {
        let _ = writeln!(text, "\n## {}\n\n{}", plain(&load.load), figures(load));
    }
    text += &expected(results);
    text += &stages(results);
    list(&mut text, "Reasons to doubt single figures", &words::cell_notes(results));
    let failed = results.failed.iter().map(|it| {
        format!("round {}, {}, {}: {}", it.step.round + 1, it.step.load, it.step.setting, it.why)
    });
    list(&mut text, "Failed", &failed.collect::<Vec<_>>());
    text
}

fn list(text: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(text, "\n## {title}\n");
        for line in lines {
            let _ = writeln!(text, "- {}", plain(line));
        }
    }
}

/// The verdicts: one row per load, one column per setting.
fn verdicts(results: &Results) -> String {
    let Some(first) = results.loads.first() else { return String::new() };
    let mut rows = vec![
        ["load".to_owned()]
            .into_iter()
            .chain(first.settings.iter().map(|it| it.setting.clone()))
            .collect(),
    ];
    for load in &results.loads {
        let verdict = |cell: &Cell| {
            let Some(rate) = cell.measured(TrialMeasure::Rate) else {
                return "no result".to_owned();
            };
            rate.against.as_ref().map_or_else(|| words::level(rate, load.work), words::against)
        };
        let cells = load.settings.iter().map(verdict);
        rows.push([load.load.clone()].into_iter().chain(cells).collect());
    }
    table(&rows)
}

/// All measures of a load: one row per measure, one column per setting.
fn figures(load: &UnderLoad) -> String {
    let header =
        ["".to_owned()].into_iter().chain(load.settings.iter().map(|cell| cell.setting.clone()));
    let mut rows: Vec<Vec<String>> = vec![header.collect()];
    for measure in TrialMeasure::ALL {
        let measured: Vec<_> = load.settings.iter().map(|cell| cell.measured(measure)).collect();
        if measured.iter().all(Option::is_none) {
            continue;
        }
        let cell = |it: &Option<&netsilo_trial::experiment::compared::MeasureResult>| {
            let Some(it) = it else { return "-".to_owned() };
            let against = it
                .against
                .as_ref()
                .map(|against| format!("; {}", words::change_or_verdict(against)));
            words::value(measure, load.work, it.median) + &against.unwrap_or_default()
        };
        let name = measure.name(load.work);
        rows.push([name].into_iter().chain(measured.iter().map(cell)).collect());
    }
    table(&rows)
}

/// The model's predictions and the measurements.
fn expected(results: &Results) -> String {
    let rows = words::expected_rows(results);
    let mut text = String::new();
    if !rows.is_empty() {
        let head = words::EXPECTED_COLUMNS.map(str::to_owned);
        let all: Vec<Vec<String>> = [head].into_iter().chain(rows).map(Vec::from).collect();
        let (what, table) = (plain(words::EXPECTED), table(&all));
        let _ = writeln!(text, "\n## Predicted and measured\n\n{what}\n\n{table}");
    }
    for note in words::not_expected(results) {
        let _ = writeln!(text, "> {}\n", plain(&note));
    }
    text
}

/// Costs of the stages under each load, and what early drops save.
fn stages(results: &Results) -> String {
    let mut text = String::new();
    for load in &results.loads {
        let costs: Vec<&StageCosts> =
            results.stages.iter().filter(|it| it.load == load.load).collect();
        if costs.iter().any(|it| it.samples > 0) {
            let _ = writeln!(
                text,
                "\n## Stages of receive work: {}\n\n{}",
                plain(&load.load),
                stage_costs(&costs)
            );
        }
    }
    for EarlyDrop { load, dropped, settings } in &results.early_drops {
        let words = ["setting", "measured by", "forwarded", "dropped early", "saved"];
        let mut rows = vec![words.map(str::to_owned).to_vec()];
        for spared in settings {
            for (name, it) in words::early_drop_comparisons(spared) {
                let (passed_on, dropped) =
                    (nanoseconds(it.passed_on_ns), nanoseconds(it.dropped_ns));
                rows.push(vec![
                    spared.setting.clone(),
                    name.into(),
                    passed_on,
                    dropped,
                    words::saving(it),
                ]);
            }
        }
        let title = format!(
            "Cost of the path after raw PREROUTING: {} against {}",
            plain(load),
            plain(dropped)
        );
        let _ = writeln!(text, "\n## {title}\n\n{}", table(&rows));
    }
    for note in words::not_sampled(results) {
        let _ = writeln!(text, "> {}\n", plain(&note));
    }
    text
}

/// Stage costs: one row per stage, one column per setting.
fn stage_costs(costs: &[&StageCosts]) -> String {
    let head = ("", costs.iter().map(|it| it.setting.clone()).collect());
    let row = |(name, cells): (&str, Vec<String>)| [vec![name.to_owned()], cells].concat();
    table(&[head].into_iter().chain(words::stage_rows(costs)).map(row).collect::<Vec<_>>())
}

/// A table. The first row is its header.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if at == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}

/// Escapes what Markdown or HTML would interpret in a text.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => plain.push_str("&lt;"),
            '&' => plain.push_str("&amp;"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' => plain.extend(['\\', c]),
            '_' => plain.push_str("\\_"),
            c => plain.push(c),
        }
    }
    plain
}
