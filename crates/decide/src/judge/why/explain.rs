//! Explains a subject: a CPU, an interrupt, a netdev, an rx queue or a process.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::why::explanation::{LoadCause, SubjectError, Why, heaviest_first};
use crate::judge::why::{chain, cpu, reader, software, unmapped};

/// Explains a subject. Fails if the subject does not exist.
pub fn why(analysis: &Analysis<'_>, subject: &Subject) -> Result<Why, SubjectError> {
    let (after, silos) = (analysis.after(), &analysis.silos);
    let (cpu, causes) = match subject {
        Subject::Cpu(cpu) if !after.topology.online.contains(*cpu) => {
            return Err(SubjectError::NoCpu(*cpu, after.topology.online.clone()));
        }
        Subject::Cpu(cpu) => (Some(cpu::cpu_why(analysis, *cpu)), cpu::causes(analysis, *cpu)),
        Subject::Irq(irq) => {
            let of_irq = |silo: &&Silo| silo.irq.as_ref().is_some_and(|edge| edge.to == *irq);
            let mut causes = queues(analysis, silos.queues.iter().filter(of_irq));
            if causes.is_empty() {
                causes.push(chain::interrupt(analysis, *irq).ok_or(SubjectError::NoIrq(*irq))?);
            }
            (None, causes)
        }
        Subject::Netdev(name) => {
            let causes = netdev_causes(analysis, name, None).or_else(|error| {
                let causes = reader::causes(analysis, name);
                if causes.is_empty() { Err(error) } else { Ok(causes) }
            });
            (None, causes?)
        }
        Subject::Queue(name, queue) => (None, netdev_causes(analysis, name, Some(*queue))?),
        other => return Err(SubjectError::NotExplained(other.clone())),
    };
    let notes = netsilo_model::derive::notes::notes(analysis.observation, &analysis.rates, silos);
    Ok(Why {
        subject: subject.clone(),
        elapsed_s: analysis.rates.elapsed.as_secs_f64(),
        cpu,
        causes,
        notes,
    })
}

/// The causes of a netdev's rx queues, or of one of them.
fn netdev_causes(
    analysis: &Analysis<'_>,
    name: &str,
    queue: Option<u32>,
) -> Result<Vec<LoadCause>, SubjectError> {
    let netdevs = &analysis.after().netdevs;
    let Some(netdev) = netdevs.named(name) else {
        let names: Vec<&str> = netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
        return Err(SubjectError::NoNetdev(name.to_owned(), names.join(", ")));
    };
    let has = |queue| netdev.rx_queues.iter().any(|rx| rx.index == queue);
    let whole = || unmapped::causes(analysis, netdev);
    let causes = software::causes(analysis, netdev).or_else(whole);
    if let Some(mut causes) = causes.filter(|_| queue.is_none_or(has)) {
        heaviest_first(&mut causes);
        return Ok(causes);
    }
    let of_netdev = || analysis.silos_of(name);
    let causes =
        queues(analysis, of_netdev().filter(|silo| queue.is_none() || silo.queue == queue));
    match queue {
        Some(queue) if causes.is_empty() => {
            let queues = of_netdev().filter_map(|silo| silo.queue).map(CpuId).collect();
            Err(SubjectError::NoQueue(name.to_owned(), queue, queues))
        }
        _ => Ok(causes),
    }
}

/// The cause of each queue on the CPU that polls it most, sorted by CPU time, largest first.
fn queues<'a>(analysis: &Analysis<'_>, silos: impl Iterator<Item = &'a Silo>) -> Vec<LoadCause> {
    let mut causes: Vec<LoadCause> =
        silos.map(|silo| chain::queue_anywhere(analysis, silo)).collect();
    heaviest_first(&mut causes);
    causes
}
