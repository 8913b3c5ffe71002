//! The settings of a scene's netdevs: queues, NAPIs, interrupts.

use std::collections::BTreeMap;

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::{Irq, NapiId};
use crate::machine::reading::Reading;
use crate::machine::topology::{NodeId, Topology};
use crate::snapshot::ethtool::{Channels, Ethtool, Limit};
use crate::snapshot::host::{IrqState, Writable};
use crate::snapshot::netdev::{
    Association, AssociationSource, Confidence, Napi, NapiThread, Netdev, RxQueue, TxQueue,
};
use crate::synthetic::scene::{FIRST_NAPI, SceneNetdev, SceneQueue};

impl SceneNetdev {
    pub(super) fn netdev(&self, ifindex: u32, first_napi: u32, topology: &Topology) -> Netdev {
        let named = || AssociationSource::ActionName("{dev}-rx-{n}".to_owned());
        let edge =
            |irq: u32| Association { to: Irq(irq), source: named(), confidence: Confidence::Named };
        let napi = |i: usize| NapiId(first_napi + i as u32);
        let known = |i: usize| Association {
            to: napi(i),
            source: AssociationSource::NetdevGenl,
            confidence: Confidence::Certain,
        };
        let thread = |i: usize, queue: &SceneQueue| NapiThread {
            pid: 900 + napi(i).0 - FIRST_NAPI,
            comm: format!("napi/{}-{}", self.name, napi(i)),
            start_time: 100,
            cpus: if queue.kthread_cpus.is_empty() {
                topology.online.clone()
            } else {
                queue.kthread_cpus.clone()
            },
        };
        let rx = |(i, queue): (usize, &SceneQueue)| RxQueue {
            index: i as u32,
            irq: queue.irq.map(edge),
            napi: (!self.napis_unknown).then(|| known(i)),
            rps_cpus: queue.rps_cpus.clone(),
            rps_flow_cnt: queue.rps_flow_cnt,
            leased: queue.leased.clone(),
            ..RxQueue::default()
        };
        let tx = |(i, queue): (usize, &SceneQueue)| TxQueue {
            index: i as u32,
            irq: queue.tx_irq.or(queue.irq).map(edge),
            xps_cpus: queue.xps_cpus.clone(),
            ..TxQueue::default()
        };
        let napis = self.queues.iter().enumerate().map(|(i, queue)| Napi {
            id: napi(i),
            irq: None,
            thread: self.threaded.then(|| thread(i, queue)),
        });
        Netdev {
            name: self.name.clone(),
            ifindex,
            device_path: (!self.software)
                .then(|| format!("/devices/pci0000:00/0000:00:{ifindex:02x}.0")),
            master: self.master.clone(),
            driver: Some(self.driver.clone()),
            node: self.node.map(NodeId),
            up: !self.down,
            carrier: Some(!self.down),
            mtu: 1500,
            rx_queues: self.queues.iter().enumerate().map(rx).collect(),
            tx_queues: self.queues.iter().enumerate().map(tx).collect(),
            irqs: self.irqs(),
            napis: if self.napis_unknown && !self.threaded { Vec::new() } else { napis.collect() },
            threaded: Some(self.threaded.into()),
            speed_mbps: self.speed_mbps,
            statistics: self.per_s.keys().map(|name| (name.clone(), 0)).collect(),
            ethtool: self.ethtool(),
            ..Netdev::default()
        }
    }

    /// Returns ethtool's report, if the scene defines any of it.
    fn ethtool(&self) -> Option<Ethtool> {
        let queues = self.queues.len() as u32;
        let rss = self.rss.as_ref().map(|rss| rss.ethtool(&self.driver, queues));
        let Some(max) = self.most_queues else { return rss };
        let combined = Some(Limit { current: queues, max });
        let channels = Reading::Value(Channels { rx: None, tx: None, other: None, combined });
        Some(Ethtool {
            channels,
            ..rss.unwrap_or_else(|| Ethtool::unavailable("a scene does not say"))
        })
    }

    fn irqs(&self) -> Vec<Irq> {
        let mut irqs: Vec<Irq> = self.config_irq.into_iter().map(Irq).collect();
        irqs.extend(
            self.queues.iter().flat_map(|queue| [queue.irq, queue.tx_irq]).flatten().map(Irq),
        );
        irqs.sort_unstable();
        irqs.dedup();
        irqs
    }

    pub(super) fn interrupts(&self, irqs: &mut BTreeMap<Irq, IrqState>) {
        let mut add = |irq: Option<u32>, action: String, cpus: &CpuSet, writable: &Writable| {
            let Some(irq) = irq else { return };
            let state = irqs.entry(Irq(irq)).or_default();
            state.chip = "PCI-MSIX 0-edge".into();
            state.requested = Some(cpus.clone());
            state.effective = cpus.lowest().map(CpuSet::from_cpu);
            state.writable = writable.clone();
            state.node = self.node.map(NodeId);
            if !state.actions.contains(&action) {
                state.actions.push(action);
            }
        };
        add(
            self.config_irq,
            format!("{}-config", self.name),
            &CpuSet::from_cpu(CpuId(0)),
            &Writable::Yes,
        );
        for (i, queue) in self.queues.iter().enumerate() {
            let split = queue.tx_irq.is_some();
            let action = format!("{}-{}-{i}", self.name, if split { "rx" } else { "TxRx" });
            add(queue.irq, action, &queue.cpus, &queue.writable);
            add(queue.tx_irq, format!("{}-tx-{i}", self.name), &queue.tx_cpus, &queue.writable);
        }
        for queue in &self.queues {
            if let Some(state) = queue.irq.and_then(|irq| irqs.get_mut(&Irq(irq))) {
                state.hint = queue.hint.clone();
                state.effective = state.effective.take().filter(|_| queue.arrives_on.is_none());
            }
        }
    }
}
