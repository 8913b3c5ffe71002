//! Failures and crashes, exhaustively: at every write, at every byte of the journal.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use netsilo_model::change::{Change, Target, knobs};
use netsilo_sys::read::netns::NetnsId;
use netsilo_sys::transaction::apply::ApplyError;
use netsilo_sys::transaction::record::History;
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};

use super::fake::{
    Death, Fake, Knobs, apply, change, compact, cpus, eth0, everything, follow, irq, targets,
    tempdir, undo,
};

/// Number of writes in the plan of everything.
fn all_writes() -> usize {
    targets().len()
}

#[test]
fn the_plan_of_everything_touches_everything() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &everything(&kernel)).unwrap();
    assert_eq!(kernel.writes.get(), all_writes());
    assert!(kernel.knobs().iter().all(|(path, now)| before[path] != *now));
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(undone[0].knobs.iter().all(|(_, result)| matches!(result, RestoreResult::Restored)));
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn every_failing_write_is_restored_byte_for_byte() {
    for failing in 0..all_writes() {
        for errno in [libc::EIO, libc::ENOSPC, libc::EPERM] {
            let dir = tempdir();
            let kernel = Fake::new(dir.path());
            let before = kernel.knobs();
            let plan = everything(&kernel);
            kernel.failing.borrow_mut().insert(failing, errno);
            let error = apply(&kernel, &plan).unwrap_err();
            let ApplyError::Restored { why, undone } = &error else { panic!("{error}") };
            assert!(
                why.to_string().starts_with(&format!("{}: cannot write", plan[failing].target)),
                "{why}"
            );
            let restored = undone
                .knobs
                .iter()
                .filter(|(_, result)| matches!(result, RestoreResult::Restored))
                .count();
            assert_eq!(restored, failing);
            assert_eq!(kernel.knobs(), before, "write {failing}");
            assert!(undo(&kernel, UndoScope::All).unwrap().is_empty(), "nothing is left to undo");
            apply(&kernel, &plan).unwrap();
        }
    }
}

#[test]
fn a_failed_restore_is_reported_and_can_be_retried() {
    for failing in 1..all_writes() {
        for failing_restore in failing + 1..=2 * failing {
            let dir = tempdir();
            let kernel = Fake::new(dir.path());
            let before = kernel.knobs();
            let plan = everything(&kernel);
            kernel
                .failing
                .borrow_mut()
                .extend([(failing, libc::EIO), (failing_restore, libc::EBUSY)]);
            let error = apply(&kernel, &plan).unwrap_err();
            let ApplyError::Incomplete { undone, .. } = &error else { panic!("{error}") };
            let left: Vec<_> =
                undone.knobs.iter().filter(|(_, result)| result.is_failure()).collect();
            // Values are restored in reverse order, beginning with the write before the failing
            // one.
            assert_eq!(left.len(), 1);
            assert_eq!(left[0].0, plan[2 * failing - failing_restore].target);
            assert_eq!(
                kernel.knobs().iter().filter(|(path, now)| before[*path] != **now).count(),
                1
            );
            assert!(matches!(
                apply(&kernel, &plan),
                Err(ApplyError::Unfinished { transaction: 1, .. })
            ));
            undo(&kernel, UndoScope::All).unwrap();
            assert_eq!(kernel.knobs(), before);
        }
    }
}

/// Every state that a crash can leave: the knobs, and the bytes of the journal.
fn deaths(kernel: &Fake, run: impl FnOnce()) -> Vec<(Knobs, Vec<u8>)> {
    let start = kernel.journal_length();
    kernel.trail.take();
    kernel.recording.set(true);
    run();
    kernel.recording.set(false);
    let bytes = std::fs::read(kernel.journal()).unwrap();
    let mut trail = kernel.trail.take();
    trail.push((bytes.len(), kernel.knobs()));
    let mut from = start;
    let mut all = Vec::new();
    for (length, knobs) in trail {
        // Between two writes the journal grows byte by byte from one length to the other.
        all.extend((from..=length).map(|cut| (knobs.clone(), bytes[..cut].to_vec())));
        from = length;
    }
    all
}

