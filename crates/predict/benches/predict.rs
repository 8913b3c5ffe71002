//! How long a prediction takes: `cargo bench -p netsilo-predict`.

use divan::{Bencher, black_box};
use netsilo_predict::file;
use netsilo_predict::parameters::Table;
use netsilo_predict::predict;

fn main() {
    divan::main();
}

const SCENARIO: &str = include_str!("../../../cases/predict/request-response.toml");

fn run(bencher: Bencher<'_, '_>, changes: &[(&str, &str)], setting: &str) {
    let changes: Vec<_> = changes.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let (Ok(described), Ok(table)) = (file::parse(SCENARIO, &changes, &[]), Table::built_in())
    else {
        unreachable!("the scenario is part of the repository");
    };
    let (setting, values) = (&described.settings[setting], table.values());
    bencher.bench(|| predict(black_box(&described.scenario), setting, &values));
}

#[divan::bench(args = ["none", "irq_affinity", "rps_rfs", "irq_affinity+rps_rfs"])]
fn cpus_16_queues_8(bencher: Bencher<'_, '_>, setting: &str) {
    run(bencher, &[], setting);
}

#[divan::bench]
fn cpus_512_queues_256(bencher: Bencher<'_, '_>) {
    let changes = [
        ("machine.cores", "128"),
        ("nic.queues", "256"),
        ("nic.gbit", "200"),
        ("settings.rps_rfs.irq", "0-255"),
        ("settings.rps_rfs.rps", "0-511"),
    ];
    run(bencher, &changes, "rps_rfs");
}
