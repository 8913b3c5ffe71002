//! Two snapshots with the measurements between them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::schema::{NETSILO, Stamp};
use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev_genl::{DEVICE_MEMORY, IO_URING};
use crate::snapshot::packet_sockets::{CaptureKind, PacketSocket};
use crate::snapshot::queue_users::QueueAccess::{DeviceMemory, Ring, Xdp, ZeroCopyRing};
use crate::snapshot::queue_users::possibly;
use crate::snapshot::sockets::Holder;

/// The newest schema of an observation's JSON. It is increased when a field changes its meaning or
/// is removed.
pub const SCHEMA: u32 = 1;

/// Two snapshots and the eBPF measurements between them: the input of all analysis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later snapshot. Decisions use its settings.
    pub after: Snapshot,
    /// NAPI polls and consumers measured between the two snapshots.
    pub attribution: Attribution,
}

impl Observation {
    /// Names the program whose `AF_XDP` socket uses an rx queue, and the CPUs to which it is
    /// pinned or where it ran. netlink tells neither, and older kernels not even the use. Of other
    /// holders, names processes that may be it.
    pub fn name_users_of_queues(&mut self) {
        let Self { after, attribution, .. } = self;
        let own = after.machine.netns;
        let mut sockets: Vec<&PacketSocket> = attribution.packet_sockets.iter().collect();
        sockets.retain(|it| it.netns == own && it.kind == CaptureKind::Xdp);
        let users =
            sockets.iter().filter_map(|it| Some((it.netdev.as_str(), it.queue?, &it.holder)));
        let users: BTreeMap<(&str, u32), &Holder> =
            users.map(|(netdev, queue, holder)| ((netdev, queue), holder)).collect();
        let rings = possibly(&attribution.queue_users, &[ZeroCopyRing, Ring]);
        let memory = possibly(&attribution.queue_users, &[DeviceMemory]);
        for netdev in after.netdevs.iter_mut() {
            for queue in &mut netdev.rx_queues {
                let user = users.get(&(netdev.name.as_str(), queue.index));
                let Some(Holder { tgid, comm }) = user else {
                    match &mut queue.leased {
                        Some(holder) if holder == IO_URING => holder.push_str(&rings),
                        Some(holder) if holder.starts_with(DEVICE_MEMORY) => {
                            holder.push_str(&memory);
                        }
                        _ => {}
                    }
                    continue;
                };
                let pinned = attribution.pinned.get(tgid).map(|cpus| format!(", on cpus {cpus}"));
                let mut all = attribution.queue_users.iter();
                let ran_on = all.find(|it| it.has == Xdp && it.holder.tgid == *tgid);
                let on = pinned.or_else(|| Some(ran_on?.ran_on())).unwrap_or_default();
                queue.leased = Some(format!("AF_XDP by {comm} (pid {tgid}{on})"));
            }
        }
    }

    /// Adds the observation that began where this one ended. See [`Attribution::append`].
    pub fn append(&mut self, next: Self) {
        self.after = next.after;
        self.attribution.append(next.attribution);
    }
}

/// An observation as JSON between programs. `capture --ndjson` prints it, `plan --ndjson` reads it.
///
/// The fields of [`Observation`], with a version. They are repeated here because `serde(flatten)`
/// cannot read maps whose keys are numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObservationDocument {
    /// The schema that the writer used.
    pub schema: u32,
    /// The version of the writer. Documents of versions before 0.1.0 lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netsilo: Option<String>,
    before: Snapshot,
    after: Snapshot,
    attribution: Attribution,
}

impl ObservationDocument {
    /// Adds the newest schema to an observation.
    pub fn new(observation: Observation) -> Self {
        let Observation { before, after, attribution } = observation;
        Self { schema: SCHEMA, netsilo: Some(NETSILO.to_owned()), before, after, attribution }
    }

    /// What it says of its format.
    pub fn stamp(&self) -> Stamp {
        Stamp { schema: Some(self.schema), netsilo: self.netsilo.clone() }
    }

