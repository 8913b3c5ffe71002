//! Kthreads that a search has replaced: from Linux 6.17 on, switching `threaded` off ends them, and
//! switching it on again starts others with the same names.

use anyhow::{Context as _, Result};
use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::NapiThread;
use netsilo_sys::files::root::Root;

/// The changes, for the kthreads that there are now.
pub(super) fn present_kthreads(changes: &[Change]) -> Result<Vec<Change>> {
    if !changes.iter().any(|it| matches!(it.target, Target::NapiThread(_))) {
        return Ok(changes.to_vec());
    }
    let now = netsilo_sys::snapshot_here(&Root::live()).context("cannot read this machine")?;
    Ok(changes.iter().map(|it| of_present(it, &now)).collect())
}

/// A change of a kthread that has ended is one of its successor, if exactly one has its name.
fn of_present(change: &Change, now: &Snapshot) -> Change {
    let successor = successor(&change.target, now).and_then(|knob| {
        let (old, new) = (change.old.clone(), change.new.clone());
        Change::untyped(knob.into(), old, new, change.reason.as_str()).ok()
    });
    successor.unwrap_or_else(|| change.clone())
}

fn successor(target: &Target, now: &Snapshot) -> Option<knobs::NapiThread> {
    let Target::NapiThread(knob) = target else { return None };
    let napis = now.netdevs.iter().flat_map(|it| &it.napis);
    let mut named = napis.filter_map(|it| it.thread.as_ref()).filter(|it| it.comm == knob.comm);
    let (only, None) = (named.next()?, named.next()) else { return None };
    let NapiThread { pid, start_time, .. } = *only;
    Some(knobs::NapiThread { pid, comm: knob.comm.clone(), start_time })
}

#[cfg(test)]
mod tests {
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::ids::NapiId;
    use netsilo_model::snapshot::netdev::{Napi, Netdev};

    use super::*;

    #[test]
    fn a_kthread_that_was_replaced_is_found_by_its_name() {
        let thread = |pid, comm: &str| NapiThread {
            pid,
            comm: comm.into(),
            start_time: u64::from(pid),
            cpus: CpuSet::first(1),
        };
        let napi = |thread| Napi { id: NapiId(1), irq: None, thread: Some(thread) };
        let all = [(8, "napi/eth0-1"), (9, "napi/enp129s0f0"), (10, "napi/enp129s0f0")];
        let napis = all.map(|(pid, comm)| napi(thread(pid, comm))).into();
        let netdevs = vec![Netdev { napis, ..Netdev::default() }];
        let now = Snapshot { netdevs: netdevs.into(), ..Snapshot::default() };
        let pid = |comm: &str| {
            let knob = knobs::NapiThread { pid: 7, comm: comm.into(), start_time: 7 };
            let change = Change::new(knob, CpuSet::first(1), CpuSet::first(2), "");
            let present = of_present(&change, &now);
            let Target::NapiThread(knob) = &present.target else { return 0 };
            assert_eq!(u64::from(knob.pid), knob.start_time);
            knob.pid
        };
        // two have a name that is cut
        assert_eq!([pid("napi/eth0-1"), pid("napi/enp129s0f0"), pid("napi/eth1-1")], [8, 7, 7]);
    }
}
