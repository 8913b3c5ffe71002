//! Goals, plans and changes as JSON: they round-trip, and reversing twice gives the same change.

use netsilo_decide::plan::{AlgorithmName, Goal, Plan, Refusal, RefusalCause, Unchanged, Xps};
use netsilo_model::change::{Change, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::json;
use crate::properties::comes_back;
use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, mutate: json::mutate, inputs: 10_000, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    serde_json::from_str::<Goal>(text).iter().for_each(comes_back);
    let Ok(plan) = serde_json::from_str::<Plan>(text) else { return };
    comes_back(&plan);
    for change in &plan.changes {
        let twice = change.inverse().inverse().because(change.reason.clone());
        assert_eq!(&twice, change);
        assert!(!change.target.to_string().is_empty() && !change.new.to_string().is_empty());
    }
}

fn seeds() -> Vec<Vec<u8>> {
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
    let json = |value: Result<Vec<u8>, serde_json::Error>| value.expect("plain values");
    vec![
        json(serde_json::to_vec(&goal)),
        json(serde_json::to_vec(&Goal::default())),
        json(serde_json::to_vec(&plan)),
    ]
}
