//! The causes of a CPU's time in softirqs and interrupts.

use std::collections::BTreeMap;
use std::sync::Arc;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::cpu_time::{CpuTimeShares, MeasuredShares};
use netsilo_model::derive::namespaces::names_of;
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::derive::silo::Silo;
use netsilo_model::derive::thread_share::ThreadShare;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words::cpus;
use netsilo_model::snapshot::attribution::Poll;
use netsilo_model::snapshot::host::IrqState;
use netsilo_model::snapshot::net_thread::NetThreadKind;

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::why::explanation::{CpuWhy, Fact, LoadCause, heaviest_first};
use crate::judge::why::{chain, unmapped};

/// Maximum number of interrupts that are listed.
const IRQS_NAMED: usize = 5;

pub(super) fn cpu_why(analysis: &Analysis<'_>, cpu: CpuId) -> CpuWhy {
    let split = CpuTimeShares::from_observation(analysis.observation, &analysis.rates, cpu);
    let topology = &analysis.observation.after.topology;
    CpuWhy {
        cpu,
        core: topology.core_of(cpu),
        node: topology.cpus.get(&cpu).and_then(|it| it.node),
        difference: split.difference(),
        ksoftirqd: ksoftirqd(analysis, cpu),
        split,
    }
}

/// The activity of a CPU's ksoftirqd between the two snapshots; `None` if not known.
pub(crate) fn ksoftirqd(analysis: &Analysis<'_>, cpu: CpuId) -> Option<ThreadShare> {
    let is_its = |it: &&NetThreadWork| it.kind == NetThreadKind::Ksoftirqd && it.cpu == Some(cpu);
    // a program may take the name, but not a process id of the boot
    analysis.net_threads.iter().filter(is_its).min_by_key(|it| it.pid)?.time
}

/// All causes of a CPU's load, sorted by CPU time, largest first.
pub(super) fn causes(analysis: &Analysis<'_>, cpu: CpuId) -> Vec<LoadCause> {
    let split = CpuTimeShares::from_observation(analysis.observation, &analysis.rates, cpu);
    let on_it = |silo: &&Silo| silo.polls.contains_key(&cpu) || silo.uncounted_cpus().contains(cpu);
    let queues = || analysis.silos.queues.iter().filter(on_it);
    let mut causes: Vec<LoadCause> =
        queues().map(|silo| chain::queue(analysis, silo, cpu)).collect();
    let is_of_queue = |pid| queues().any(|it| it.kthread.as_ref().is_some_and(|it| it.pid == pid));
    let threads = analysis.net_threads.iter().filter(|it| it.cpu == Some(cpu));
    causes.extend(threads.filter(|it| !is_of_queue(it.pid)).filter_map(thread));
    let polls = Polls::on(analysis, cpu);
    let net_rx =
        split.measured.map_or_else(|| split.ticks.map(|ticks| ticks.softirq), |it| Some(it.net_rx));
    causes.extend(unmapped::on_cpu(analysis, cpu));
    causes.extend(backlog(analysis, cpu, &polls, net_rx));
    causes.extend(polls.others.iter().map(|poll| other_poll(analysis, poll, &polls, net_rx)));
    causes.extend(split.measured.and_then(|it| net_tx(analysis, cpu, it)));
    causes.extend(split.measured.and_then(|it| other_softirqs(analysis, cpu, it)));
    causes.extend(hardirqs(analysis, cpu, split.measured));
    causes.extend(split.measured.and_then(|it| ipis(analysis, cpu, it)));
    heaviest_first(&mut causes);
    causes
}

