//! What identifies a machine and its costs: `/proc/cpuinfo`, and `costs.json`, which says what was
//! measured on it.

use netsilo_model::cost::calibration::{Calibration, MachineIdentity};
use netsilo_model::parse::cpuinfo::{model, virtual_by_firmware, virtual_machine};
use netsilo_sys::cost::store::Measurement;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    assert!(!model(text).contains('\n'));
    let _ = virtual_machine(text);
    let (vendor, product) = text.split_once('\n').unwrap_or((text, ""));
    let _ = virtual_by_firmware(vendor, product);
    let Ok(measurement) = serde_json::from_str::<Measurement>(text) else { return };
    let printed = serde_json::to_string(&measurement).expect("a measurement");
    assert!(serde_json::from_str::<Measurement>(&printed).is_ok());
    let _ = measurement.costs.check();
    let Measurement { when, machine, measured, .. } = measurement;
    let derived = Measurement::new(when, machine, measured);
    assert!(serde_json::to_string(&derived).is_ok());
}

fn seeds() -> Vec<Vec<u8>> {
    let machine = MachineIdentity {
        hostname: "host".into(),
        cpu_model: "Some CPU @ 2GHz".into(),
        cpus: 8,
        kernel: "6.12".into(),
        virtual_machine: Some(true),
    };
    let time = serde_json::json!({ "median_ns": 61.0, "spread_ns": 1.0, "pairs": 1, "rounds": 5 });
    let wakeup = serde_json::json!({ "waker": time, "latency": time });
    let measured = serde_json::json!({
        "transfer": { "smt": time, "llc": time },
        "wakeup": { "same_cpu": wakeup, "llc": wakeup },
        "interrupted": { "llc": time },
    });
    let measured: Calibration = serde_json::from_value(measured).expect("a calibration");
    let measurement = Measurement::new("2026-11-22T20:00:00Z".into(), machine, measured);
    vec![
        serde_json::to_vec(&measurement).expect("a measurement"),
        "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu hypervisor\n".into(),
        "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n".into(),
        "Amazon EC2\nc7g.metal".into(),
    ]
}
