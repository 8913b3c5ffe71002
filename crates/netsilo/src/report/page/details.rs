//! The machine, the settings and their changes, the commands, and the figures of each round.

use maud::{Markup, html};
use netsilo_trial::experiment::results::Results;

use crate::report::folder::ReportFolder;
use crate::report::page::tables;

/// Renders collapsed sections.
pub(super) fn render(folder: &ReportFolder, results: &Results) -> Markup {
    let experiment = &folder.experiment;
    html! {
        details.card { summary { "Machine and commands" } (machine(folder)) }
        @for setting in &experiment.settings {
            details.card {
                summary { "Setting: " (setting.name) }
                p { (setting.what) }
                @if let Some(command) = &setting.command { pre { (command) } }
                @if setting.changes.is_empty() { p { "This setting writes nothing." } }
                @if !setting.changes.is_empty() { (changes(&setting.changes)) }
            }
        }
        @for load in &results.loads {
            details.card {
                summary { "Raw figures: " (load.load) }
                @for measure in netsilo_trial::experiment::measure::TrialMeasure::ALL {
                    @if load.settings.iter().any(|cell| cell.measured(measure).is_some()) {
                        div.scroll { (tables::measure(&[load], measure)) }
                    }
                }
            }
        }
    }
}

fn machine(folder: &ReportFolder) -> Markup {
    let experiment = &folder.experiment;
    let machine = &experiment.machine;
    html! {
        dl {
            dt { "host" } dd { (machine.hostname) }
            dt { "kernel" } dd { (machine.kernel) }
            dt { "CPUs" }
            dd { (machine.cpus) @if let Some(model) = &machine.model { ", " (model) } }
            @for netdev in &machine.netdevs { dt { "netdev" } dd { (netdev) } }
            dt { "began" } dd { (when(experiment.started_s)) }
            dt { "rounds" }
            dd { (experiment.rounds) ", in random order from seed " (experiment.seed) }
            dt { "pause before each trial" } dd { (humantime::format_duration(experiment.pause)) }
        }
        p { "The command as typed:" }
        pre { (experiment.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")) }
        @if let Some(commands) = &folder.commands {
            p { "The commands at each machine:" }
            pre { (commands) }
        }
        p {
            "The folder's " code { (netsilo_trial::experiment::MACHINE) }
            " is a bundle of the machine, as netsilo capture saves it: examine it with "
            code { "netsilo show --from" } "."
        }
    }
}

/// Changes with their reasons, as a table.
pub(crate) fn changes(changes: &[netsilo_model::change::Change]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th scope="col" { "knob" } th.text scope="col" { "from" }
                th.text scope="col" { "to" } th.text scope="col" { "why" }
            } }
            tbody { @for change in changes {
                tr {
                    th scope="row" { (change.target) } td.text { (change.old) }
                    td.text { (change.new) } td.text { (change.reason) }
                }
            } }
        } }
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats seconds since the epoch: `2026-11-21 21:40 UTC`.
pub(super) fn when(seconds: u64) -> String {
    // humantime formats years up to 9999
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds.min(253_402_300_799));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.get(..16).map_or(text.clone(), |text| format!("{} UTC", text.replace('T', " ")))
}
