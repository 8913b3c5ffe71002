//! The machines of the fleet are those of the fixtures.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use netsilo_dev::synth::hwloc;

use std::collections::BTreeMap;
use std::path::Path;

use netsilo_dev::synth::host::Host;
use netsilo_dev::synth::machines::machines;
use netsilo_model::machine::topology::Topology;

/// `make generate` writes the file.
#[test]
fn the_embedded_topologies_are_what_netsilo_reads_in_the_fixtures() {
    let names = std::fs::read_dir(hwloc::fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(".tar.bz2")?.to_owned()));
    let read: BTreeMap<String, Topology> =
        names.map(|name| (name.clone(), hwloc::read(&name).unwrap())).collect();
    let text = serde_json::to_string(&read).unwrap().replace("},\"", "},\n\"") + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/synth/machines.json");
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&file, &text).unwrap();
    }
    assert!(
        std::fs::read_to_string(file).unwrap() == text,
        "src/synth/machines.json is not current: it is written by `make generate`"
    );
}

#[test]
fn a_fleet_has_hosts_on_each_machine() {
    let machines = machines().unwrap();
    assert!(machines.len() > 10, "{}", machines.len());
    let hosts: Vec<_> = (0..1000).map(|number| Host::new(1, number, &machines, false)).collect();
    for machine in &machines {
        let on_it = hosts.iter().find(|host| host.truth.machine == machine.name).unwrap();
        let observed = on_it.observation().after.topology;
        assert_eq!(*observed, machine.topology, "{}", machine.name);
    }
}
