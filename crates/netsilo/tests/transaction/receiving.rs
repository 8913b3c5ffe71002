//! `apply --receiving-within`: keeps what leaves each netdev receiving, restores the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netsilo_lab::output_of;

use super::host::Host;

/// Two titles, as `net/core/net-procfs.c` prints them, then `lo`, which counts for nothing.
fn received(host: &Host, eth0: u64, eth1: u64) {
    let line = |name: &str, packets: u64| format!("  {name}: 9000 {packets} 0 0 0 0 0 0 0 0\n");
    let text = format!("Inter-|\n face |\n{}{}", line("eth0", eth0), line("eth1", eth1));
    host.put("new", &(text + &line("lo", eth0)));
    // a reader never sees half a file
    std::fs::rename(host.root().join("new"), host.root().join("proc/net/dev")).unwrap();
}

/// Applies while eth0 receives packets, and eth1 until something is written if `loses`, else one
/// packet.
fn applied(host: &Host, more: &[&str], receives: bool, loses: bool) -> (Option<i32>, String) {
    host.put("proc/net/dev", "");
    received(host, 1, 1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut eth0, mut eth1) = (1, 2);
            while receives && !ended.load(Ordering::Relaxed) {
                eth0 += 1;
                eth1 += u64::from(loses && host.records("begin").is_empty());
                received(host, eth0, eth1);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let output = output_of(&host.run("apply", more));
        ended.store(true, Ordering::Relaxed);
        output
    })
}

const WITHIN: [&str; 3] = ["--yes", "--receiving-within", "4s"];

#[test]
fn what_leaves_each_netdev_receiving_is_confirmed() {
    let host = Host::new();
    let (code, text) = applied(&host, &WITHIN, true, false);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("eth0 still receive packets"), "{text}");
    assert_eq!(host.affinities(), ["10", "10"]);
    assert_eq!(host.records("confirmed").len(), 1);
    host.until("the guard ends", |host| host.guards().is_empty());
    let (code, text) = output_of(&host.run("undo", &[]));
    assert_eq!((code, host.affinities()), (Some(0), ["01\n", "01\n"].map(str::to_owned)), "{text}");
}

#[test]
fn what_silences_a_netdev_is_restored() {
    let host = Host::new();
    let (code, text) = applied(&host, &WITHIN, true, true);
    assert_eq!(code, Some(20), "{text}");
    let why = "eth1 received nothing for 4s after the writes: everything is restored";
    assert!(text.contains(why), "{text}");
    assert_eq!(host.affinities(), ["01\n", "01\n"]);
    assert_eq!(host.records("undone").len(), 1);
    host.until("the guard ends", |host| host.guards().is_empty());
}

#[test]
fn where_nothing_is_received_nothing_is_claimed() {
    let host = Host::new();
    let (code, text) = applied(&host, &WITHIN, false, false);
    assert_eq!((code, host.records("confirmed").len()), (Some(0), 1), "{text}");
    assert!(text.contains("nothing shows whether any still can"), "{text}");
    let (code, text) =
        output_of(&host.run("apply", &["--confirm-within=9s", "--receiving-within=9s"]));
    assert_eq!(code, Some(2), "{text}");
}
