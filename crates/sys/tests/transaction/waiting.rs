//! Writes from which the kernel would not return, or which it does not answer.

use netsilo_model::change::{Change, Target, Value, knobs};
use netsilo_sys::transaction::apply::ApplyError;
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};

use super::fake::Fake;
use super::fake::apply;
use super::fake::change;
use super::fake::cpus;
use super::fake::eth0;
use super::fake::irq;
use super::fake::tempdir;
use super::fake::undo;

const ETH0: &str = "sys/devices/pci0000:00/0000:00:03.0/net/eth0";

fn threaded(kernel: &Fake) -> Change {
    change(kernel, Target::Threaded(knobs::Threaded { netdev: eth0() }), Value::Count(1))
}

fn put(kernel: &Fake, path: &str, text: &str) {
    std::fs::write(kernel.root.join(path), text).unwrap();
}

#[test]
fn threaded_is_restored_when_its_netdev_is_up_again_and_all_else_at_once() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    apply(&kernel, &[threaded(&kernel), change(&kernel, irq(27), cpus("5"))]).unwrap();
    put(&kernel, &format!("{ETH0}/flags"), "0x1002\n");
    let writes = kernel.writes.get();
    let undone = undo(&kernel, UndoScope::All).unwrap();
    let results: Vec<_> = undone[0].knobs.iter().map(|(_, result)| result).collect();
    let [RestoreResult::Restored, RestoreResult::Failed(why)] = results[..] else {
        panic!("{results:?}")
    };
    assert!(why.to_string().starts_with("eth0 threaded: waiting: eth0 is down"), "{why}");
    assert_eq!(kernel.writes.get(), writes + 1, "only the interrupt was written");
    put(&kernel, &format!("{ETH0}/flags"), "0x1003\n");
    assert!(undo(&kernel, UndoScope::All).unwrap()[0].is_complete());
    assert_eq!(kernel.knobs(), before);
}

#[test]
fn apply_refuses_threaded_of_a_netdev_that_is_down_before_it_writes_anything() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    put(&kernel, &format!("{ETH0}/flags"), "0x1002\n");
    let plan = [change(&kernel, irq(27), cpus("5")), threaded(&kernel)];
    let error = apply(&kernel, &plan).unwrap_err();
    assert!(matches!(error, ApplyError::Waiting(_)), "{error}");
    assert!(error.to_string().ends_with("nothing was written"), "{error}");
    assert_eq!((kernel.writes.get(), kernel.journal_length() > 0), (0, true));
}

#[test]
fn i40e_with_fewer_channels_than_it_was_loaded_with_has_napis_that_are_never_enabled() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    std::fs::create_dir_all(kernel.root.join(ETH0).join("device")).unwrap();
    let driver = kernel.root.join(ETH0).join("device/driver");
    std::os::unix::fs::symlink("../../../../bus/pci/drivers/i40e", driver).unwrap();
    put(&kernel, "sys/class/net/eth0.MostChannels", "combined=64\n");
    put(&kernel, "sys/devices/system/cpu/online", "0-7\n");
    let error = apply(&kernel, &[threaded(&kernel)]).unwrap_err().to_string();
    assert!(error.contains("waiting: eth0 has 4 channels, and its driver i40e"), "{error}");
    assert!(error.contains("`ethtool -L eth0 combined 8`"), "{error}");
    put(&kernel, "sys/class/net/eth0.Channels", "combined=8 other=1\n");
    apply(&kernel, &[threaded(&kernel)]).unwrap();
}

#[test]
fn a_write_without_answer_is_reported_the_rest_is_restored_and_undo_looks_again() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let plan = [threaded(&kernel), change(&kernel, irq(27), cpus("5"))];
    kernel.unanswered.set(Some(1));
    let error = apply(&kernel, &plan).unwrap_err();
    assert!(matches!(error, ApplyError::Incomplete { .. }), "{error}");
    assert!(error.to_string().contains("no answer within 30 s"), "{error}");
    assert_eq!(kernel.knobs(), before, "what was written before is restored");
    // It may still take effect: the transaction stays open until undo has checked again.
    put(&kernel, "proc/irq/27/smp_affinity", "20\n");
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(undone[0].is_complete());
    assert_eq!(kernel.knobs(), before);
}
