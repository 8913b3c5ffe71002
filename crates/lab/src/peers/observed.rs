//! The settings for which a program places queues while it observes the workload.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use netsilo_lab::{Lab, irqbalance};
use serde_json::Value as Json;

use crate::peers::setting::PeerSetting;

/// Short windows, and no verdict from CPU times. Under emulation these times are noise, and the
/// daemon's own time is so long that its budget would leave it hardly any event to observe.
const DAEMON: &str = "interval = \"2s\"\nbudget = \"off\"\n[controller]\nworse-by = 1.0\n";

/// A search for an objective that is valid under emulation: counts.
const TUNE: &str = "--window 1s --objective ipis-per-packet --yes";
/// All candidates need seven minutes.
const SHORT: &str = "--for 3m --only same-cpu,near-consumer,spread";
const ALL: &str = "--for 7m";

/// The time after which the search must have ended: its own time, plus that of its start and end.
const SEARCHED: Duration = Duration::from_secs(590);

/// Minimum number of windows that the daemon observes, and the time after which it must have
/// settled.
const WINDOWS: u64 = 3;
const SETTLED: Duration = Duration::from_secs(60);

/// Lets the program of this setting place queues while the workload runs. Returns its output.
///
/// `search_all`: the search tries all candidates.
pub(crate) fn place(
    setting: PeerSetting,
    lab: &Lab,
    netsilo: &str,
    search_all: bool,
) -> Result<String> {
    match setting {
        PeerSetting::Irqbalance => balance(lab),
        PeerSetting::Netsilo => lab.sh(&format!("{netsilo} apply --yes --verbose --interval 2s")),
        PeerSetting::NetsiloRun => daemon(lab, netsilo),
        PeerSetting::NetsiloTune => {
            let search = format!("{netsilo} tune {TUNE} {}", if search_all { ALL } else { SHORT });
            let output = lab.run_for(&search, SEARCHED)?.ok()?;
            Ok(output.text().into_owned())
        }
        other => bail!("{} is placed by a rule", other.name()),
    }
}

/// Closes netsilo's journal and deletes its outcomes, so that they do not influence the next
/// setting.
pub(crate) fn forget(lab: &Lab, netsilo: &str) -> Result<()> {
    lab.sh(&format!("{netsilo} undo && rm -rf /var/lib/netsilo/outcomes")).map(drop)
}

fn balance(lab: &Lab) -> Result<String> {
    let program = irqbalance()?.display().to_string();
    lab.sh(&format!("{program} --foreground --oneshot --interval=2"))
}

/// Runs the daemon until, in a window after the first ones, it wants to move nothing more.
fn daemon(lab: &Lab, netsilo: &str) -> Result<String> {
    lab.sh(&format!("mkdir -p /tmp/conf; cat >/tmp/conf/netsilo.toml <<'END'\n{DAEMON}END"))?;
    let daemon = lab.spawn(&format!("exec {netsilo} run --config /tmp/conf >/tmp/log 2>&1"))?;
    let end = Instant::now() + SETTLED;
    loop {
        // Leaves the emulated CPUs to the daemon and the workload.
        std::thread::sleep(Duration::from_secs(1));
        let output = lab.run(&format!("{netsilo} status --json"))?;
        let status = serde_json::from_slice(&output.stdout).unwrap_or(Json::Null);
        if is_settled(&status) {
            break;
        }
        let log = || lab.sh("cat /tmp/log").unwrap_or_default();
        let waiting = Instant::now() < end;
        ensure!(waiting, "the daemon has not settled: {status}\n{}", log());
    }
    daemon.stop()?;
    lab.sh("cat /tmp/log")
}

/// The only wanted changes are those that the daemon will not write while the workload stays the
/// same.
fn is_settled(status: &Json) -> bool {
    let list = |key: &str| status[key].as_array().map_or(&[][..], Vec::as_slice);
    let stays = |target: &Json| {
        list("held").iter().any(|held| held["target"] == *target && held["lasting"] == true)
    };
    status["windows"].as_u64().is_some_and(|windows| windows >= WINDOWS)
        && status["pending"].is_array()
        && list("pending").iter().all(|change| stays(&change["target"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_has_settled_when_a_later_window_would_move_nothing() {
        let status = |windows: u64, pending: &[&str], held: &[(&str, bool)]| {
            let target = |it: &&str| serde_json::json!({ "target": it });
            let held_for = |(target, lasting): &(&str, bool)| {
                let target = target.to_owned();
                serde_json::json!({ "target": target, "lasting": lasting })
            };
            serde_json::json!({
                "windows": windows,
                "pending": pending.iter().map(target).collect::<Vec<_>>(),
                "held": held.iter().map(held_for).collect::<Vec<_>>(),
            })
        };
        assert!(is_settled(&status(WINDOWS, &[], &[])));
        assert!(is_settled(&status(WINDOWS, &["a"], &[("a", true)])));
        assert!(!is_settled(&status(WINDOWS, &["a"], &[("a", false)])));
        assert!(!is_settled(&status(WINDOWS, &["a"], &[("b", true)])));
        assert!(!is_settled(&status(1, &[], &[])));
        assert!(!is_settled(&Json::Null));
    }
}
