//! An explanation of a busy CPU as text: its time, then each cause with its evidence and the steps
//! that led there.

use std::fmt::Write as _;

use netsilo_decide::judge::why::{CpuWhy, LoadCause, Step, Why};
use netsilo_model::derive::cpu_time::{CpuTimeShares, Measured};
use netsilo_model::derive::rates::Shares;

use crate::views::check::measure;
use crate::views::units::percent;

/// Renders the whole explanation.
pub(crate) fn render(why: &Why) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, {:.1} s",
        why.cpu.as_ref().map_or_else(|| why.subject.to_string(), title),
        why.elapsed_s
    );
    if let Some(cpu) = &why.cpu {
        time(&mut text, cpu);
    }
    if why.causes.is_empty() {
        let _ = writeln!(text, "\nno softirq or interrupt work was seen there");
    }
    for cause in &why.causes {
        crate::views::why::cause(&mut text, cause);
    }
    if !why.notes.is_empty() {
        text.push('\n');
    }
    for note in &why.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn title(cpu: &CpuWhy) -> String {
    let mut parts = vec![format!("cpu {}", cpu.cpu)];
    if cpu.core.len() > 1 {
        parts.push(format!("core {}", cpu.core));
    }
    parts.extend(cpu.node.map(|node| format!("node {node}")));
    parts.join(", ")
}

fn time(text: &mut String, cpu: &CpuWhy) {
    let CpuTimeShares { ticks, idle, measured, .. } = &cpu.split;
    if let Some(measured) = measured {
        let _ = writeln!(text, "  measured        {}", crate::views::why::measured(measured));
    }
    if let Some(ticks) = ticks {
        let _ = writeln!(text, "  by clock ticks  {}", crate::views::why::ticks(ticks));
    }
    if let Some(idle) = idle {
        let _ = writeln!(text, "  idle            {}", percent(*idle));
    }
    if let Some(it) = cpu.ksoftirqd {
        let _ = writeln!(
            text,
            "  ksoftirqd       ran {}, waited for a cpu {}",
            percent(it.ran),
            percent(it.waited)
        );
    }
    if let Some(difference) = &cpu.difference {
        let _ = writeln!(text, "  {difference}");
    }
}

fn measured(it: &Measured) -> String {
    format!(
        "softirq {} (NET_RX {}, NET_TX {}, other {}), device interrupts {}, IPIs {}",
        percent(it.softirq()),
        percent(it.net_rx),
        percent(it.net_tx),
        percent(it.other_softirq),
        percent(it.hardirq),
        percent(it.ipi)
    )
}

fn ticks(it: &Shares) -> String {
    let [softirq, irq, usr, sys, idle] =
        [it.softirq, it.irq, it.usr + it.nice, it.sys, it.idle + it.iowait].map(percent);
    format!("softirq {softirq}, irq {irq}, usr {usr}, sys {sys}, idle {idle}")
}

fn cause(text: &mut String, cause: &LoadCause) {
    let share = cause.share.map_or_else(
        || "share unknown".to_owned(),
        |share| format!("{}{}", if cause.estimated { "about " } else { "" }, percent(share)),
    );
    let _ = writeln!(text, "\n{}: {share}", cause.name);
    let width =
        cause.evidence.iter().map(|evidence| evidence.quantity.chars().count()).max().unwrap_or(0);
    for evidence in &cause.evidence {
        let _ = writeln!(
            text,
            "  {:width$}  {} ({})",
            evidence.quantity,
            measure(&evidence.measure),
            evidence.source
        );
    }
    for Step { text: step, source } in &cause.steps {
        let _ = writeln!(text, "  - {step} ({source})");
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::why::why;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    #[test]
    fn a_cpu_is_explained_from_its_time_to_each_queue_and_why_it_is_there() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let (observation, costs) = (scene.observation(), Costs::default());
        let analysis = Analysis::new(&observation, &costs);
        let answer = why(&analysis, &"cpu0".parse().unwrap()).unwrap();
        insta::assert_snapshot!(render(&answer));
    }
}