/// A kernel thread that receives or sends, but for ksoftirqd, whose softirqs have other causes.
fn thread(thread: &NetThreadWork) -> Option<LoadCause> {
    const LEAST: f64 = 0.005;
    if thread.kind == NetThreadKind::Ksoftirqd || thread.ran().is_some_and(|ran| ran < LEAST) {
        return None;
    }
    let source = "/proc/PID/schedstat";
    let waited = thread.time.map(|time| Measure::Share(time.waited));
    let may_run = thread.cpus.as_ref().map(|it| format!("it may run on {}", cpus(it)));
    let unknown = thread.time.is_none().then(|| Fact::new("its time is not recorded", source));
    let steps = [
        Some(Fact::new(format!("it {}", thread.does()), "/proc/PID/comm")),
        may_run.map(|text| Fact::new(text, "/proc/PID/status")),
        thread.roams.then(|| Fact::new("it ran on several cpus, here last", "/proc/PID/stat")),
        unknown,
        Some(Fact::new(format!("to move it: {}", thread.placed_by()), "/proc/PID/stat")),
    ];
    Some(LoadCause {
        name: format!("kernel thread {} (pid {})", thread.comm, thread.pid),
        share: thread.ran(),
        estimated: false,
        evidence: waited
            .map(|it| Evidence::new("waited for a cpu", it, source))
            .into_iter()
            .collect(),
        steps: steps.into_iter().flatten().collect(),
    })
}

/// Packets polled on a CPU.
struct Polls<'a> {
    /// Packets of all NAPIs.
    packets: u64,
    /// Packets of the backlog.
    backlog: u64,
    /// Polls on this CPU of NAPIs that belong to no rx queue: other namespaces, virtual devices,
    /// and NAPIs without an id (transmit).
    others: Vec<&'a Poll>,
    /// Names of network namespaces.
    names: BTreeMap<u32, String>,
}

impl<'a> Polls<'a> {
    fn on(analysis: &'a Analysis<'_>, cpu: CpuId) -> Self {
        let names = names_of(analysis.observation);
        let mut sums = Self { packets: 0, backlog: 0, others: Vec::new(), names };
        let machine = &analysis.observation.after.machine;
        // Of a NIC, instances without an id are those of transmit completions.
        let is_of = |silo: &Silo, poll: &Poll| {
            let without_id = silo.napi.is_none() && silo.polls.contains_key(&cpu);
            silo.netdev.name == poll.netdev && (poll.napi.0 != 0 || without_id)
        };
        let known = |poll: &Poll| {
            machine.is_own_netns(poll.netns)
                && analysis.silos.queues.iter().any(|silo| is_of(silo, poll))
        };
        for poll in analysis.observation.attribution.polls.iter().filter(|poll| poll.cpu == cpu) {
            sums.packets = sums.packets.saturating_add(poll.packets);
            if poll.netdev.is_empty() {
                sums.backlog = sums.backlog.saturating_add(poll.packets);
            } else if !known(poll) {
                sums.others.push(poll);
            }
        }
        sums
    }

    fn share(&self, packets: u64, net_rx: Option<f64>) -> Option<f64> {
        (self.packets > 0 && packets > 0)
            .then_some(packets as f64 / self.packets as f64)
            .zip(net_rx)
            .map(|(a, b)| a * b)
    }
}

