//! Kills the daemon while it writes, and restores.

use netsilo_lab::{Job, Signal};
use serde_json::Value as Json;

use crate::guest::{Guest, NETSILO};

const JOURNAL: &str = "/run/netsilo/journal";

/// How the knobs are restored after a kill.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    /// `netsilo undo`
    Undo,
    /// By the next daemon. It publishes only hints, so it writes nothing new.
    Daemon,
}

/// The interrupts that the daemon wrote since the journal began, in this order.
pub(crate) fn written(guest: &Guest) -> Vec<u64> {
    let mut irqs = Vec::new();
    for record in records(guest) {
        let entries = record["entries"].as_array().into_iter().flatten();
        irqs.extend(entries.filter_map(|entry| entry["target"]["irq"].as_u64()));
    }
    let mut seen = std::collections::BTreeSet::new();
    irqs.retain(|irq| seen.insert(*irq));
    assert!(!irqs.is_empty(), "{}", guest.log());
    irqs
}

fn records(guest: &Guest) -> Vec<Json> {
    let text = guest.lab.sh(&format!("cat {JOURNAL}")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Number of interrupts whose write nobody has undone. Kthreads, which an earlier transaction may
/// have written, are not among the knobs.
fn in_effect(records: &[Json]) -> usize {
    let of = |kind: &'static str| records.iter().filter(move |it| it["record"] == kind);
    let undone = |id: &Json| of("undone").any(|it| it["transaction"] == *id);
    let is_irq = |it: &Json| {
        let its = of("begin").find(|begin| begin["transaction"] == it["transaction"]).unwrap();
        its["entries"][it["entry"].as_u64().unwrap() as usize]["target"]["irq"].is_u64()
    };
    of("wrote").filter(|it| !undone(&it["transaction"]) && is_irq(it)).count()
}

/// Kills a daemon with -9 while it writes this interrupt, and restores. Every byte is as before.
pub(crate) fn restores_every_byte(guest: &Guest, irq: u64, by: By) {
    let before = guest.knobs();
    kill_in_write(guest, irq);
    let after = guest.knobs();
    let changed = before.iter().filter(|(file, text)| after[*file] != **text).count();
    assert_eq!(changed, in_effect(&records(guest)), "{after:?}\n{}", guest.log());
    match by {
        By::Undo => drop(guest.lab.sh(&format!("{NETSILO} undo")).unwrap()),
        By::Daemon => {
            guest.configure("hints-only = true");
            guest.start().stop().unwrap();
            let log = guest.log();
            assert!(log.contains("was left unfinished; netsilo undid it"), "{log}");
            guest.configure("");
        }
    }
    assert_eq!(guest.knobs(), before, "{by:?} after the write of irq {irq}: {}", guest.log());
}

/// Starts a daemon and makes it hang while it writes this interrupt, by a pipe mounted there. Then
/// kills it. A reader of the pipe gets the old value.
fn kill_in_write(guest: &Guest, irq: u64) {
    let file = format!("/proc/irq/{irq}/smp_affinity");
    let mount = format!(
        "old=$(cat {file}); rm -f /tmp/pipe; mkfifo /tmp/pipe; mount --bind /tmp/pipe {file}
         (while :; do echo $old >/tmp/pipe; sleep 0.5; done) >/dev/null 2>&1 & echo $!"
    );
    let values = guest.lab.sh(&mount).unwrap();
    let daemon: Job = guest.spawn();
    let hangs = format!(
        "tail -n 1 {JOURNAL} | grep -qE '\"(begin|wrote)\"' &&
         grep -qx wait_for_partner /proc/{}/task/*/wchan",
        daemon.pid().unwrap()
    );
    let look = || guest.lab.run(&hangs).unwrap().status;
    netsilo_lab::until("the daemon hangs in its write", look, |status| *status == 0)
        .unwrap_or_else(|error| panic!("{error}\n{}", guest.log()));
    daemon.signal(Signal::KILL).unwrap();
    drop(daemon);
    guest.lab.sh(&format!("kill {}; umount -l {file}", values.trim())).unwrap();
}
