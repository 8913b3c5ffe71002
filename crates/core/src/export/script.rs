//! A plain shell script that writes the plan's settings where they differ.

use std::fmt::Write as _;

use super::{File, interrupts, one_line, quoted, text_of};
use crate::change::{NetdevIdentity, Target};
use crate::plan::Plan;

/// What the script does before and after the plan's own lines.
const FUNCTIONS: &str = include_str!("script.sh");

/// The script.
pub fn script(plan: &Plan) -> File {
    let mut text = FUNCTIONS.to_owned();
    for it in interrupts(plan) {
        let (action, mask, cpus) = (quoted(it.action), it.cpus.to_mask(1), it.cpus);
        let _ = writeln!(text, "# {}\ninterrupt {action} {mask} '{cpus}'", one_line(it.why));
    }
    for change in &plan.changes {
        let what = quoted(&change.target.to_string());
        let value = text_of(&change.new);
        let queue = |netdev: &NetdevIdentity, file: &str| {
            let path = netdev.device_path.as_deref().unwrap_or_default();
            format!("queue {} {} {file} {value} {what}", quoted(&netdev.name), quoted(path))
        };
        let line = match &change.target {
            Target::IrqAffinity { .. } => continue,
            // They belong to what runs now, and to no device.
            Target::ThreadAffinity { .. } | Target::CgroupCpuset { .. } => continue,
            Target::DefaultSmpAffinity => format!("put /proc/irq/default_smp_affinity {value} {what}"),
            Target::RpsSockFlowEntries => format!("put /proc/sys/net/core/rps_sock_flow_entries {value} {what}"),
            Target::RpsDefaultMask => format!("put /proc/sys/net/core/rps_default_mask {value} {what}"),
            Target::RpsCpus { netdev, queue: n } => queue(netdev, &format!("rx-{n}/rps_cpus")),
            Target::RpsFlowCnt { netdev, queue: n } => queue(netdev, &format!("rx-{n}/rps_flow_cnt")),
            Target::XpsCpus { netdev, queue: n } => queue(netdev, &format!("tx-{n}/xps_cpus")),
            Target::Offload { netdev, feature } => {
                let path = netdev.device_path.as_deref().unwrap_or_default();
                format!("offload {} {} {feature} {value}", quoted(&netdev.name), quoted(path))
            }
            Target::NapiThread { comm, .. } => format!("kthread {} {value} '{}'", quoted(comm), change.new),
            _ => continue,
        };
        let _ = writeln!(text, "# {}\n{line}", one_line(&change.reason));
    }
    text.push_str("exit $failed\n");
    File { name: "netsilo-placement.sh".into(), text, executable: true }
}