/// The cause of the CPU's backlog: RPS from other CPUs, loopback and veth.
fn backlog(
    analysis: &Analysis<'_>,
    cpu: CpuId,
    polls: &Polls<'_>,
    net_rx: Option<f64>,
) -> Option<LoadCause> {
    let softnet = analysis.rates.cpus.get(&cpu).and_then(|rates| rates.softnet).unwrap_or_default();
    let rps_wakeups = softnet.received_rps_per_s.filter(|rate| *rate > 0.0);
    let aimed = |silo: &&Silo| {
        silo.has_traffic() && silo.rps_cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu))
    };
    let sources: Vec<&Silo> = analysis.silos.queues.iter().filter(aimed).collect();
    if polls.backlog == 0 && rps_wakeups.is_none() {
        return None;
    }
    let seconds = analysis.observation.attribution.elapsed.as_secs_f64();
    let mut evidence = Vec::new();
    if polls.backlog > 0 && seconds > 0.0 {
        let rate = Measure::PerSecond(polls.backlog as f64 / seconds);
        evidence.push(Evidence::new("packets polled from the backlog", rate, "tp_btf/napi_poll"));
    }
    evidence.extend(rps_wakeups.map(|rate| {
        Evidence::new(
            "wakeups from other cpus for RPS",
            Measure::PerSecond(rate),
            "/proc/net/softnet_stat",
        )
    }));
    let dropped = softnet.dropped_per_s.filter(|rate| *rate > 0.0);
    evidence.extend(dropped.map(|rate| {
        Evidence::new(
            "packets dropped at the full backlog",
            Measure::PerSecond(rate),
            "/proc/net/softnet_stat",
        )
    }));
    let mut steps: Vec<Fact> = sources
        .iter()
        .map(|silo| {
            let targets = silo.rps_cpus.as_ref().map(cpus).unwrap_or_default();
            let text = format!(
                "rps_cpus of {} is {targets}: the flow's hash selects one of them",
                silo.label()
            );
            Fact::new(text, format!("queues/rx-{}/rps_cpus", silo.queue.unwrap_or(0)))
        })
        .collect();
    if rps_wakeups.is_none() || sources.is_empty() {
        steps.push(Fact::new(
            "packets sent through loopback or a veth without GRO are received on the sender's cpu, \
             through its backlog",
            "net/core/dev.c:enqueue_to_backlog",
        ));
    }
    let share = polls.share(polls.backlog, net_rx);
    Some(LoadCause {
        name: "backlog (RPS, loopback, veth)".into(),
        share,
        estimated: true,
        evidence,
        steps,
    })
}

/// The cause of a NAPI without a known rx queue: transmit completions, a container's device.
fn other_poll(
    analysis: &Analysis<'_>,
    poll: &Poll,
    polls: &Polls<'_>,
    net_rx: Option<f64>,
) -> LoadCause {
    let seconds = analysis.observation.attribution.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let foreign = !analysis.observation.after.machine.is_own_netns(poll.netns);
    let (what, steps) = match (poll.napi.0, foreign) {
        (0, false) => (format!("{} transmit completions", poll.netdev), transmit(analysis, poll)),
        (_, true) => {
            let text = "it is in another network namespace: run netsilo there to see its queues";
            let named = polls.names.get(&poll.netns).cloned();
            let netns = named.unwrap_or_else(|| poll.netns.to_string());
            (
                format!("{} of network namespace {netns}", poll.netdev),
                vec![Fact::new(text, "tp_btf/napi_poll")],
            )
        }
        _ => {
            let text = "a virtual device is polled on the cpu that sends to it";
            (
                format!("{} napi {}", poll.netdev, poll.napi),
                vec![Fact::new(text, "net/core/dev.c:napi_schedule")],
            )
        }
    };
    let evidence = vec![
        Evidence::new("polls", Measure::PerSecond(poll.polls as f64 / seconds), "tp_btf/napi_poll"),
        Evidence::new(
            "packets polled",
            Measure::PerSecond(poll.packets as f64 / seconds),
            "tp_btf/napi_poll",
        ),
    ];
    LoadCause {
        name: what,
        share: polls.share(poll.packets, net_rx),
        estimated: true,
        evidence,
        steps,
    }
}

/// Explains transmit completions by the completion interrupts that arrive on this CPU.
fn transmit(analysis: &Analysis<'_>, poll: &Poll) -> Vec<Fact> {
    let netdev = analysis.observation.after.netdevs.named(&poll.netdev);
    let mut steps = Vec::new();
    for tx in netdev.into_iter().flat_map(|netdev| &netdev.tx_queues) {
        let Some(irq) = tx.irq.as_ref().map(|edge| edge.to) else { continue };
        let came =
            analysis.rates.irqs.get(&irq).is_some_and(|rates| rates.per_s.contains_key(&poll.cpu));
        if came {
            let text =
                format!("the completion interrupt of tx-{}, irq {irq}, arrives here", tx.index);
            steps.push(Fact::new(text, format!("/proc/irq/{irq}/effective_affinity_list")));
        }
    }
    if steps.is_empty() {
        steps.push(Fact::new(
            "sent packets are freed on the cpu that polls their completion",
            "net/core/dev.c:napi_schedule",
        ));
    }
    steps
}

