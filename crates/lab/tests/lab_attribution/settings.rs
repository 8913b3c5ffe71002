//! Settings are written, and restored byte for byte: by `apply` and `undo`, and by the daemon.

use netsilo_lab::{Lab, exact, until};
use serde_json::Value as Json;

use crate::{PATIENCE, interrupts_on_cpu_1};

const KNOBS: &str = "grep -H . /proc/irq/*/smp_affinity /proc/irq/default_smp_affinity \
    /proc/sys/net/core/rps_sock_flow_entries /sys/class/net/eth0/queues/*/rps_* \
    /sys/class/net/eth0/queues/*/xps_cpus";

/// While each queue answers requests.
pub(crate) fn are_written_and_restored(lab: &Lab) {
    let netsilo = exact::program().unwrap().with_file_name("netsilo");
    let netsilo = netsilo.display();
    let knobs = || lab.sh(KNOBS).unwrap();
    let server = lab.exact("echo --port 7300 --cpu 5").unwrap();
    let to = format!("--dest {} --port 7300", Lab::guest_address(0));
    let ask = format!("ask {to} --connections 32 --duration 600");
    let client = lab.peer(0).unwrap().exact(&ask).unwrap();
    interrupts_on_cpu_1(lab);
    arrive_on_cpu_1(lab, true);
    let before = knobs();

    let found = lab.run(&format!("{netsilo} check --json -i 2s")).unwrap();
    // 11: check has found something
    assert!([0, 11].contains(&found.status), "{}", found.text());
    let goal = "--algorithm spread --rps 2-3 --rfs 1024 --xps near --default-smp-affinity 0-3";
    lab.sh(&format!("{netsilo} plan --json -n eth0 -i 2s {goal} >/tmp/plan.json")).unwrap();
    let applied: Json =
        lab.json(&format!("{netsilo} apply --yes --json --plan /tmp/plan.json")).unwrap();
    let [changes, arrivals] = ["changes", "arrivals"].map(|it| applied[it].as_array().unwrap());
    assert!(arrivals.len() > 2 && changes.len() > arrivals.len() + 3, "{applied:#}");
    assert_ne!(knobs(), before);
    arrive_on_cpu_1(lab, false);
    let undone = lab.sh(&format!("{netsilo} undo")).unwrap();
    assert_eq!(knobs(), before, "{undone}");
    arrive_on_cpu_1(lab, true);

    let config = "interval = \"1s\"\\nrestore-on-exit = true\\n\
                  [goal]\\ndefault-smp-affinity = \"2-3\"\\nrps = \"2-3\"\\n";
    lab.sh(&format!("printf '{config}' >/tmp/netsilo.toml")).unwrap();
    let daemon = lab.spawn(&format!("exec {netsilo} run --config /tmp/netsilo.toml")).unwrap();
    let default = || lab.sh("cat /proc/irq/default_smp_affinity").unwrap();
    until("the daemon writes", default, |mask| mask.trim() == "0c").unwrap();
    lab.sh(&format!("{netsilo} status && kill {}", daemon.pid().unwrap())).unwrap();
    daemon.wait(PATIENCE).unwrap().ok().unwrap();
    assert_eq!(knobs(), before);
    client.stop().unwrap();
    drop(server);
}

/// Waits until three interrupts of eth0 have arrived on CPU 1 and none elsewhere; or three
/// elsewhere, and perhaps others on CPU 1.
fn arrive_on_cpu_1(lab: &Lab, all: bool) {
    let counts = || {
        let text = lab.sh("grep eth0 /proc/interrupts").unwrap();
        let line = |line: &str| {
            let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
            let counts: Vec<u64> = counts.collect();
            [counts[1], counts.iter().sum::<u64>() - counts[1]]
        };
        text.lines().map(line).collect::<Vec<_>>()
    };
    let then = counts();
    let grown = |now: &[[u64; 2]], at: usize| {
        now.iter().zip(&then).filter(|(now, then)| now[at] > then[at]).count()
    };
    let at = usize::from(!all);
    let now = until("three interrupts arrive", counts, |now| grown(now, at) > 2).unwrap();
    assert!(!all || grown(&now, 1) == 0, "{then:?} {now:?}");
}
