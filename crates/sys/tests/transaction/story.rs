//! Interference: other programs, other transactions, other boots, other devices.

use std::time::Duration;

use netsilo_model::change::{Change, Target, knobs};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_sys::transaction::apply::{self, ApplyError, Drift, TransactionOptions};
use netsilo_sys::transaction::compact::UNDONE_KEPT;
use netsilo_sys::transaction::journal::Journal;
use netsilo_sys::transaction::kernel::Kernel as _;
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};
use netsilo_sys::transaction::verify::Arrival;
use rustix::time::{ClockId, clock_gettime};

use super::fake::Fake;
use super::fake::apply;
use super::fake::cgroup;
use super::fake::change;
use super::fake::compact;
use super::fake::consumer;
use super::fake::cpus;
use super::fake::eth0;
use super::fake::everything;
use super::fake::follow;
use super::fake::irq;
use super::fake::targets;
use super::fake::tempdir;
use super::fake::undo;
use netsilo_model::change::Value;

#[test]
fn a_foreign_value_is_kept_and_reported() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    apply(&kernel, &[change(&kernel, irq(27), cpus("4")), change(&kernel, irq(28), cpus("5"))])
        .unwrap();
    std::fs::write(dir.path().join("proc/irq/27/smp_affinity"), "40\n").unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    let [(first, restored), (second, foreign)] = &undone[0].knobs[..] else { panic!("{undone:?}") };
    assert_eq!((first, second), (&irq(28), &irq(27)));
    assert!(matches!(restored, RestoreResult::Restored));
    assert!(matches!(foreign, RestoreResult::Foreign(value) if *value == cpus("6")));
    assert_eq!(
        std::fs::read_to_string(dir.path().join("proc/irq/27/smp_affinity")).unwrap(),
        "40\n"
    );
    assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
}

#[test]
fn a_value_that_appears_late_is_still_ours() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    kernel.lag.set(3);
    let applied = apply(&kernel, &[change(&kernel, irq(27), cpus("4"))]).unwrap();
    assert_eq!((&applied.settled[0].1, applied.overwritten.len()), (&cpus("4"), 0));
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(kernel.knobs(), before);
}

/// A script that ran instead of undo: no knob is waited for on its own.
#[test]
fn old_values_that_are_back_cost_one_wait_together() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let old = kernel.knobs();
    apply(&kernel, &everything(&kernel)).unwrap();
    kernel.set_knobs(&old);
    let before = kernel.now();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    let is_old =
        |(_, result): &&(Target, RestoreResult)| matches!(result, RestoreResult::AlreadyOld);
    let old = undone[0].knobs.iter().filter(is_old).count();
    let waited = kernel.now() - before;
    assert!(old > 20 && waited <= Duration::from_millis(20), "{old} knobs in {waited:?}");
}

/// CPU time at four times as many changes: a square would take 16 times as long.
#[test]
fn applying_and_undoing_take_no_longer_for_a_change_if_there_are_more() {
    let took = |count: u32| {
        let dir = tempdir();
        let kernel = Fake::new(dir.path());
        let irqs = (100..100 + count).map(|number| kernel.add_irq(number));
        let plan: Vec<Change> = irqs.map(|it| change(&kernel, it, cpus("4"))).collect();
        let since = clock_gettime(ClockId::ThreadCPUTime);
        apply(&kernel, &plan).unwrap();
        assert!(undo(&kernel, UndoScope::All).unwrap()[0].is_complete());
        let until = clock_gettime(ClockId::ThreadCPUTime);
        (until.tv_sec - since.tv_sec) as f64 + (until.tv_nsec - since.tv_nsec) as f64 * 1e-9
    };
    let [few, many] = [100, 400].map(|count| took(count).min(took(count)));
    assert!(many < 9.0 * few, "{few:.4} s, then {many:.4} s");
}

