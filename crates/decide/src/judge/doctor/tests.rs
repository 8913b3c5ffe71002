use netsilo_model::snapshot::host::{Gap, KnobOwner};

use super::*;

/// Root on a kernel that has everything.
fn good() -> Prerequisites {
    Prerequisites {
        release: Some("6.12.1".into()),
        euid: Some(0),
        capabilities: Some(u64::MAX),
        lockdown: Some("none".into()),
        ..Prerequisites::default()
    }
}

fn hook(quantity: &str, hook: &str, refused: Option<&str>) -> Hook {
    Hook { quantity: quantity.into(), hook: hook.into(), refused: refused.map(str::to_owned) }
}

fn judge(
    prerequisites: &Prerequisites,
    snapshot: &Snapshot,
    hooks: &[Hook],
    daemon: DaemonFacts,
) -> Diagnosis {
    diagnose(&Machine { prerequisites, snapshot, hooks, daemon })
}

/// Severity of each area, in order.
fn severities(diagnosis: &Diagnosis) -> Vec<Severity> {
    diagnosis.areas.iter().map(|area| area.severity).collect()
}

#[test]
fn a_machine_that_has_all_has_no_problem() {
    let hooks = [hook("napi polls", "tp_btf/napi_poll", None)];
    let diagnosis = judge(&good(), &Snapshot::default(), &hooks, DaemonFacts::default());
    assert_eq!(severities(&diagnosis), [Severity::Ok; 7], "{diagnosis:#?}");
    assert_eq!(diagnosis.severity(), Severity::Ok);
}

#[test]
fn each_lack_names_what_is_degraded_and_how_to_mend_it() {
    let prerequisites = Prerequisites {
        euid: Some(1000),
        capabilities: Some(0),
        missing: vec![
            KernelFeature::Btf,
            KernelFeature::CountsByInterrupt,
            KernelFeature::EffectiveAffinity,
            KernelFeature::Rps,
            KernelFeature::Rfs,
            KernelFeature::Xps,
            KernelFeature::ThreadedNapi,
            KernelFeature::RpsDefaultMask,
        ],
        lockdown: Some("confidentiality".into()),
        read_only: vec!["/sys".into()],
        ..good()
    };
    let owner =
        |name: &str, knob| KnobOwner { name: name.into(), pid: 7, writes: vec![knob], bans: None };
    let snapshot = Snapshot {
        knob_owners: vec![
            owner("irqbalance", OwnedKnob::IrqAffinity),
            owner("bpftune", OwnedKnob::Sysctls),
        ],
        gaps: vec![Gap { what: "netdev netlink".into(), why: "ENOENT".into() }; 5],
        ..Snapshot::default()
    };
    let daemon = DaemonFacts {
        running: Some("pid 812: observe only".into()),
        hindered: Some("no right to write".into()),
        bad_configuration: Some("netsilo.toml:3: unknown key".into()),
        open_transactions: 2,
        unfinished_transactions: 1,
        bad_journal: None,
    };
    let hooks = [hook("napi polls", "tp_btf/napi_poll", Some("no privilege"))];
    let diagnosis = judge(&prerequisites, &snapshot, &hooks, daemon);
    let (info, warning, critical) = (Severity::Info, Severity::Warning, Severity::Critical);
    let expected = [warning, warning, warning, info, warning, critical, warning];
    assert_eq!(severities(&diagnosis), expected, "{diagnosis:#?}");
    let counts: Vec<usize> = diagnosis.areas.iter().map(|area| area.problems.len()).collect();
    assert_eq!(counts, [10, 2, 1, 3, 2, 2, 1], "{diagnosis:#?}");
    let programs = &diagnosis.areas[4].problems;
    let of_program = |it: &Problem| (it.severity, it.what.split(' ').next().unwrap().to_owned());
    let programs: Vec<_> = programs.iter().map(of_program).collect();
    assert_eq!(programs, [(warning, "irqbalance".to_owned()), (info, "bpftune".to_owned())]);
    for problem in diagnosis.areas.iter().flat_map(|area| &area.problems) {
        assert!(!problem.degraded.is_empty() && !problem.fix.is_empty(), "{problem:?}");
    }
    let sorted = |area: &Area| area.problems.is_sorted_by(|a, b| a.severity >= b.severity);
    assert!(diagnosis.areas.iter().all(sorted), "{diagnosis:#?}");
}

#[test]
fn hooks_are_grouped_by_reason_and_a_second_way_to_count_udp_is_no_problem() {
    let hooks = [
        hook("udp bytes", "fentry/skb_consume_udp", Some("no fentry")),
        hook("udp bytes", "kprobe/skb_consume_udp", None),
        hook("hardirq time", "tp_btf/irq_handler_entry", Some("verifier")),
        hook("hardirq time", "tp_btf/irq_handler_exit", Some("verifier")),
        hook("ipi time", "tp_btf/ipi_entry", Some("verifier")),
    ];
    let diagnosis = judge(&good(), &Snapshot::default(), &hooks, DaemonFacts::default());
    let area = &diagnosis.areas[2];
    assert_eq!(area.found, "1 of 5 attached");
    let problems: Vec<_> = area.problems.iter().map(|it| (&*it.what, &*it.degraded)).collect();
    assert_eq!(problems, [("verifier", "not counted: hardirq time, ipi time")]);
}

#[test]
fn wakeups_are_counted_where_only_the_idle_cpus_are_not_known() {
    let hooks = [
        hook("wakeups", "tp_btf/sched_waking", Some("no symbol")),
        hook("wakeups", "tp_btf/sched_waking", None),
    ];
    let diagnosis = judge(&good(), &Snapshot::default(), &hooks, DaemonFacts::default());
    let problems: Vec<_> = diagnosis.areas[2].problems.iter().map(|it| &*it.degraded).collect();
    assert_eq!(problems, ["wakeups are counted, but not how many find their cpu idle"]);
}

#[test]
fn udp_bytes_are_approximate_only_if_no_program_sees_each_datagram() {
    let degraded = |arrives: Option<&str>| {
        let hooks = [
            hook("udp bytes", "cgroup_skb/ingress", arrives),
            hook("udp bytes", "tp_btf/sock_recv_length", None),
        ];
        let diagnosis = judge(&good(), &Snapshot::default(), &hooks, DaemonFacts::default());
        diagnosis.areas[2].problems.len()
    };
    assert_eq!((degraded(None), degraded(Some("cgroup v2 is not mounted"))), (0, 1));
}

#[test]
fn a_journal_that_cannot_be_read_is_critical() {
    let daemon = DaemonFacts { bad_journal: Some("line 3".into()), ..DaemonFacts::default() };
    let diagnosis = judge(&good(), &Snapshot::default(), &[], daemon);
    assert_eq!(diagnosis.severity(), Severity::Critical);
}