/// The cause of NET_TX softirqs.
fn net_tx(analysis: &Analysis<'_>, cpu: CpuId, measured: MeasuredShares) -> Option<LoadCause> {
    let rate = analysis.rates.cpus.get(&cpu)?.net_tx_per_s.filter(|rate| *rate > 0.0)?;
    Some(LoadCause {
        name: "NET_TX".into(),
        share: Some(measured.net_tx),
        estimated: false,
        evidence: vec![Evidence::new(
            "NET_TX softirqs",
            Measure::PerSecond(rate),
            "/proc/softirqs",
        )],
        steps: vec![Fact::new(
            "delayed qdiscs send, and sent packets are freed, on the cpu that rescheduled the \
             qdisc or ran the completion",
            "net/core/dev.c:net_tx_action",
        )],
    })
}

/// The cause of softirqs other than NET_RX and NET_TX.
fn other_softirqs(
    analysis: &Analysis<'_>,
    cpu: CpuId,
    measured: MeasuredShares,
) -> Option<LoadCause> {
    let (old, new) =
        (analysis.observation.before.cpus.get(&cpu)?, analysis.observation.after.cpus.get(&cpu)?);
    let seconds = analysis.rates.elapsed.as_secs_f64();
    let rate = |(name, new): (&Arc<str>, u64)| {
        let grown =
            new.checked_sub(old.softirqs.get(name)?).filter(|grown| *grown > 0 && seconds > 0.0)?;
        (!name.starts_with("NET_")).then(|| (name.to_string(), grown as f64 / seconds))
    };
    let mut rates: Vec<(String, f64)> = new.softirqs.iter().filter_map(rate).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    let reason = |name: &str| {
        Some(match name {
            "TIMER" => (
                "TIMER: timer wheel timers that were armed on this cpu",
                "kernel/time/timer.c:run_timer_softirq",
            ),
            "HRTIMER" => (
                "HRTIMER: high-resolution timers armed on this cpu",
                "kernel/time/hrtimer.c:hrtimer_run_softirq",
            ),
            "SCHED" => {
                ("SCHED: load balancing, for this cpu and for idle cpus", "kernel/sched/fair.c")
            }
            "RCU" => {
                ("RCU: callbacks for objects freed on this cpu", "kernel/rcu/tree.c:rcu_core_si")
            }
            "BLOCK" => (
                "BLOCK: disk requests that this cpu issued, or whose interrupt arrived here",
                "block/blk-mq.c",
            ),
            "TASKLET" | "HI" => (
                "TASKLET: drivers' tasklets scheduled on this cpu",
                "kernel/softirq.c:tasklet_action",
            ),
            _ => return None,
        })
    };
    let steps = rates
        .iter()
        .filter_map(|(name, _)| reason(name))
        .map(|(text, source)| Fact::new(text, source));
    let netdevs = analysis.running().filter(|netdev| netdev.driver.as_deref() == Some("ifb"));
    let ifbs: Vec<&str> = netdevs.map(|netdev| netdev.name.as_str()).collect();
    let has_tasklets = !ifbs.is_empty() && rates.iter().any(|(name, _)| name == "TASKLET");
    let redirected = has_tasklets.then(|| {
        let text = format!("TASKLET: {} pass on what this cpu redirected to them", ifbs.join(", "));
        Fact::new(text, "drivers/net/ifb.c:ifb_ri_tasklet")
    });
    (!rates.is_empty() || measured.other_softirq > 0.0).then(|| LoadCause {
        name: "other softirqs".into(),
        share: Some(measured.other_softirq),
        estimated: false,
        evidence: rates
            .iter()
            .map(|(name, rate)| {
                Evidence::new(name.clone(), Measure::PerSecond(*rate), "/proc/softirqs")
            })
            .collect(),
        steps: steps.chain(redirected).collect(),
    })
}

