//! An explanation of a busy CPU as text: its time, then each cause with its evidence and the steps
//! that led to it.

use std::fmt::Write as _;

use netsilo_decide::judge::why::{CpuWhy, Fact, LoadCause, Why};
use netsilo_model::derive::cpu_time::{CpuTimeShares, MeasuredShares};
use netsilo_model::derive::rates::Shares;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::check::evidence;
use crate::views::units::percent;

/// Width of a bar.
const BAR: usize = 20;

/// Renders the whole explanation.
pub(crate) fn render(why: &Why, on: Presentation) -> Styled {
    let mut text = Styled::default();
    let subject = why.cpu.as_ref().map_or_else(|| why.subject.to_string(), title);
    text.push(Meaning::Title, format_args!("{subject}, {:.1} s\n", why.elapsed_s));
    if let Some(cpu) = &why.cpu {
        time(&mut text, cpu);
    }
    if why.causes.is_empty() {
        let is_unseen = why.cpu.as_ref().is_some_and(|cpu| cpu.split.measured.is_none());
        let _ = writeln!(text, "\n{}", if is_unseen { UNSEEN } else { NO_WORK });
    }
    for cause in &why.causes {
        crate::views::why::cause(&mut text, cause, on);
    }
    if !why.notes.is_empty() {
        let _ = writeln!(text);
    }
    for note in &why.notes {
        text.push(Meaning::Quiet, format_args!("note: {note}\n"));
    }
    text
}

/// What to do where nothing was seen.
const NO_WORK: &str = "no softirq or interrupt work was seen there\n  \
    --interval 10s sees rare work; netsilo show lists the cpus that have some";

/// What to do where nothing could be seen.
const UNSEEN: &str =
    "which work its softirqs did was not counted: netsilo doctor says what is missing";

fn title(cpu: &CpuWhy) -> String {
    let mut parts = vec![format!("cpu {}", cpu.cpu)];
    if cpu.core.len() > 1 {
        parts.push(format!("core {}", cpu.core));
    }
    parts.extend(cpu.node.map(|node| format!("node {node}")));
    parts.join(", ")
}

fn time(text: &mut Styled, cpu: &CpuWhy) {
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

fn measured(it: &MeasuredShares) -> String {
    let reschedule =
        it.reschedule.map_or_else(String::new, |it| format!(", reschedule IPIs {}", percent(it)));
    format!(
        "softirq {} (NET_RX {}, NET_TX {}, other {}), device interrupts {}, IPIs {}{reschedule}",
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

fn cause(text: &mut Styled, cause: &LoadCause, on: Presentation) {
    text.push(Meaning::Title, format_args!("\n{}", cause.name));
    let _ = write!(text, ": ");
    match (cause.share, on.palette) {
        (None, _) => text.push(Meaning::Plain, "share unknown"),
        (Some(share), palette) => {
            let about = if cause.estimated { "about " } else { "" };
            let bar = palette.map_or_else(String::new, |it| format!(" {}", it.bar(share, BAR)));
            let shown = format_args!("{about}{}{bar}", percent(share)).to_string();
            text.push(Meaning::of_load(share), shown);
        }
    }
    let _ = writeln!(text);
    evidence(text, &cause.evidence, true);
    for Fact { text: step, source } in &cause.steps {
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
    use crate::tell::palette::{Depth, Palette};

    #[test]
    fn a_cpu_is_explained_from_its_time_to_each_queue_and_why_it_is_there() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let (observation, costs) = (scene.observation(), Costs::default());
        let analysis = Analysis::new(&observation, &costs);
        let answer = why(&analysis, &"cpu0".parse().unwrap()).unwrap();
        insta::assert_snapshot!(render(&answer, Presentation::default()));
        let palette = Palette { depth: Depth::Ansi, unicode: true };
        let on = Presentation { width: Some(80), palette: Some(palette) };
        let text = render(&answer, on).with_meanings();
        assert!(text.contains(": <Work about 20% ████>\n"), "{text}");
    }
}