#[test]
fn an_outdated_plan_writes_nothing_and_reports_every_difference() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let plan = everything(&kernel);
    std::fs::write(dir.path().join("proc/irq/27/smp_affinity"), "40\n").unwrap();
    std::fs::write(dir.path().join("sys/kernel/irq/28/actions"), "eth9\n").unwrap();
    let before = kernel.knobs();
    let error = apply(&kernel, &plan).unwrap_err();
    assert_eq!(
        error.to_string(),
        "irq 27 (virtio0-input.0) was 0 when the plan was made and is 6 now; \
         irq 28 (virtio0-input.1): this number now \
         belongs to eth9; nothing was written: make a new plan"
    );
    assert!(matches!(error, ApplyError::Drifted(drifts)
            if matches!(drifts[..], [Drift::Changed { .. }, Drift::Unreadable(_)])));
    assert_eq!((kernel.knobs(), kernel.writes.get()), (before, 0));
}

#[test]
fn an_equal_value_is_never_written() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let entries = || change(&kernel, Target::from(knobs::RpsSockFlowEntries), Value::Count(1000));
    apply(&kernel, &[entries()]).unwrap();
    kernel.take_written();
    // The kernel rounds 1000 to 1024, the current value. Writing it would flush the table.
    assert_eq!(apply(&kernel, &[entries()]).unwrap().transaction, None);
    assert_eq!(apply(&kernel, &[change(&kernel, irq(27), cpus("0"))]).unwrap().transaction, None);
    assert_eq!(kernel.take_written(), []);
    std::fs::write(dir.path().join("proc/sys/net/core/rps_sock_flow_entries"), "0\n").unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(matches!(undone[0].knobs[..], [(_, RestoreResult::AlreadyOld)]));
    assert_eq!(kernel.take_written(), []);
}

#[test]
fn transactions_stack_and_are_undone_in_reverse() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &[change(&kernel, irq(27), cpus("4")), change(&kernel, irq(28), cpus("4"))])
        .unwrap();
    let between = kernel.knobs();
    apply(&kernel, &[change(&kernel, irq(28), cpus("5")), change(&kernel, irq(29), cpus("5"))])
        .unwrap();
    let after = kernel.knobs();
    assert_eq!(undo(&kernel, UndoScope::Last).unwrap().len(), 1);
    assert_eq!(kernel.knobs(), between);
    apply(&kernel, &[change(&kernel, irq(28), cpus("5")), change(&kernel, irq(29), cpus("5"))])
        .unwrap();
    assert_eq!(kernel.knobs(), after);
    let order: Vec<u64> =
        undo(&kernel, UndoScope::All).unwrap().iter().map(|undone| undone.transaction).collect();
    assert_eq!(order, [3, 1]);
    assert_eq!(kernel.knobs(), before);
    assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
}