/// Undoes after each crash, and checks that the original knobs are back and nothing is left to
/// undo.
fn undo_after_each(kernel: &Fake, deaths: Vec<(Knobs, Vec<u8>)>, before: &Knobs) {
    assert!(deaths.len() > 1000, "{} deaths", deaths.len());
    kernel.set_knobs(before);
    for (mut knobs, journal) in deaths {
        knobs.retain(|path, bytes| before[path] != *bytes);
        kernel.set_knobs(&knobs);
        std::fs::write(kernel.journal(), &journal).unwrap();
        let undone = undo(kernel, UndoScope::All).unwrap();
        assert!(undone.iter().all(|t| t.is_complete()));
        assert_eq!(
            kernel.knobs(),
            *before,
            "after a crash with {} bytes of journal",
            journal.len()
        );
        assert!(undo(kernel, UndoScope::All).unwrap().is_empty());
    }
}

/// The plan of everything is split in three, because testing every byte of each part is faster than
/// testing every byte of the whole.
const PARTS: usize = 3;

fn part(kernel: &Fake, number: usize) -> Vec<Change> {
    everything(kernel).into_iter().skip(number).step_by(PARTS).collect()
}

#[test]
fn death_at_any_byte_of_apply_is_undone() {
    for number in 0..PARTS {
        let dir = tempdir();
        let kernel = Fake::new(dir.path());
        let before = kernel.knobs();
        let plan = part(&kernel, number);
        let deaths = deaths(&kernel, || drop(apply(&kernel, &plan).unwrap()));
        undo_after_each(&kernel, deaths, &before);
    }
}

#[test]
fn death_at_any_byte_of_restoring_after_a_failure_is_undone() {
    for number in 0..PARTS {
        let dir = tempdir();
        let kernel = Fake::new(dir.path());
        let before = kernel.knobs();
        let plan = part(&kernel, number);
        kernel.failing.borrow_mut().insert(plan.len() - 1, libc::EIO);
        let deaths = deaths(&kernel, || drop(apply(&kernel, &plan).unwrap_err()));
        kernel.failing.take();
        undo_after_each(&kernel, deaths, &before);
    }
}

#[test]
fn death_at_any_write_or_byte_of_undo_is_undone() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &everything(&kernel)).unwrap();
    let applied = (kernel.knobs(), std::fs::read(kernel.journal()).unwrap());
    let writes = kernel.writes.get();
    for number in writes..writes + all_writes() {
        for death in [Death::Before(number), Death::After(number)] {
            kernel.set_knobs(&applied.0);
            std::fs::write(kernel.journal(), &applied.1).unwrap();
            kernel.writes.set(writes);
            kernel.death.set(Some(death));
            assert!(catch_unwind(AssertUnwindSafe(|| undo(&kernel, UndoScope::All))).is_err());
            kernel.death.set(None);
            undo(&kernel, UndoScope::All).unwrap();
            assert_eq!(kernel.knobs(), before, "{death:?}");
        }
    }
}

