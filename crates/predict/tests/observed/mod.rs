//! The synthetic host that forecasts are tested on.

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};

pub(crate) fn cpu(number: u32) -> CpuSet {
    CpuSet::from_cpu(CpuId(number))
}

/// A queue whose interrupt runs on one CPU, of which it takes a share, and that is read on another.
pub(crate) fn queue(irq: u32, on: u32, load: f64, reader: u32) -> SceneQueue {
    let reader = Reader {
        comm: "server".into(),
        cpu: CpuId(reader),
        bytes_per_s: 10_000_000,
        ..Reader::default()
    };
    SceneQueue {
        irq: Some(irq),
        cpus: cpu(on),
        packets_per_s: 100_000,
        load,
        poll_time: true,
        readers: vec![reader],
        wakeups_per_s: 50_000,
        rps_cpus: Some(CpuSet::new()),
        rps_flow_cnt: Some(0),
        ..SceneQueue::default()
    }
}

/// A host with four CPUs and one netdev.
pub(crate) fn scene(queues: Vec<SceneQueue>) -> Scene {
    Scene {
        grid: Grid { cores: 4, ..Grid::default() },
        netdevs: vec![SceneNetdev {
            name: "eth0".into(),
            driver: "ixgbe".into(),
            most_queues: Some(8),
            queues,
            ..SceneNetdev::default()
        }],
        rps_sock_flow_entries: Some(0),
        ..Scene::default()
    }
}