#[test]
fn the_daemon_undoes_its_own_down_to_the_newest_operator_transaction() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    follow(&kernel, &[change(&kernel, irq(27), cpus("3"))]).unwrap();
    apply(&kernel, &[change(&kernel, irq(27), cpus("4"))]).unwrap();
    let between = kernel.knobs();
    follow(&kernel, &[change(&kernel, irq(27), cpus("5"))]).unwrap();
    follow(&kernel, &[change(&kernel, irq(28), cpus("5"))]).unwrap();
    let order: Vec<u64> = undo(&kernel, UndoScope::Daemons)
        .unwrap()
        .iter()
        .map(|undone| undone.transaction)
        .collect();
    assert_eq!((order, kernel.knobs()), (vec![4, 3], between));
    assert!(undo(&kernel, UndoScope::Daemons).unwrap().is_empty());
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn a_value_stuck_in_a_newer_transaction_keeps_the_older_ones_open() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &[change(&kernel, irq(27), cpus("4")), change(&kernel, irq(28), cpus("4"))])
        .unwrap();
    apply(&kernel, &[change(&kernel, irq(27), cpus("5"))]).unwrap();
    kernel.failing.borrow_mut().insert(3, libc::EBUSY);
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(!undone[0].is_complete());
    assert!(
        matches!(undone[1].knobs[..], [(_, RestoreResult::Restored)]),
        "the other knob is restored nevertheless"
    );
    assert_eq!(undo(&kernel, UndoScope::All).unwrap().len(), 2);
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn settings_of_another_boot_are_never_touched() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    apply(&kernel, &everything(&kernel)).unwrap();
    std::fs::write(dir.path().join("proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    let now = kernel.knobs();
    assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
    assert_eq!(kernel.knobs(), now);
    assert_eq!(
        apply(&kernel, &[change(&kernel, irq(27), cpus("1"))]).unwrap().transaction,
        Some(1)
    );
    assert!(kernel.state().join("journal.6a5b-boot-1").exists());
}

#[test]
fn a_missing_object_is_reported_and_does_not_block_restoring() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &everything(&kernel)).unwrap();
    std::fs::write(dir.path().join("sys/kernel/irq/27/actions"), "nvme0q1\n").unwrap();
    std::fs::write(dir.path().join("sys/kernel/irq/29/actions"), "\n").unwrap();
    let stat =
        std::fs::read_to_string(dir.path().join("proc/81/stat")).unwrap().replace("5151", "5999");
    std::fs::write(dir.path().join("proc/81/stat"), stat).unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    let gone: Vec<_> = undone[0]
        .knobs
        .iter()
        .filter(|(_, result)| matches!(result, RestoreResult::Gone(_)))
        .collect();
    assert_eq!(
        gone.iter().map(|(target, _)| target.clone()).collect::<Vec<_>>(),
        [consumer(), irq(29), irq(27)]
    );
    let RestoreResult::Gone(why) = &gone[2].1 else { panic!() };
    assert_eq!(why.to_string(), "irq 27 (virtio0-input.0): this number now belongs to nvme0q1");
    let same = kernel.knobs().iter().filter(|(path, now)| before[*path] == **now).count();
    assert_eq!(same, targets().len() - 3);
    assert!(undone[0].is_complete());
}

#[test]
fn a_renamed_netdev_is_restored_under_its_new_name() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(
        &kernel,
        &[change(&kernel, Target::RpsCpus(knobs::RpsCpus { netdev: eth0(), queue: 0 }), cpus("1"))],
    )
    .unwrap();
    let net = dir.path().join("sys/class/net");
    std::fs::rename(net.join("eth0"), net.join("lan0")).unwrap();
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(kernel.knobs(), before);
}

/// A virtual netdev of the fake host with this text in its `rps_cpus`. An earlier netdev is kept
/// elsewhere, so that its inode numbers are not reused.
fn create_veth0(kernel: &Fake, rps_cpus: &str) -> Target {
    let net = kernel.root.join("sys/class/net");
    if net.join("veth0").exists() {
        std::fs::rename(net.join("veth0"), kernel.root.join("replaced")).unwrap();
    }
    std::fs::create_dir_all(net.join("veth0/queues/rx-0")).unwrap();
    std::fs::write(net.join("veth0/ifindex"), "70\n").unwrap();
    std::fs::write(net.join("veth0/queues/rx-0/rps_cpus"), rps_cpus).unwrap();
    let netdev = NetdevIdentity { name: "veth0".into(), device_path: None, ifindex: Some(70) };
    knobs::RpsCpus { netdev, queue: 0 }.into()
}

fn rps_of_veth0(kernel: &Fake) -> String {
    let path = "sys/class/net/veth0/queues/rx-0/rps_cpus";
    std::fs::read_to_string(kernel.root.join(path)).unwrap()
}

