//! Where a woken thread runs, as `select_task_rq_fair` chooses (`kernel/sched/fair.c`). All CPUs
//! count as one domain that shares a cache.

use crate::simulate::cpu::{Cpu, Thread};

/// The CPUs that readers may use, with the hardware threads beside each.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) may_read: Vec<bool>,
    pub(crate) siblings: Vec<Vec<usize>>,
    /// Whether the waker's core is searched first, as kernels before 4.0 do.
    pub(crate) prefers_own_core: bool,
}

impl Domain {
    /// Returns the CPU for a reader that last ran on `previous` and is woken by `waker`, which
    /// waits for nothing else after that (`WF_SYNC`, by `sock_def_readable`).
    pub(crate) fn choose(&self, cpus: &[Cpu], previous: usize, waker: usize) -> usize {
        // select_idle_sibling of 2.6.38: the smallest domain first.
        if self.prefers_own_core {
            let mut own = std::iter::once(&waker).chain(&self.siblings[waker]);
            if let Some(cpu) = own.find(|cpu| self.may_read[**cpu] && cpus[**cpu].is_idle()) {
                return *cpu;
            }
        }
        // wake_affine_idle
        let target = match &cpus[waker] {
            _ if !self.may_read[waker] => previous,
            cpu if cpu.is_idle() && cpus[previous].is_idle() => previous,
            cpu if cpu.is_idle() || cpu.thread_count() == 1 => waker,
            _ => previous,
        };
        // select_idle_sibling
        [target, previous]
            .into_iter()
            .find(|cpu| cpus[*cpu].is_idle())
            .or_else(|| self.idle(cpus, target))
            .unwrap_or(target)
    }

    /// An idle CPU, best of an idle core, searched from `start` on.
    fn idle(&self, cpus: &[Cpu], start: usize) -> Option<usize> {
        let mut found = None;
        for cpu in (start + 1..cpus.len()).chain(0..start) {
            if self.may_read[cpu] && cpus[cpu].is_idle() {
                if self.siblings[cpu].iter().all(|other| cpus[*other].is_idle()) {
                    return Some(cpu);
                }
                found = found.or(Some(cpu));
            }
        }
        found
    }

    /// Takes a reader that waits for another CPU, for `cpu` which has none (`newidle_balance`).
    pub(crate) fn steal(&self, cpus: &mut [Cpu], cpu: usize) -> Option<Thread> {
        if !self.may_read[cpu] {
            return None;
        }
        let is_reader = |thread: &Thread| matches!(thread, Thread::Reader(_));
        let busiest = cpus.iter_mut().max_by_key(|cpu| cpu.thread_count())?;
        if busiest.thread_count() < 2 {
            return None;
        }
        let index = busiest.ready.iter().rposition(is_reader)?;
        busiest.ready.remove(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::cpu::{Job, Running};

    fn domain(cpus: usize) -> Domain {
        Domain {
            may_read: vec![true; cpus],
            siblings: (0..cpus).map(|cpu| vec![(cpu + cpus / 2) % cpus]).collect(),
            prefers_own_core: false,
        }
    }

    fn reader() -> Thread {
        Thread::Reader(Job { flow: 0, by_ipi: false, left: None, usr: 0.0 })
    }

    fn cpus(busy: &[usize]) -> Vec<Cpu> {
        let mut cpus: Vec<Cpu> = (0..4).map(|_| Cpu::new()).collect();
        for &cpu in busy {
            cpus[cpu].current = Some(Running { thread: reader(), used: 0 });
        }
        cpus
    }

    #[test]
    fn a_woken_reader_stays_on_its_cpu_if_that_is_idle_else_takes_an_idle_core() {
        // CPUs 0 and 2 are a core, 1 and 3 another
        let domain = domain(4);
        assert_eq!(domain.choose(&cpus(&[]), 2, 0), 2);
        assert_eq!(domain.choose(&cpus(&[0]), 2, 0), 2);
        assert_eq!(domain.choose(&cpus(&[2]), 2, 1), 1);
        assert_eq!(domain.choose(&cpus(&[2]), 2, 2), 3);
        assert_eq!(domain.choose(&cpus(&[1, 2]), 2, 2), 3);
        // none is idle: where the waker has nothing else to run
        assert_eq!(domain.choose(&cpus(&[0, 1, 2, 3]), 2, 0), 0);
    }

    #[test]
    fn an_old_kernel_prefers_an_idle_cpu_of_the_core_that_wakes_the_reader() {
        let domain = Domain { prefers_own_core: true, ..domain(4) };
        assert_eq!(domain.choose(&cpus(&[]), 3, 0), 0);
        assert_eq!(domain.choose(&cpus(&[0]), 3, 0), 2);
        assert_eq!(domain.choose(&cpus(&[0, 2]), 3, 0), 3);
    }

    #[test]
    fn a_reader_does_not_leave_its_cpus() {
        let domain = Domain { may_read: vec![false, false, true, true], ..domain(4) };
        assert_eq!(domain.choose(&cpus(&[2]), 2, 0), 3);
        assert_eq!(domain.choose(&cpus(&[2, 3]), 2, 0), 2);
    }

    #[test]
    fn an_idle_cpu_takes_a_reader_that_waits_elsewhere() {
        let mut cpus = cpus(&[0]);
        assert_eq!(domain(4).steal(&mut cpus, 1), None);
        cpus[0].ready.extend([Thread::Ksoftirqd, reader(), Thread::Ksoftirqd]);
        assert_eq!(domain(4).steal(&mut cpus, 1), Some(reader()));
        assert_eq!(domain(4).steal(&mut cpus, 1), None);
    }
}
