//! What is true of the controller in a closed loop with a synthetic machine: the laws of
//! `docs/daemon.md`, over simulated hours and days.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod other_programs;
mod outcomes;
mod stability;
mod verifications;
mod world;

use netsilo_decide::control::{LogEntry, LogKind, Policy};
use netsilo_decide::plan::{AlgorithmName, Goal, Xps};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::synthetic::grid::Grid;
use netsilo_model::synthetic::scene::{Reader, Scene, SceneNetdev, SceneQueue};
use world::World;

/// Windows per hour.
const HOUR: usize = 360;

fn policy(algorithm: AlgorithmName) -> Policy {
    Policy { goal: Goal { algorithm, ..Goal::default() }, ..Policy::default() }
}

/// The same, but the CPUs of each tx queue (XPS) follow its completion interrupt.
fn with_xps(policy: Policy, wanted: bool) -> Policy {
    Policy { goal: Goal { xps: wanted.then_some(Xps::Near), ..policy.goal }, ..policy }
}

/// Two sockets of four cores. Each queue's interrupt is on cpu 0, its reader on the other socket.
fn scene(queues: u32) -> Scene {
    let queue = |at: u32| SceneQueue {
        irq: Some(30 + at),
        cpus: CpuSet::from_cpu(CpuId(0)),
        xps_cpus: Some(CpuSet::new()),
        packets_per_s: 50_000,
        load: 0.2,
        readers: vec![Reader {
            comm: "redis".into(),
            cpu: CpuId(4 + at),
            bytes_per_s: 20_000_000,
            ..Reader::default()
        }],
        ..SceneQueue::default()
    };
    let queues = (0..queues).map(queue).collect();
    let netdev =
        SceneNetdev { name: "eth0".into(), driver: "igb".into(), queues, ..SceneNetdev::default() };
    Scene {
        grid: Grid { nodes: 2, l2s: 4, ..Grid::default() },
        netdevs: vec![netdev],
        ..Scene::default()
    }
}

fn small(queues: u32, seed: u64) -> World {
    World::new(scene(queues), policy(AlgorithmName::NearConsumer), seed)
}

fn has(log: &[LogEntry], kind: LogKind) -> bool {
    log.iter().any(|entry| entry.kind == kind)
}

fn by_someone_else(world: &mut World, irq: u32, cpu: u32) {
    world.settings.irqs.get_mut(&Irq(irq)).unwrap().requested = Some(CpuSet::from_cpu(CpuId(cpu)));
}

#[test]
fn an_interrupt_whose_controller_ignores_its_affinity_is_written_once() {
    let mut scene = scene(1);
    scene.netdevs[0].queues[0].arrives_on = Some(CpuId(0));
    let mut world = World::new(scene, policy(AlgorithmName::NearConsumer), 1);
    world.steps(HOUR);
    assert_eq!(world.most_writes(), 1);
}
