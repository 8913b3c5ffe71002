//! Goals, plans and changes as JSON: they round-trip, and reversing twice gives the same change.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use netsilo_decide::plan::{AlgorithmName, Goal, Plan, Refusal, RefusalCause, Unchanged, Xps};
use netsilo_model::change::{Change, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(init: netsilo_fuzz::write_seeds_if_requested(seeds), |text: &str| {
    comes_back::<Goal>(text);
    let Some(plan) = comes_back::<Plan>(text) else { return };
    for change in &plan.changes {
        let twice = change.inverse().inverse().because(change.reason.clone());
        assert_eq!(&twice, change);
        assert!(!change.target.to_string().is_empty() && !change.new.to_string().is_empty());
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    netsilo_fuzz::json::mutate(data, size, max_size, seed)
});

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    text: &str,
) -> Option<T> {
    let value: T = serde_json::from_str(text).ok()?;
    let printed = serde_json::to_string(&value).expect("it was read from JSON");
    assert_eq!(serde_json::from_str::<T>(&printed).ok().as_ref(), Some(&value));
    Some(value)
}

fn seeds() -> Vec<String> {
    let cpus = |list: &str| CpuSet::parse_list(list).expect("a list");
    let goal = Goal {
        netdevs: vec!["eth0".into()],
        cpus: Some(cpus("0-3")),
        algorithm: AlgorithmName::Spread,
        rps: Some(cpus("")),
        rfs: Some(32768),
        xps: Some(Xps::Near),
        default_smp_affinity: Some(CpuSet::from_cpu(CpuId(1))),
        rps_default_mask: Some(cpus("2")),
        ..Goal::default()
    };
    let netdev = NetdevIdentity { name: "eth0".into(), device_path: None, ifindex: None };
    let irq = knobs::IrqAffinity {
        irq: Irq(27),
        action: "eth0-TxRx-0".into(),
        netdev: Some(netdev.clone()),
    };
    let rfs = knobs::RpsFlowCnt { netdev: netdev.clone(), queue: 0 };
    let thread = knobs::NapiThread { pid: 812, comm: "napi/eth0-8193".into(), start_time: 4000 };
    let changes = vec![
        Change::new(irq, cpus("0"), cpus("4"), "near"),
        Change::new(rfs, 0, 4, "near"),
        Change::new(knobs::XpsCpus { netdev, queue: 0 }, cpus("0"), cpus(""), "near"),
        Change::new(thread, cpus("0"), cpus("1"), "near"),
    ];
    let plan = Plan {
        changes,
        unchanged: vec![Unchanged { subject: "eth0 rx-1".into(), reason: "it is there".into() }],
        even_if_owned: true,
        refusals: vec![Refusal {
            subject: "irq 28".into(),
            cause: RefusalCause::ManagedIrq,
            reason: "managed".into(),
        }],
        ..Plan::default()
    };
    let json = |value: Result<String, serde_json::Error>| value.expect("plain values");
    vec![
        json(serde_json::to_string(&goal)),
        json(serde_json::to_string(&Goal::default())),
        json(serde_json::to_string(&plan)),
    ]
}
