//! Files of one process or thread: `stat`, `status`, `schedstat`, `cgroup`, `cmdline`, `fdinfo`,
//! `maps`, links of `fd` and `ns`; CPU quotas of cgroups; netlink sockets; a container's
//! `config.json`; irqbalance's answers; containers and virtual machines as cgroups, log files,
//! arguments and threads name them.

use netsilo_model::machine::ids::Irq;
use netsilo_model::parse::container::{Container, log_file};
use netsilo_model::parse::cpu_bandwidth::{ancestors, cpu_max, cpu_stat, v1_path, v2_path};
use netsilo_model::parse::irqbalance::{ban_message, banned, most_bytes};
use netsilo_model::parse::pid_stat::pid_stat;
use netsilo_model::parse::pid_status::{cpus_allowed, voluntary_switches};
use netsilo_model::parse::pod_annotations::PodAnnotations;
use netsilo_model::parse::queue_access::{generic_netlink, maps_zero_copy_ring, poller_cpu};
use netsilo_model::parse::schedstat::{cgroup_path, link_inode, processor, run_ns};
use netsilo_model::parse::virtual_machine::{
    maker_of_vhost, of_arguments, of_cgroup, role, tun_of_descriptor,
};
use netsilo_model::snapshot::tap_holders::TapThreadRole;

use crate::properties::{is_one_line, points_into};
use crate::target::{FuzzTarget, fixtures};

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    let stat = pid_stat(text);
    // a name may contain a newline; then the error's line number differs from that in the text
    if is_one_line(text) {
        points_into(text, &stat);
    }
    if let Ok(stat) = stat {
        // PF_KTHREAD, PF_NO_SETAFFINITY
        let flags =
            u32::from(stat.kthread) * 0x20_0000 + u32::from(stat.fixed_affinity) * 0x400_0000;
        let again = format!(
            "7 ({}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n",
            stat.comm, stat.start_time
        );
        assert_eq!(pid_stat(&again), Ok(stat));
    }
    points_into(text, &cpus_allowed(text));
    if let Some(cpu) = processor(text) {
        let fields: Vec<String> = (3..39).map(|field| field.to_string()).collect();
        assert_eq!(processor(&format!("7 (a b) {} {cpu} 0\n", fields.join(" "))), Some(cpu));
    }
    let _ = (run_ns(text), voluntary_switches(text));
    let _ = cpu_stat(text, cpu_max(text).unwrap_or_default()).cpus();
    for path in v1_path(text).into_iter().chain(v2_path(text)).flat_map(ancestors) {
        assert!(text.contains(path));
    }
    if let Some(path) = cgroup_path(text) {
        assert!(text.contains(path) && !path.contains('\n'));
    }
    if let Some(container) = Container::from_path(text) {
        let again = format!("docker-{}.scope", container.id);
        assert_eq!(Container::from_path(&again).map(|it| it.id), Some(container.id));
        let _ = container.label();
    }
    if let Some((id, name)) = log_file(text) {
        assert!(text.contains(id) && name.matches('/').count() >= 2);
    }
    if let Some(guest) = of_arguments(text) {
        assert!(text.contains(&guest));
    }
    let _ = of_cgroup(text);
    if let Ok(words) = serde_json::from_str::<PodAnnotations>(text) {
        let words = words.known();
        assert_eq!(words.clone().known(), words);
        assert!(!words.keeps_first_core() || words.about_interrupts().is_some());
    }
    let answer = banned(text);
    if is_one_line(text) {
        points_into(text, &answer);
    }
    if let Ok(irqs) = answer {
        assert!(ban_message(&irqs).len() <= 22 + 11 * irqs.len());
        let irq = |irq: &Irq| format!("IRQ {irq} LOAD 0 DIFF 0 CLASS 0 ");
        let list: String = irqs.iter().map(irq).collect();
        assert_eq!(banned(&format!("SLEEP 10 {list}BANNED 0")), Ok(irqs));
    }
    assert!([499, 16_383].contains(&most_bytes(text.as_bytes())));
    points_into(text, &generic_netlink(text));
    if let Some(cpu) = poller_cpu(text) {
        assert_eq!(poller_cpu(&format!("SqThreadCpu:\t{cpu}\n")), Some(cpu));
    }
    assert!(!maps_zero_copy_ring(text) || text.contains("[io_uring]"));
    if maker_of_vhost(text).is_some() {
        assert_eq!(role(text), TapThreadRole::Vhost);
    }
    if let Some(tap) = tun_of_descriptor(text) {
        assert_eq!(tun_of_descriptor(&format!("iff:\t{tap}\n")), Some(tap));
    }
    for kind in ["socket", "net"] {
        if let Some(inode) = link_inode(text, kind) {
            assert_eq!(link_inode(&format!("{kind}:[{inode}]"), kind), Some(inode));
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let is_number = |folder: &str| folder.starts_with(|c: char| c.is_ascii_digit());
    fixtures(|path| path.split("/proc/").skip(1).any(is_number))
}
