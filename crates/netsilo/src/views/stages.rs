//! Stages of receive work as a table: one line per CPU and a total, with the share of samples in
//! each stage.

use comfy_table::Table;
use netsilo_model::derive::stages::{Stages, StagesLine};
use netsilo_model::snapshot::stage_samples::ReceiveStage;

use crate::views::table::{table, trim_lines};
use crate::views::units::{or_dash, percent};

/// Renders a title, the table, and what is missing.
pub(crate) fn render(stages: &Stages) -> String {
    let mut text =
        format!("stages of receive work, sampled {} times a second on each cpu\n", stages.per_s);
    if stages.total.samples > 0 {
        text += &trim_lines(&lines(stages));
    } else {
        text += "  no sample found receive work";
    }
    text.push('\n');
    if stages.lost > 0 {
        text += &format!("  {} more samples lost, stack buffer full\n", stages.lost);
    }
    if let Some(reason) = &stages.refused {
        text += &format!("  unknown: {reason}\n");
    }
    text
}

fn lines(stages: &Stages) -> Table {
    let mut header = vec!["  cpu", "samples"];
    header.extend(ReceiveStage::ALL.map(ReceiveStage::label));
    let mut table = table(&header, |name| name != "  cpu");
    for line in stages.cpus.iter().chain(Some(&stages.total).filter(|_| stages.cpus.len() > 1)) {
        table.add_row(row(line));
    }
    table
}

fn row(line: &StagesLine) -> Vec<String> {
    let mut row = vec![
        line.cpu.map_or_else(|| "  all".to_owned(), |cpu| format!("  {cpu}")),
        line.samples.to_string(),
    ];
    row.extend(ReceiveStage::ALL.map(|stage| or_dash(line.shares.get(&stage).copied(), percent)));
    row
}

#[cfg(test)]
mod tests {
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::stage_samples::StageSamples;

    use super::*;

    #[test]
    fn each_cpu_has_a_line_and_all_together_one() {
        let cpus = [
            (
                CpuId(0),
                [
                    (ReceiveStage::DriverGro, 150),
                    (ReceiveStage::BridgeIp, 40),
                    (ReceiveStage::QdiscXmit, 10),
                ]
                .into(),
            ),
            (CpuId(12), [(ReceiveStage::Netfilter, 7), (ReceiveStage::DriverGro, 13)].into()),
        ];
        let samples = StageSamples { per_s: 499, cpus: cpus.into(), lost: 3, refused: None };
        insta::assert_snapshot!(render(&Stages::from_samples(&samples, 1.0)));
    }

    #[test]
    fn a_refusal_is_shown() {
        let samples =
            StageSamples { refused: Some("no clock of cpu 0".into()), ..StageSamples::default() };
        let text = render(&Stages::from_samples(&samples, 1.0));
        assert!(
            text.ends_with("no sample found receive work\n  unknown: no clock of cpu 0\n"),
            "{text}"
        );
    }
}