#[test]
fn death_at_any_byte_of_compaction_is_undone() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    follow(&kernel, &part(&kernel, 0)).unwrap();
    apply(&kernel, &[change(&kernel, irq(28), cpus("2"))]).unwrap();
    for cpu in ["1", "3", "4"] {
        follow(
            &kernel,
            &[change(&kernel, irq(27), cpus(cpu)), change(&kernel, irq(28), cpus(cpu))],
        )
        .unwrap();
    }
    let (now, old) = (kernel.knobs(), std::fs::read(kernel.journal()).unwrap());
    compact(&kernel).unwrap();
    let compacted = std::fs::read(kernel.journal()).unwrap();
    assert!(compacted.len() < old.len(), "{} -> {}", old.len(), compacted.len());
    let new = kernel.state().join("journal.new");
    for cut in 0..=compacted.len() {
        kernel.set_knobs(&now);
        std::fs::write(kernel.journal(), &old).unwrap();
        std::fs::write(&new, &compacted[..cut]).unwrap();
        undo(&kernel, UndoScope::All).unwrap();
        assert_eq!(kernel.knobs(), before, "after a crash with {cut} bytes of the new journal");
    }
    kernel.set_knobs(&now);
    std::fs::write(kernel.journal(), &compacted).unwrap();
    follow(&kernel, &[change(&kernel, irq(27), cpus("6"))]).unwrap();
    compact(&kernel).unwrap();
    undo(&kernel, UndoScope::Last).unwrap();
    assert_eq!(
        kernel.knobs()[std::path::Path::new("proc/irq/28/smp_affinity")],
        b"04\n",
        "the operator's changes stay"
    );
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn only_the_transactions_of_one_network_namespace_are_compacted() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let rps_cpus = Target::RpsCpus(knobs::RpsCpus { netdev: eth0(), queue: 0 });
    let change = |target: Target, cpu: &str| change(&kernel, target, cpus(cpu));
    let [blue, green] = [7, 8].map(|cookie| Some(NetnsId { cookie, inode: 9 }));
    let follow_in = |netns, cpu: &str| {
        kernel.netns.set(netns);
        let targets = [irq(27), rps_cpus.clone(), knobs::RpsDefaultMask.into()];
        follow(&kernel, &targets.map(|target| change(target, cpu))).unwrap();
    };
    for (netns, cpu) in [(blue, "1"), (blue, "2"), (green, "3"), (green, "4"), (green, "5")] {
        follow_in(netns, cpu);
    }
    compact(&kernel).unwrap();
    let history = History::replay(&std::fs::read(kernel.journal()).unwrap()).unwrap();
    let written: Vec<_> = history.transactions.iter().map(|it| it.netns).collect();
    assert_eq!(written, [blue, blue, green]);
    let counted = |is: &dyn Fn(&RestoreResult) -> bool| -> Vec<usize> {
        let undone = undo(&kernel, UndoScope::All).unwrap();
        let results = undone.iter().map(|it| it.knobs.iter().filter(|(_, it)| is(it)).count());
        results.collect()
    };
    // blue cannot be entered: its transactions stay open, and its interrupt is restored
    kernel.may_enter.set(false);
    assert_eq!(counted(&|it| matches!(it, RestoreResult::Failed(_))), [0, 2, 0]);
    let length = kernel.journal_length();
    assert_eq!(counted(&|it| matches!(it, RestoreResult::Failed(_))), [2, 0]);
    assert_eq!(kernel.journal_length(), length);
    // blue has ended: its interrupt is still here, its device is here again, its sysctl is not
    kernel.may_enter.set(true);
    assert_eq!(counted(&|it| matches!(it, RestoreResult::Gone(_))), [1, 1]);
    let now = kernel.knobs();
    let left: Vec<_> = before.iter().filter(|(path, old)| now[*path] != **old).collect();
    assert!(left.len() == 1 && left[0].0.ends_with("rps_default_mask"), "{left:?}");
}

#[test]
fn an_undo_that_died_half_way_is_finished_after_compaction() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    for cpu in ["1", "2", "3", "4"] {
        follow(&kernel, &[change(&kernel, irq(27), cpus(cpu))]).unwrap();
    }
    let (now, journal) = (kernel.knobs(), std::fs::read(kernel.journal()).unwrap());
    for number in kernel.writes.get()..kernel.writes.get() + 4 {
        kernel.set_knobs(&now);
        std::fs::write(kernel.journal(), &journal).unwrap();
        kernel.writes.set(4);
        kernel.death.set(Some(Death::After(number)));
        assert!(catch_unwind(AssertUnwindSafe(|| undo(&kernel, UndoScope::All))).is_err());
        kernel.death.set(None);
        compact(&kernel).unwrap();
        undo(&kernel, UndoScope::All).unwrap();
        assert_eq!(kernel.knobs(), before, "died after write {number}");
    }
}

#[test]
fn the_journal_of_a_long_boot_stays_short() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let mut longest = 0;
    for n in 0..200 {
        let cpu = (n % 5 + 1).to_string();
        follow(
            &kernel,
            &[change(&kernel, irq(27), cpus(&cpu)), change(&kernel, irq(29), cpus(&cpu))],
        )
        .unwrap();
        longest = longest.max(kernel.journal_length());
    }
    assert!(longest < 20_000, "{longest} bytes");
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn a_real_kill_at_every_write_is_undone() {
    use std::os::unix::process::ExitStatusExt;
    let helper = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "test_helper").unwrap();
    for number in 0..all_writes() {
        for after in [false, true] {
            let dir = tempdir();
            let kernel = Fake::new(dir.path());
            let before = kernel.knobs();
            let mut child = Command::new(&helper);
            child.arg("apply-and-be-killed").arg(dir.path()).arg(number.to_string());
            if after {
                child.arg("--after");
            }
            let output = child.output().unwrap();
            assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
            let written =
                kernel.knobs().iter().filter(|(path, now)| before[*path] != **now).count();
            assert_eq!(written, number + usize::from(after));
            assert!(matches!(
                apply(&kernel, &everything(&kernel)),
                Err(ApplyError::Unfinished { transaction: 1, .. })
            ));
            undo(&kernel, UndoScope::All).unwrap();
            assert_eq!(kernel.knobs(), before);
        }
    }
}
