//! Stages of receive work as a table: one line per CPU and a total, with the share of samples in
//! each stage.

use std::fmt::Write as _;

use netsilo_model::derive::stages::{Stages, StagesLine};
use netsilo_model::snapshot::stage_samples::ReceiveStage;

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::views::table::narrowed;
use crate::views::units::{or_dash, percent};

/// Renders a title, the table in a terminal of this width, and what is missing.
pub(crate) fn render(stages: &Stages, width: Option<usize>) -> Styled {
    let mut text = Styled::default();
    let rate = stages.per_s;
    let title = format_args!("stages of receive work, sampled {rate} times a second on each cpu\n")
        .to_string();
    text.push(Meaning::Title, title);
    if stages.total.samples > 0 {
        text.append(&table(stages, width));
    } else {
        let _ = write!(text, "  no sample hit receive work");
    }
    let _ = writeln!(text);
    if stages.lost > 0 {
        let _ = writeln!(text, "  {} more samples lost, stack buffer full", stages.lost);
    }
    if let Some(reason) = &stages.refused {
        let _ = writeln!(text, "  unknown: {reason}");
    }
    text
}

fn table(stages: &Stages, width: Option<usize>) -> Styled {
    let mut header = vec!["  cpu", "samples"];
    header.extend(ReceiveStage::ALL.map(ReceiveStage::label));
    let all = stages.cpus.iter().chain(Some(&stages.total).filter(|_| stages.cpus.len() > 1));
    let rows: Vec<_> = all.map(row).collect();
    narrowed(&header, &rows, |name| name != "  cpu", &[], width)
}

fn row(line: &StagesLine) -> Vec<Styled> {
    let mut row: Vec<Styled> = vec![
        line.cpu.map_or_else(|| "  all".to_owned(), |cpu| format!("  {cpu}")).into(),
        line.samples.to_string().into(),
    ];
    let share = |stage| or_dash(line.shares.get(&stage).copied(), percent).into();
    row.extend(ReceiveStage::ALL.map(share));
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
        insta::assert_snapshot!(render(&Stages::from_samples(&samples, 1.0), None));
    }

    #[test]
    fn a_refusal_is_shown() {
        let samples =
            StageSamples { refused: Some("no clock of cpu 0".into()), ..StageSamples::default() };
        let text = render(&Stages::from_samples(&samples, 1.0), None).to_string();
        assert!(
            text.ends_with("no sample hit receive work\n  unknown: no clock of cpu 0\n"),
            "{text}"
        );
    }
}