#[test]
fn a_virtual_netdev_that_replaced_one_of_the_same_name_and_index_is_not_written() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let rps = create_veth0(&kernel, "00\n");
    apply(&kernel, &[change(&kernel, rps, cpus("1"))]).unwrap();
    create_veth0(&kernel, "02\n");
    let undone = undo(&kernel, UndoScope::All).unwrap();
    let [(_, RestoreResult::Gone(why))] = &undone[0].knobs[..] else { panic!("{undone:?}") };
    assert!(why.to_string().contains("is a newer one"), "{why}");
    assert_eq!(rps_of_veth0(&kernel), "02\n");
}

#[test]
fn a_plan_is_not_written_to_a_netdev_with_another_name() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let plan = [change(&kernel, create_veth0(&kernel, "00\n"), cpus("1"))];
    let net = kernel.root.join("sys/class/net");
    std::fs::rename(net.join("veth0"), net.join("docker7")).unwrap();
    let error = apply(&kernel, &plan).unwrap_err();
    let why = "veth0 rx-0 rps_cpus: this netdev is called docker7 now, or docker7 replaced it; \
               nothing was written: make a new plan";
    assert_eq!(error.to_string(), why);
    assert_eq!(kernel.writes.get(), 0);
}

#[test]
fn a_journal_without_the_creation_of_netdevs_is_undone_by_name_and_index() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let rps = create_veth0(&kernel, "00\n");
    apply(&kernel, &[change(&kernel, rps, cpus("1"))]).unwrap();
    let journal = std::fs::read_to_string(kernel.journal()).unwrap();
    let (before, rest) = journal.split_once("\"created\":").unwrap();
    let (_, after) = rest.split_once(',').unwrap();
    std::fs::write(kernel.journal(), format!("{before}{after}")).unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(matches!(undone[0].knobs[..], [(_, RestoreResult::Restored)]), "{undone:?}");
    assert_eq!(rps_of_veth0(&kernel), "00\n");
}

#[test]
fn compaction_does_not_join_a_netdev_with_the_one_that_it_replaced() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let rps = create_veth0(&kernel, "08\n");
    follow(&kernel, &[change(&kernel, rps, cpus(""))]).unwrap();
    let rps = create_veth0(&kernel, "00\n");
    follow(&kernel, &[change(&kernel, rps.clone(), cpus("1"))]).unwrap();
    follow(&kernel, &[change(&kernel, rps, cpus("2"))]).unwrap();
    compact(&kernel).unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(matches!(undone[..], [ref only] if only.knobs.len() == 1), "{undone:?}");
    assert_eq!(rps_of_veth0(&kernel), "00\n");
}

#[test]
fn a_knob_that_stays_broken_can_be_forgotten() {
    use netsilo_sys::transaction::record::RestoredBy;
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    apply(&kernel, &[change(&kernel, irq(27), cpus("4")), change(&kernel, irq(28), cpus("5"))])
        .unwrap();
    kernel.failing.borrow_mut().extend((2..9).map(|n| (n, libc::EINVAL)));
    for forget in [false, true] {
        let undone = netsilo_sys::transaction::undo::undo(
            &kernel,
            &kernel.state(),
            UndoScope::All,
            forget,
            RestoredBy::Undo,
            &mut |_, _| {},
        );
        let failed =
            undone.unwrap()[0].knobs.iter().filter(|(_, result)| result.is_failure()).count();
        assert_eq!(failed, 2);
    }
    assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
    let journal = Journal::open(&kernel, &kernel.state()).unwrap();
    assert_eq!(journal.transactions()[0].given_up, 2);
}

#[test]
fn many_undone_transactions_do_not_make_the_journal_long() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    for _ in 0..2 * UNDONE_KEPT + 1 {
        apply(&kernel, &[change(&kernel, irq(27), cpus("4"))]).unwrap();
        undo(&kernel, UndoScope::All).unwrap();
    }
    let journal = Journal::open(&kernel, &kernel.state()).unwrap();
    let newest = journal.transactions().last().unwrap();
    assert_eq!(journal.transactions().len(), UNDONE_KEPT + 1);
    assert_eq!((newest.id, newest.is_open()), (2 * UNDONE_KEPT as u64 + 1, false));
}

