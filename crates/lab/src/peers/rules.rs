//! The settings defined by a fixed rule, as changes of the booted state.

use crate::guests::Queues;
use crate::knobs::Knobs;
use crate::peers::setting::PeerSetting;

/// Changes the booted state to the setting. Returns `false` for a setting that a program places.
pub(crate) fn apply(setting: PeerSetting, queues: &Queues, knobs: &mut Knobs) -> bool {
    match setting {
        PeerSetting::AsBooted => {}
        PeerSetting::TunedLatency => tuned_latency(knobs),
        PeerSetting::TunedThroughput => tuned_throughput(knobs),
        PeerSetting::Spread => queues.place(knobs, |_, queue| queue % queues.queues % queues.cpus),
        PeerSetting::Cpu0 => queues.place(knobs, |_, _| 0),
        PeerSetting::Rps => queues.rps(knobs, queues.all()),
        PeerSetting::RpsRfs => {
            queues.rps(knobs, queues.all());
            queues.rfs(knobs);
        }
        PeerSetting::PerftuneMq => {
            queues.place(knobs, |n, _| n as u32 % queues.cpus);
            perftune(queues, knobs, queues.all());
        }
        PeerSetting::PerftuneSq => {
            queues.place(knobs, |_, _| 0);
            perftune(queues, knobs, queues.all() & !1);
        }
        PeerSetting::Irqbalance
        | PeerSetting::Netsilo
        | PeerSetting::NetsiloRun
        | PeerSetting::NetsiloTune => {
            return false;
        }
    }
    true
}

/// What perftune.py writes in addition to the interrupts: RPS to the CPUs of its mode, RFS, XPS
/// with the CPUs divided among the queues, and two backlogs.
fn perftune(queues: &Queues, knobs: &mut Knobs, compute: u32) {
    queues.rps(knobs, compute);
    queues.rfs(knobs);
    let share = queues.cpus / queues.queues;
    for queue in 0..queues.queues {
        let cpus = ((1 << share) - 1) << (queue * share);
        let tx_queue = format!("/queues/tx-{queue}/xps_cpus");
        knobs.set(|file| file.ends_with(&tx_queue), &queues.mask(cpus));
    }
    sysctl(knobs, "net/core/somaxconn", "4096");
    sysctl(knobs, "net/ipv4/tcp_max_syn_backlog", "4096");
}

/// network-latency, without settings that do not concern the network or need a reboot.
fn tuned_latency(knobs: &mut Knobs) {
    sysctl(knobs, "net/core/busy_read", "50");
    sysctl(knobs, "net/core/busy_poll", "50");
    sysctl(knobs, "net/ipv4/tcp_fastopen", "3");
    sysctl(knobs, "kernel/numa_balancing", "0");
}

/// network-throughput with throughput-performance, which it includes.
fn tuned_throughput(knobs: &mut Knobs) {
    sysctl(knobs, "net/ipv4/tcp_rmem", "4096 87380 16777216");
    sysctl(knobs, "net/ipv4/tcp_wmem", "4096 16384 16777216");
    sysctl(knobs, "net/core/somaxconn", "2048");
}

fn sysctl(knobs: &mut Knobs, name: &str, value: &str) {
    let wanted = format!("proc/sys/{name}");
    knobs.set(|file| file == wanted, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// What a setting changes on a guest with eight CPUs and two queues, whose interrupts are 30 to
    /// 33.
    fn changes(setting: PeerSetting) -> BTreeMap<String, String> {
        let mut text: String =
            (30..34).map(|irq| format!("proc/irq/{irq}/smp_affinity:80\n")).collect();
        for queue in 0..2 {
            let folder = "sys/class/net/eth0/queues";
            text +=
                &format!("{folder}/rx-{queue}/rps_cpus:00\n{folder}/rx-{queue}/rps_flow_cnt:0\n");
            text += &format!("{folder}/tx-{queue}/xps_cpus:00\n");
        }
        text += "proc/sys/net/core/rps_sock_flow_entries:0\nproc/sys/net/core/busy_poll:0\n\
                 proc/sys/net/ipv4/tcp_rmem:4096\t131072\t6291456\n";
        let booted = Knobs::parse(&text);
        let vectors = vec![(30, 0), (31, 0), (32, 1), (33, 1)];
        let mut knobs = booted.clone();
        assert!(apply(setting, &Queues { vectors, queues: 2, cpus: 8 }, &mut knobs));
        knobs.differences_from(&booted)
    }

    fn interrupts(setting: PeerSetting) -> [String; 4] {
        let changes = changes(setting);
        [30, 31, 32, 33].map(|irq| changes[&format!("/proc/irq/{irq}/smp_affinity")].clone())
    }

    #[test]
    fn interrupts_go_where_the_rules_put_them() {
        assert_eq!(interrupts(PeerSetting::Spread), ["01", "01", "02", "02"]);
        assert_eq!(interrupts(PeerSetting::Cpu0), ["01"; 4]);
        assert_eq!(interrupts(PeerSetting::PerftuneMq), ["01", "02", "04", "08"]);
        assert_eq!(interrupts(PeerSetting::PerftuneSq), ["01"; 4]);
        assert_eq!(changes(PeerSetting::AsBooted), BTreeMap::new());
    }

    #[test]
    fn steering_is_written_for_each_queue() {
        let queue = |changes: &BTreeMap<String, String>, file: &str| {
            changes.get(&format!("/sys/class/net/eth0/queues/{file}")).cloned()
        };
        let rps = changes(PeerSetting::Rps);
        assert_eq!((rps.len(), queue(&rps, "rx-1/rps_cpus").as_deref()), (2, Some("ff")));
        let rfs = changes(PeerSetting::RpsRfs);
        assert_eq!(queue(&rfs, "rx-0/rps_flow_cnt").as_deref(), Some("16384"));
        assert_eq!(rfs["/proc/sys/net/core/rps_sock_flow_entries"], "32768");
        let sq = changes(PeerSetting::PerftuneSq);
        assert_eq!(queue(&sq, "rx-1/rps_cpus").as_deref(), Some("fe"));
        assert_eq!(queue(&sq, "tx-0/xps_cpus").as_deref(), Some("0f"));
        assert_eq!(queue(&sq, "tx-1/xps_cpus").as_deref(), Some("f0"));
    }

    #[test]
    fn profiles_of_tuned_change_sysctls_only() {
        let latency = changes(PeerSetting::TunedLatency);
        assert_eq!(
            latency.into_iter().collect::<Vec<_>>(),
            [("/proc/sys/net/core/busy_poll".to_owned(), "50".to_owned())]
        );
        let throughput = changes(PeerSetting::TunedThroughput);
        assert_eq!(throughput["/proc/sys/net/ipv4/tcp_rmem"], "4096 87380 16777216");
    }
}
