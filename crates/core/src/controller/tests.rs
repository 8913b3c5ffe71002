//! What is proved of the controller, in closed loop with a made-up machine.

use std::time::Duration;

use proptest::prelude::*;

use super::simulate::{Scheduler, World};
use super::*;
use crate::plan::{AlgorithmName, Goal};

const HOUR: usize = 360;

fn policy(algorithm: AlgorithmName) -> Policy {
    Policy { goal: Goal { algorithm, ..Goal::default() }, ..Policy::default() }
}

#[test]
fn probe() {
    for algorithm in [AlgorithmName::NearConsumer, AlgorithmName::RfsMaxWeight] {
        for (name, scheduler) in [
            ("still", Scheduler::default()),
            ("pull", Scheduler { pull: 0.2, push: 0.2, ..Scheduler::default() }),
            ("slow pull", Scheduler { pull: 0.01, push: 0.2, ..Scheduler::default() }),
            ("wander", Scheduler { wander: 0.5, ..Scheduler::default() }),
            ("slow wander", Scheduler { wander: 0.02, ..Scheduler::default() }),
            ("flee", Scheduler { flee: 1.0, ..Scheduler::default() }),
        ] {
            for seed in 0..3 {
                let mut world = World::random(policy(algorithm), seed);
                world.scheduler = scheduler;
                world.steps(24 * HOUR);
                println!(
                    "{algorithm} {name} {seed}: queues {} made {} most {} returns {} {:?}",
                    world.scene.netdevs[0].queues.len(),
                    world.made.len(),
                    world.most_writes(),
                    world.most_returns(),
                    world.scene.grid
                );
            }
        }
    }
}
