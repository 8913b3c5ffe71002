//! Two snapshots with the measurements between them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;
use crate::snapshot::packet_sockets::{CaptureKind, PacketSocket};
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
    /// pinned. netlink tells neither, and older kernels not even the use.
    pub fn name_users_of_queues(&mut self) {
        let Self { after, attribution, .. } = self;
        let own = after.machine.netns;
        let mut sockets: Vec<&PacketSocket> = attribution.packet_sockets.iter().collect();
        sockets.retain(|it| it.netns == own && it.kind == CaptureKind::Xdp);
        let users =
            sockets.iter().filter_map(|it| Some((it.netdev.as_str(), it.queue?, &it.holder)));
        let users: BTreeMap<(&str, u32), &Holder> =
            users.map(|(netdev, queue, holder)| ((netdev, queue), holder)).collect();
        if users.is_empty() {
            return;
        }
        for netdev in after.netdevs.iter_mut() {
            for queue in &mut netdev.rx_queues {
                let user = users.get(&(netdev.name.as_str(), queue.index));
                let Some(Holder { tgid, comm }) = user else { continue };
                let pinned = attribution.pinned.get(tgid);
                let on = pinned.map_or_else(String::new, |cpus| format!(", on cpus {cpus}"));
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
    before: Snapshot,
    after: Snapshot,
    attribution: Attribution,
}

impl ObservationDocument {
    /// Adds the newest schema to an observation.
    pub fn new(observation: Observation) -> Self {
        let Observation { before, after, attribution } = observation;
        Self { schema: SCHEMA, before, after, attribution }
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
    }
}