#[test]
fn an_interrupt_that_keeps_arriving_elsewhere_ignores_its_affinity() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    kernel.traffic.borrow_mut().extend([(28, "90,0,0,0,0,0,0,0".to_owned())]);
    let plan = [change(&kernel, irq(28), cpus("4"))];
    let wait = Duration::from_secs(2);
    let mut options =
        TransactionOptions { confirm_within: None, start_guard: &mut |_| Ok(()), wait };
    let applied = apply::apply(&kernel, &kernel.state(), &plan, &mut options, &mut |_| {}).unwrap();
    assert_eq!(applied.arrivals, [(Irq(28), Arrival::Ignored(CpuId(0)))]);
}

#[test]
fn interrupts_that_do_not_arrive_are_reported() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    kernel
        .traffic
        .borrow_mut()
        .extend([(27, "10,0,0,0,3,0,0,0".to_owned()), (28, "11,0,0,0,0,0,0,0".to_owned())]);
    let plan: Vec<_> = (27..30).map(|n| change(&kernel, irq(n), cpus("4"))).collect();
    let wait = Duration::from_secs(2);
    let mut options =
        TransactionOptions { confirm_within: None, start_guard: &mut |_| Ok(()), wait };
    let applied = apply::apply(&kernel, &kernel.state(), &plan, &mut options, &mut |_| {}).unwrap();
    assert_eq!(
        applied.arrivals,
        [
            (Irq(27), Arrival::Arrived(CpuId(4))),
            (Irq(28), Arrival::StillElsewhere(CpuId(0))),
            (Irq(29), Arrival::NoTraffic)
        ]
    );
}

#[test]
fn a_value_that_does_not_stay_is_reported() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    kernel.traffic.borrow_mut().insert(27, "10,0,0,0,3,0,0,0".to_owned());
    let other = dir.path().join("proc/irq/28/smp_affinity");
    let plan = [change(&kernel, irq(27), cpus("4")), change(&kernel, irq(28), cpus("4"))];
    let mut options = TransactionOptions {
        confirm_within: None,
        start_guard: &mut |_| Ok(()),
        wait: Duration::ZERO,
    };
    let applied = apply::apply(&kernel, &kernel.state(), &plan, &mut options, &mut |event| {
        if matches!(event, apply::ApplyEvent::Waiting { .. }) {
            std::fs::write(&other, "80\n").unwrap();
        }
    });
    assert_eq!(applied.unwrap().overwritten, [(irq(28), cpus("7"))]);
}

#[test]
fn without_a_guard_nothing_is_written() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let plan = everything(&kernel);
    let mut start = |_| Err(std::io::Error::other("no"));
    let mut options = TransactionOptions {
        confirm_within: Some(Duration::from_secs(60)),
        start_guard: &mut start,
        wait: Duration::ZERO,
    };
    let error =
        apply::apply(&kernel, &kernel.state(), &plan, &mut options, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "cannot start the guard: no; nothing was written");
    assert_eq!((kernel.knobs(), kernel.writes.get()), (before, 0));
    assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
}

#[test]
fn no_transaction_starts_while_one_awaits_confirmation() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let plan = [change(&kernel, irq(27), cpus("4"))];
    let mut options = TransactionOptions {
        confirm_within: Some(Duration::from_secs(60)),
        start_guard: &mut |_| Ok(()),
        wait: Duration::ZERO,
    };
    let applied = apply::apply(&kernel, &kernel.state(), &plan, &mut options, &mut |_| {}).unwrap();
    let journal = Journal::open(&kernel, &kernel.state()).unwrap();
    assert!(applied.confirm_by.is_some());
    assert_eq!(journal.transactions()[0].confirm_by, applied.confirm_by);
    drop(journal);
    assert!(matches!(
        apply(&kernel, &[change(&kernel, irq(28), cpus("4"))]),
        Err(ApplyError::Unconfirmed { transaction: 1, .. })
    ));
}