    /// The observation.
    pub fn observation(self) -> Observation {
        let Self { before, after, attribution, .. } = self;
        Observation { before, after, attribution }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cpuset::CpuSet;
    use crate::snapshot::queue_users::{QueueAccess, QueueUser};
    use crate::synthetic::scene::Scene;

    #[test]
    fn the_program_of_an_xdp_socket_is_the_user_of_its_queue() {
        let scene = r#"{ "grid": { "l2s": 2 }, "netdevs": [
            { "name": "eth0", "driver": "igb", "queues": [{ "irq": 41 }, { "irq": 42 }] }] }"#;
        let mut host = serde_json::from_str::<Scene>(scene).unwrap().observation();
        let netns = host.after.machine.netns;
        let socket = |tgid, netns, netdev: &str, queue, kind| PacketSocket {
            holder: Holder { tgid, comm: "ids".into() },
            netns,
            netdev: netdev.into(),
            queue,
            kind,
            ..PacketSocket::default()
        };
        host.attribution.packet_sockets = vec![
            socket(812, netns, "eth0", Some(1), CaptureKind::Xdp),
            socket(813, netns + 1, "eth0", Some(0), CaptureKind::Xdp),
            socket(814, netns, "eth0", None, CaptureKind::Ring),
            socket(815, netns, "", Some(0), CaptureKind::Xdp),
        ];
        let users = |host: &Observation| -> Vec<Option<String>> {
            host.after.netdevs[0].rx_queues.iter().map(|it| it.leased.clone()).collect()
        };
        host.name_users_of_queues();
        assert_eq!(users(&host), [None, Some("AF_XDP by ids (pid 812)".into())]);
        host.attribution.pinned = [(812, CpuSet::parse_list("4-5").unwrap())].into();
        host.name_users_of_queues();
        assert_eq!(users(&host)[1].as_deref(), Some("AF_XDP by ids (pid 812, on cpus 4-5)"));
        host.attribution.pinned.clear();
        host.attribution.queue_users = vec![user(812, Xdp, "3")];
        host.name_users_of_queues();
        let on3 = "AF_XDP by ids (pid 812, ran on cpu 3 when read)";
        assert_eq!(users(&host)[1].as_deref(), Some(on3));
    }

    fn user(tgid: u32, has: QueueAccess, ran_on: &str) -> QueueUser {
        let ran_on = CpuSet::parse_list(ran_on).unwrap();
        QueueUser { holder: Holder { tgid, comm: "ids".into() }, has, ran_on }
    }

    #[test]
    fn a_process_that_may_hold_a_queue_is_named_as_a_guess() {
        let scene = r#"{ "grid": { "l2s": 2 }, "netdevs": [ { "name": "eth0", "driver": "gve",
            "queues": [{ "irq": 41, "leased": "io_uring zero-copy receive" },
                       { "irq": 42, "leased": "device memory (dmabuf 2)" },
                       { "irq": 43, "leased": "lease with queue 1 of netdev 7" }] }] }"#;
        let scene: Scene = serde_json::from_str(scene).unwrap();
        let held = |users: &[QueueUser]| -> Vec<String> {
            let mut host = scene.observation();
            host.attribution.queue_users = users.to_vec();
            host.name_users_of_queues();
            let queues = host.after.netdevs[0].rx_queues.iter();
            queues.map(|it| it.leased.clone().unwrap()).collect()
        };
        let [ring, memory, lease] = [
            "io_uring zero-copy receive",
            "device memory (dmabuf 2)",
            "lease with queue 1 of netdev 7",
        ];
        assert_eq!(held(&[]), [ring, memory, lease]);
        let two = [user(1, Ring, "3"), user(2, Ring, ""), user(3, DeviceMemory, "4-5")];
        let by = |pid, has: &str| format!("ids (pid {pid} has {has})");
        let first = by(1, "an io_uring, ran on cpu 3 when read");
        let expected = [
            format!("{ring}, possibly by {first} or {}", by(2, "an io_uring")),
            format!(
                "{memory}, possibly by {}",
                by(3, "a dmabuf and a netlink socket, ran on cpus 4-5 when read")
            ),
            lease.to_owned(),
        ];
        assert_eq!(held(&two), expected);
        let shown = [user(1, Ring, "3"), user(2, ZeroCopyRing, "")];
        assert_eq!(
            held(&shown)[0],
            format!("{ring}, possibly by ids (pid 2 maps a zero-copy ring)")
        );
        let many: Vec<QueueUser> = (1..5).map(|pid| user(pid, Ring, "3")).collect();
        assert_eq!(
            held(&many)[0],
            format!("{ring}, possibly by one of 4 processes: each has an io_uring")
        );
    }
}