/// The cause of device interrupt handlers that run on this CPU.
fn hardirqs(
    analysis: &Analysis<'_>,
    cpu: CpuId,
    measured: Option<MeasuredShares>,
) -> Option<LoadCause> {
    let rate = |(irq, rates): (&Irq, &netsilo_model::derive::rates::IrqRates)| {
        Some((*irq, *rates.per_s.get(&cpu)?))
    };
    let mut rates: Vec<(Irq, f64)> =
        analysis.rates.irqs.iter().filter_map(rate).filter(|(_, rate)| *rate > 0.0).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    let action = |irq: Irq| {
        analysis.observation.after.irqs.get(&irq).map(IrqState::devices).unwrap_or_default()
    };
    let spread: BTreeMap<bool, usize> =
        rates.iter().fold(BTreeMap::new(), |mut spread, (irq, _)| {
            let state = analysis.observation.after.irqs.get(irq);
            let wide =
                state.and_then(|state| state.requested.as_ref()).is_some_and(|cpus| cpus.len() > 1);
            *spread.entry(wide).or_default() += 1;
            spread
        });
    let mut steps = Vec::new();
    if let Some(wide) = spread.get(&true) {
        let text = format!(
            "{wide} of these interrupts are requested on several cpus; the interrupt controller \
             chose this one"
        );
        steps.push(Fact::new(text, "/proc/irq/*/effective_affinity_list"));
    }
    if let Some(one) = spread.get(&false) {
        steps.push(Fact::new(
            format!("{one} of these interrupts are requested on one cpu"),
            "/proc/irq/*/smp_affinity_list",
        ));
    }
    (!rates.is_empty()).then(|| LoadCause {
        name: "handlers of device interrupts".into(),
        share: measured.map(|it| it.hardirq),
        estimated: false,
        evidence: rates
            .iter()
            .take(IRQS_NAMED)
            .map(|(irq, rate)| {
                Evidence::new(
                    format!("irq {irq} ({})", action(*irq)),
                    Measure::PerSecond(*rate),
                    "/proc/interrupts",
                )
            })
            .collect(),
        steps,
    })
}

/// The cause of call-function inter-processor interrupts.
fn ipis(analysis: &Analysis<'_>, cpu: CpuId, measured: MeasuredShares) -> Option<LoadCause> {
    let seconds = analysis.observation.attribution.elapsed.as_secs_f64();
    let count = analysis.observation.attribution.cpu_time.get(&cpu)?.ipis;
    let rates = analysis.rates.cpus.get(&cpu).cloned().unwrap_or_default();
    let rps = rates.softnet.and_then(|softnet| softnet.received_rps_per_s).unwrap_or(0.0);
    let mut evidence = vec![Evidence::new(
        "call-function IPIs",
        Measure::PerSecond(count as f64 / seconds),
        "irq_vectors, ipi tracepoints",
    )];
    evidence.push(Evidence::new(
        "of these for RPS",
        Measure::PerSecond(rps),
        "/proc/net/softnet_stat",
    ));
    evidence.extend(
        rates
            .cal_per_s
            .map(|rate| Evidence::new("CAL", Measure::PerSecond(rate), "/proc/interrupts")),
    );
    let mut steps = Vec::new();
    if rps > 0.0 {
        steps.push(Fact::new(
            "another cpu queued packets on this cpu's backlog (RPS)",
            "net/core/dev.c:net_rps_send_ipi",
        ));
    }
    steps.push(Fact::new(
        "another cpu woke a thread on this cpu, or unmapped memory",
        "kernel/smp.c:smp_call_function_many_cond",
    ));
    (count > 0 && seconds > 0.0).then(|| LoadCause {
        name: "call-function IPIs".into(),
        share: Some(measured.ipi),
        estimated: false,
        evidence,
        steps,
    })
}