#[test]
fn an_error_of_many_differences_names_some_and_counts_the_others() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let absent = |n: u32| {
        let Target::IrqAffinity(knob) = irq(27) else { unreachable!() };
        let target = Target::IrqAffinity(knobs::IrqAffinity { irq: Irq(1000 + n), ..knob });
        Change::untyped(target, cpus("1"), cpus("2"), "test").unwrap()
    };
    let plan: Vec<Change> = (0..10).map(absent).collect();
    let error = apply(&kernel, &plan).unwrap_err().to_string();
    assert!(error.contains("irq 1007") && !error.contains("irq 1008"), "{error}");
    assert!(error.contains("; and 2 more settings; nothing was written"), "{error}");
}

#[test]
fn a_plan_that_names_a_knob_twice_is_refused() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let plan = [change(&kernel, irq(27), cpus("4")), change(&kernel, irq(27), cpus("5"))];
    let error = apply(&kernel, &plan).unwrap_err();
    assert_eq!(error.to_string(), "the plan names irq 27 (virtio0-input.0) twice; make a new plan");
}

#[test]
fn a_consumer_is_pinned_and_released_by_thread_and_by_cgroup() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let changes =
        [change(&kernel, cgroup(), cpus("2-5")), change(&kernel, consumer(), cpus("2-3"))];
    apply(&kernel, &changes).unwrap();
    let [(first, list), (second, mask)] = &kernel.take_written()[..] else { panic!("two writes") };
    assert_eq!((first.as_str(), list.as_str()), ("/sys/fs/cgroup/web.slice/cpuset.cpus", "2-5\n"));
    assert_eq!((second.as_str(), mask.as_str()), ("/proc/81/cpus", "c"));
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(kernel.knobs(), before, "the empty set of the cgroup too");
}

#[test]
fn a_reused_thread_id_is_not_touched() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    apply(&kernel, &[change(&kernel, consumer(), cpus("2-3"))]).unwrap();
    let stat = dir.path().join("proc/81/stat");
    let later = std::fs::read_to_string(&stat).unwrap().replace(" 5151 ", " 9999 ");
    std::fs::write(&stat, later).unwrap();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(matches!(undone[0].knobs[..], [(_, RestoreResult::Gone(_))]), "{undone:?}");
    assert_eq!(std::fs::read_to_string(dir.path().join("proc/81/cpus")).unwrap(), "0c\n");
    let strange = Target::CgroupCpuset(knobs::CgroupCpuset { path: "/../../tmp".into() });
    assert!(netsilo_sys::transaction::knob::read(&kernel, &strange).unwrap_err().is_gone());
}

#[test]
fn a_switch_that_depends_on_another_one_is_restored_with_it() {
    for reports in [false, true] {
        let dir = tempdir();
        let kernel = Fake::new(dir.path());
        let switch = |feature: &str| {
            let place = format!("/sys/class/net/eth0.Offload{}", feature.replace('-', ""));
            std::fs::write(dir.path().join(&place[1..]), "on\n").unwrap();
            (Target::Offload(knobs::Offload { netdev: eth0(), feature: feature.into() }), place)
        };
        let ((first, needed), (second, dependent)) = (switch("rx-ntuple-filter"), switch("rx-lro"));
        kernel.needs.borrow_mut().insert(dependent, (needed, reports));
        let before = kernel.knobs();
        let off = |target: &Target| change(&kernel, target.clone(), Value::Switch(false));
        apply(&kernel, &[off(&first), off(&second)]).unwrap();
        let undone = undo(&kernel, UndoScope::All).unwrap();
        let restored = |it: &(Target, RestoreResult)| matches!(it.1, RestoreResult::Restored);
        assert!(undone[0].is_complete() && undone[0].knobs.iter().all(restored), "{undone:?}");
        assert_eq!((undone[0].knobs.len(), kernel.knobs()), (2, before));
    }
}
