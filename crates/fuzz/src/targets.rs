//! The targets: a file each, and the list of them, from which the tests are made.

mod announced;
mod btf;
mod bundle;
mod commands;
mod configuration;
mod control;
mod cpu_counters;
mod cpuset;
mod ethtool;
mod experiment;
mod histogram;
mod interrupts;
mod journal;
mod kallsyms;
mod machine;
mod net_counters;
mod observation;
mod plan;
mod processes;
mod queue_irq;
mod readers;
mod sysfs_values;
mod toeplitz;

use crate::target::FuzzTarget;

/// Makes the list of targets, and a test of each.
macro_rules! targets {
    ($($name:ident)*) => {
        /// All targets.
        pub const TARGETS: &[FuzzTarget] =
            &[$(FuzzTarget { name: stringify!($name), ..$name::TARGET }),*];

        #[cfg(test)]
        mod tests {
            $(#[test] fn $name() { crate::tests::try_inputs(stringify!($name)) })*
        }
    };
}

targets! {
    announced btf bundle commands configuration control cpu_counters cpuset ethtool
    experiment histogram interrupts journal kallsyms machine net_counters observation plan
    processes queue_irq readers sysfs_values toeplitz
}
