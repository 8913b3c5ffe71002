//! Relief of a CPU: the changes of the placement plan that move queues off it.

use netsilo_model::change::Change;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::percent;
use crate::plan::moves::{kept, moves_one_of};

pub(super) fn own(silo: &Silo, cpu: CpuId) -> Evidence {
    let share = silo.own_share.get(&cpu).copied();
    let measure = share.map_or_else(|| Measure::Text("share unknown".into()), Measure::Share);
    Evidence::new(format!("{} polled here", silo.label()), measure, "its part of NET_RX time")
}

/// The changes of placement that move queues off a CPU, or the reason why there are none.
pub(super) fn spread(judged: &Judged<'_>, load: &CpuWork<'_>) -> Remedy {
    let plan = &judged.plan;
    let goes = |silo: &&&Silo| {
        let subject = silo.subject();
        plan.placements
            .iter()
            .any(|it| it.label == subject && it.moves && !it.cpus.contains(load.cpu))
    };
    let leaving: Vec<&Silo> = load.queues.iter().filter(goes).copied().collect();
    let moved: f64 = leaving.iter().filter_map(|silo| silo.own_share.get(&load.cpu)).sum();
    let changes: Vec<Change> =
        plan.changes.iter().filter(|change| moves_one_of(change, &leaving)).cloned().collect();
    let gain = match (changes.is_empty(), load.queues.len()) {
        (true, 0) => Gain::Unknown(format!(
            "none of the rx queues with an interrupt is polled on this cpu: netsilo explain cpu{} \
             lists its work",
            load.cpu
        )),
        (true, _) if judged.has_one_cpu() => Gain::Nothing("there is no other cpu".into()),
        (true, 1) if load.queues[0].ignores_affinity => {
            Gain::Nothing(kept(&judged.plan, &load.queues))
        }
        (true, 1) => Gain::Nothing("moving its only queue would only make another cpu busy".into()),
        (true, _) => Gain::Nothing(kept(&judged.plan, &load.queues)),
        (false, _) => {
            let cost = format!("they take {} of cpu {}'s time", percent(moved), load.cpu);
            judged.look.gain(&changes, &cost)
        }
    };
    let what = match (changes.is_empty(), leaving.len()) {
        (true, _) if load.queues.len() == 1 && !judged.has_one_cpu() => {
            "use more queues, or RPS onto idle cpus, if there are many flows: one flow stays on \
             one cpu"
                .to_owned()
        }
        (true, _) => {
            format!("find the cpu's work and its causes with netsilo explain cpu{}", load.cpu)
        }
        (false, 1) => format!("move {} to another cpu", leaving[0].label()),
        (false, n) if n == load.queues.len() => format!("move its {n} queues to other cpus"),
        (false, n) => format!("move {n} of its {} queues to other cpus", load.queues.len()),
    };
    Remedy {
        what,
        gain,
        cost: None,
        not_when: Some(
            "the load is one flow, which no placement can split, or every queue has data for every \
             reader"
                .into(),
        ),
        changes,
        interrupts_traffic: false,
    }
}
