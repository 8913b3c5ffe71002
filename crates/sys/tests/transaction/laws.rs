//! An original value is never lost, whatever happens in whatever order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use netsilo_model::change::{Location, Target, Value, knobs};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_sys::transaction::journal;
use netsilo_sys::transaction::record::Transaction;
use netsilo_sys::transaction::undo::{self, RestoreResult, UndoScope, Undone};
use proptest::prelude::*;

use super::fake::Death;
use super::fake::Fake;
use super::fake::SCHEDULER;
use super::fake::apply;
use super::fake::change;
use super::fake::compact;
use super::fake::follow;
use super::fake::targets;
use super::fake::tempdir;
use super::fake::thread_since;
use super::fake::undo;
use super::remedies;

#[derive(Debug, Clone)]
enum Step {
    /// Applies values (a seed each) to some knobs, as an operator or as the daemon; crashes or
    /// fails at one write.
    Apply {
        daemon: bool,
        knobs: Vec<(usize, u32)>,
        mishap: Mishap,
    },
    Undo {
        last: bool,
        mishap: Mishap,
    },
    /// The daemon's transactions are compacted.
    Compact,
    /// Another program writes a knob.
    Foreign {
        knob: usize,
        seed: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum Mishap {
    None,
    FailAt(usize),
    DieBefore(usize),
    DieAfter(usize),
    /// After the write, while appending its record.
    DieInRecord(usize),
}

#[test]
fn the_fake_host_has_each_kind_of_knob() {
    let targets = targets();
    let missing: Vec<&str> = knobs::kinds()
        .into_iter()
        .filter(|kind| !targets.iter().any(|target| target.facts().kind == *kind))
        .collect();
    assert!(missing.is_empty(), "write a row for each in special() of remedies.rs: {missing:?}");
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let at = 0..6usize;
    prop_oneof![
        3 => Just(Mishap::None),
        1 => at.clone().prop_map(Mishap::FailAt),
        1 => at.clone().prop_map(Mishap::DieBefore),
        1 => at.clone().prop_map(Mishap::DieAfter),
        1 => at.prop_map(Mishap::DieInRecord),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let knobs = proptest::collection::vec((0..targets().len(), any::<u32>()), 1..6);
    prop_oneof![
        6 => (any::<bool>(), knobs, mishap())
            .prop_map(|(daemon, knobs, mishap)| Step::Apply { daemon, knobs, mishap }),
        2 => Just(Step::Compact),
        2 => (any::<bool>(), mishap()).prop_map(|(last, mishap)| Step::Undo { last, mishap }),
        1 => (0..targets().len(), any::<u32>())
            .prop_map(|(knob, seed)| Step::Foreign { knob, seed }),
    ]
}

/// A value that netsilo writes: CPUs 0 to 4, counts below 2000.
fn ours(target: &Target, seed: u32) -> Value {
    match target {
        Target::RpsFlowCnt(_) | Target::RpsSockFlowEntries(_) => Value::Count(1 + seed % 2000),
        _ if remedies::ours(target, seed).is_some() => remedies::ours(target, seed).unwrap(),
        _ => Value::Cpus(CpuSet::parse_mask(&format!("{:x}", 1 + seed % 31)).unwrap()),
    }
}

/// The text of a value that netsilo never writes.
fn foreign(target: &Target, seed: u32) -> String {
    match target {
        Target::RpsFlowCnt(_) | Target::RpsSockFlowEntries(_) => {
            format!("{}\n", 1 << (12 + seed % 8))
        }
        _ if remedies::foreign(target, seed).is_some() => remedies::foreign(target, seed).unwrap(),
        Target::CgroupCpuset(_) => {
            format!("{}\n", CpuSet::parse_mask(&format!("{:x}", 0x20 | (seed % 32))).unwrap())
        }
        _ => format!("{:x}\n", 0x20 | (seed % 32)),
    }
}

/// The knob as a plan would name it now. The NAPI may have another kthread.
fn now(kernel: &Fake, target: &Target) -> Target {
    match target {
        Target::NapiThread(_) => thread_since(kernel.kthread_start()),
        target => target.clone(),
    }
}

fn file(kernel: &Fake, target: &Target) -> std::path::PathBuf {
    use netsilo_sys::transaction::kernel::KnobAddress;
    match netsilo_sys::transaction::knob::read(kernel, target).unwrap().place {
        KnobAddress::File(path) => kernel.root.join(path.trim_start_matches('/')),
        KnobAddress::Irqbalance(pid, _) => kernel.root.join(format!("proc/{pid}/banned")),
        KnobAddress::Thread(pid) => kernel.root.join(format!("proc/{pid}/cpus")),
        place @ (KnobAddress::Scheduler(_) | KnobAddress::NapiThreaded(_)) => {
            unreachable!("{place:?}")
        }
        KnobAddress::Ethtool(netdev, setting) => {
            kernel.root.join(remedies::file_of(&netdev, &setting).trim_start_matches('/'))
        }
    }
}

/// Whether undo cannot distinguish a change by the driver from one by another program. This is so
/// if netsilo was killed between a write that may reset the knob and the record of the driver's
/// values.
fn is_ambiguous(kernel: &Fake, target: &Target) -> bool {
    let history = journal::read_without_lock(kernel, &kernel.state()).unwrap();
    let transactions = history.map(|history| history.transactions).unwrap_or_default();
    let killed = |it: &Transaction| {
        let in_apply = it.is_unfinished() && !it.attached.is_empty() && it.attached_after.is_none();
        it.is_open() && (in_apply || it.keeps.is_some())
    };
    let is_of_queue = |file: &str| file.starts_with("queues/");
    let is_reset = target.may_reset_queues()
        || matches!(target.location(), Location::Netdev { file, .. } if is_of_queue(&file))
        || matches!(target, Target::IrqAffinity(_) | Target::NapiThread(_) | Target::RssTable(_));
    is_reset && transactions.iter().any(killed)
}

/// Runs with a failure or crash at a write, counted from now.
fn with_mishap(kernel: &Fake, mishap: Mishap, run: impl FnOnce()) {
    let now = kernel.writes.get();
    match mishap {
        Mishap::None => {}
        Mishap::FailAt(n) => drop(kernel.failing.borrow_mut().insert(now + n, libc::ENOMEM)),
        Mishap::DieBefore(n) => kernel.death.set(Some(Death::Before(now + n))),
        Mishap::DieAfter(n) | Mishap::DieInRecord(n) => {
            kernel.death.set(Some(Death::After(now + n)))
        }
    }
    let died = catch_unwind(AssertUnwindSafe(run)).is_err();
    if died && matches!(mishap, Mishap::DieInRecord(_)) {
        let mut journal = std::fs::read(kernel.journal()).unwrap();
        journal.extend(b"{\"record\":\"wrote\",\"transaction\":1,\"ent");
        std::fs::write(kernel.journal(), journal).unwrap();
    }
    kernel.death.set(None);
    kernel.failing.take();
}

/// Each knob, and whether it is restored. A kthread's are left out: undo of `threaded` replaces it.
fn told(undone: &[Undone]) -> Vec<(u64, String, bool)> {
    let knobs = |it: &Undone| {
        let is_restored = |result: &RestoreResult| {
            matches!(result, RestoreResult::Restored | RestoreResult::Reworded(_))
        };
        let of_kthread = |target: &Target| matches!(target, Target::NapiThread(_));
        let knobs = it.knobs.iter().filter(|(target, _)| !of_kthread(target));
        let knob = |(target, result): &(Target, RestoreResult)| {
            (it.transaction, target.to_string(), is_restored(result))
        };
        knobs.map(knob).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = undone.iter().flat_map(knobs).collect();
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_sequence_loses_an_original_value(
        steps in proptest::collection::vec(step(), 1..14),
        resets: bool,
    ) {
        let dir = tempdir();
        let kernel = Fake::new(dir.path());
        kernel.resets.set(resets);
        let targets = targets();
        // The final contents of each knob: its original bytes, or the last foreign write.
        let read = |target: &Target| std::fs::read_to_string(file(&kernel, target)).unwrap();
        let targets = || targets.iter().map(|target| now(&kernel, target));
        let mut expected: Vec<_> = targets().map(|target| read(&target)).collect();
        for step in steps {
            let targets: Vec<Target> = targets().collect();
            match step {
                Step::Compact => compact(&kernel).unwrap(),
                Step::Apply { daemon, mut knobs, mishap } => {
                    knobs.sort();
                    knobs.dedup_by_key(|knob| knob.0);
                    let value = |(knob, seed): (usize, u32)| {
                        change(&kernel, targets[knob].clone(), ours(&targets[knob], seed))
                    };
                    let plan: Vec<_> = knobs.into_iter().map(value).collect();
                    let apply = if daemon { follow } else { apply };
                    with_mishap(&kernel, mishap, || drop(apply(&kernel, &plan)));
                }
                Step::Undo { last, mishap } => {
                    let which = if last { UndoScope::Last } else { UndoScope::All };
                    with_mishap(&kernel, mishap, || drop(undo(&kernel, which)));
                }
                Step::Foreign { knob, .. } if is_ambiguous(&kernel, &targets[knob]) => {}
                Step::Foreign { knob, seed } => {
                    let text = foreign(&targets[knob], seed);
                    std::fs::write(file(&kernel, &targets[knob]), &text).unwrap();
                    expected[knob] = text;
                }
            }
        }
        let history = journal::read_without_lock(&kernel, &kernel.state()).unwrap();
        let transactions = history.map(|history| history.transactions).unwrap_or_default();
        let announced = undo::expected(&kernel, &transactions, UndoScope::All);
        let undone = undo(&kernel, UndoScope::All).unwrap();
        if !resets {
            prop_assert_eq!(told(&announced), told(&undone));
        }
        for (target, expected) in targets().zip(expected) {
            prop_assert_eq!(read(&target), expected, "{}", target);
        }
        let scheduler = std::fs::read_to_string(kernel.root.join("proc/70/scheduler")).unwrap();
        prop_assert_eq!(scheduler, SCHEDULER);
        prop_assert!(undo(&kernel, UndoScope::All).unwrap().is_empty());
    }
}
