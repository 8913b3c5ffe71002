//! The steps from an rx queue to the CPU that processes it: interrupt, NAPI, softirq or kthread,
//! RPS, readers.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::{PollRate, Silo, heaviest};
use netsilo_model::derive::unmapped::UnmappedWork;
use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words::cpus;
use netsilo_model::snapshot::host::{IrqState, Writable};
use netsilo_model::snapshot::netdev::{Association, AssociationSource, Confidence, Netdev};

use crate::judge::evidence::{Evidence, Measure};
use crate::judge::moderation::Moderation;
use crate::judge::why::explanation::{Fact, LoadCause};

/// The work of a queue on one CPU, as a cause.
pub(super) fn queue(analysis: &Analysis<'_>, silo: &Silo, cpu: CpuId) -> LoadCause {
    LoadCause {
        name: silo.label(),
        share: silo.own_share.get(&cpu).copied(),
        estimated: true,
        evidence: evidence(analysis, silo, Some(cpu)),
        steps: chain(analysis, silo, Some(cpu)),
    }
}

/// The work of a queue on the CPU that polls it most, as a cause. If none polls it, the CPU with
/// most of its interrupts.
pub(super) fn queue_anywhere(analysis: &Analysis<'_>, silo: &Silo) -> LoadCause {
    let most = |rate: fn(&PollRate) -> f64| {
        heaviest(silo.polls.iter().map(|(cpu, polls)| (*cpu, rate(polls))))
    };
    // a program that busy-polls finds nothing most of the time
    let polled = most(|it| it.packets_per_s).or_else(|| most(|it| it.polls_per_s));
    let interrupts = || silo.interrupts_per_s.iter().flatten().map(|(cpu, rate)| (*cpu, *rate));
    let uncounted =
        || if silo.only_wakes { silo.uncounted_cpus().lowest() } else { heaviest(interrupts()) };
    let cpu = polled.or_else(uncounted);
    let place = match cpu {
        Some(cpu) => format!("on cpu {cpu}"),
        None => without_cpu(analysis, silo).to_owned(),
    };
    LoadCause {
        name: format!("{} {place}", silo.label()),
        share: cpu.and_then(|cpu| silo.own_share.get(&cpu).copied()),
        estimated: true,
        evidence: evidence(analysis, silo, cpu),
        steps: chain(analysis, silo, cpu),
    }
}

/// CPUs where a program polls a queue, and not a softirq.
fn busy_polled(silo: &Silo) -> Option<Fact> {
    const FOUND_PER_POLL: f64 = 0.1;
    const OFTEN_PER_S: f64 = 1000.0;
    let read_on = silo.read_on();
    let in_vain = |(cpu, rate): &(&CpuId, &PollRate)| {
        rate.polls_per_s >= OFTEN_PER_S
            && rate.packets_per_s < FOUND_PER_POLL * rate.polls_per_s
            && read_on.contains_key(cpu)
    };
    let sum = |polls: &mut dyn Iterator<Item = (&CpuId, &PollRate)>| {
        polls.fold((CpuSet::new(), 0.0), |(mut on, sum), (cpu, rate)| {
            on.insert(*cpu);
            (on, sum + rate.polls_per_s)
        })
    };
    let polls = || silo.polls.iter().filter(|_| silo.kthread.is_none());
    if !silo.busy_polled.is_empty() {
        let (on, rate) = sum(&mut polls().filter(|(cpu, _)| silo.busy_polled.contains(**cpu)));
        let text = format!(
            "polled {rate:.0} times/s on {}, and hardly any of that in a softirq: a program \
             busy-polls it (AF_XDP, SO_BUSY_POLL or epoll), in its own time",
            cpus(&on)
        );
        return Some(Fact::new(text, "tp_btf/napi_poll, irq:softirq_entry/exit"));
    }
    let (on, rate) = sum(&mut polls().filter(in_vain));
    (!on.is_empty()).then(|| {
        let text = format!(
            "polled {rate:.0} times/s on {} with few packets: a reader there may busy-poll",
            cpus(&on)
        );
        Fact::new(text, "tp_btf/napi_poll")
    })
}

/// What is known of a queue that no CPU was seen to poll.
fn without_cpu(analysis: &Analysis<'_>, silo: &Silo) -> &'static str {
    let netdev = analysis.rates.netdevs.get(&silo.netdev.name);
    let received = netdev.and_then(|counters| counters.get("rx_packets")).copied();
    let is_polled = |silo: &Silo| silo.received_per_s() > Some(0.0);
    let is_missed = || !analysis.silos_of(&silo.netdev.name).any(is_polled);
    match (silo.received_per_s(), received) {
        (Some(0.0), Some(some)) if some > 0.0 && is_missed() => "whose few packets no poll took",
        (Some(0.0), _) | (None, Some(0.0)) => "idle",
        (None, None) => "whose packets were not counted",
        _ => "polled on a cpu that is not known",
    }
}

/// The cause of an interrupt without a known rx queue; `None` if the interrupt does not exist.
pub(super) fn interrupt(analysis: &Analysis<'_>, irq: Irq) -> Option<LoadCause> {
    let state = analysis.observation.after.irqs.get(&irq)?;
    let per_s = analysis.rates.irqs.get(&irq).map(|rates| &rates.per_s);
    let cpu = per_s.and_then(|per_s| heaviest(per_s.iter().map(|(cpu, rate)| (*cpu, *rate))));
    let rows = per_s.into_iter().flatten();
    Some(LoadCause {
        name: format!("irq {irq} ({})", state.devices()),
        share: None,
        estimated: false,
        evidence: rows
            .map(|(cpu, rate)| {
                Evidence::new(
                    format!("interrupts on cpu {cpu}"),
                    Measure::PerSecond(*rate),
                    "/proc/interrupts",
                )
            })
            .collect(),
        steps: placed(analysis, irq, state, cpu),
    })
}

fn evidence(analysis: &Analysis<'_>, silo: &Silo, cpu: Option<CpuId>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    if let Some(rate) = silo.counted_per_s {
        let source = "ethtool -S, or statistics/rx_packets of a netdev with one rx queue";
        evidence.push(Evidence::new("packets received", Measure::PerSecond(rate), source));
    }
    if silo.not_counted.is_some() {
        let netdev = analysis.rates.netdevs.get(&silo.netdev.name);
        let rate = netdev.and_then(|counters| counters.get("rx_packets"));
        let name = format!("packets that all queues of {} received", silo.netdev.name);
        let source = "/sys/class/net/*/statistics/rx_packets";
        evidence.extend(rate.map(|rate| Evidence::new(name, Measure::PerSecond(*rate), source)));
    }
    if let Some(rate) = cpu.and_then(|cpu| silo.polls.get(&cpu)) {
        evidence.push(Evidence::new(
            "packets polled",
            Measure::PerSecond(rate.packets_per_s),
            "tp_btf/napi_poll",
        ));
        evidence.push(Evidence::new(
            "polls",
            Measure::PerSecond(rate.polls_per_s),
            "tp_btf/napi_poll",
        ));
    }
    if let Some(rate) = cpu.and_then(|cpu| silo.interrupts_per_s.as_ref()?.get(&cpu)) {
        evidence.push(Evidence::new("interrupts", Measure::PerSecond(*rate), "/proc/interrupts"));
    }
    let elsewhere =
        silo.polls.iter().filter(|(other, rate)| Some(**other) != cpu && rate.packets_per_s > 0.0);
    let elsewhere: CpuSet = elsewhere.map(|(cpu, _)| *cpu).collect();
    if !elsewhere.is_empty() {
        let text = Measure::Text(format!("cpus {elsewhere}"));
        evidence.push(Evidence::new("also polled on", text, "tp_btf/napi_poll"));
    }
    if analysis.observation.attribution.lost_events > 0 {
        let lost = Measure::Count(analysis.observation.attribution.lost_events);
        evidence.push(Evidence::new("events not counted", lost, "eBPF"));
    }
    evidence
}

fn chain(analysis: &Analysis<'_>, silo: &Silo, cpu: Option<CpuId>) -> Vec<Fact> {
    let mut because = Vec::new();
    match silo
        .irq
        .as_ref()
        .and_then(|edge| Some((edge, analysis.observation.after.irqs.get(&edge.to)?)))
    {
        Some((edge, state)) => {
            because.extend(placed(analysis, edge.to, state, cpu));
            because.extend(known_by(edge));
            because.extend(moderated(analysis, silo));
        }
        None => because.push(no_interrupt(analysis, silo)),
    }
    if let Some(why) = &silo.not_counted {
        let text = format!("its own packets are not known: {why}");
        because.push(Fact::new(text, "napi:napi_poll, ethtool -S"));
    }
    let netdev = analysis.after().netdevs.identified(&silo.netdev);
    let work = netdev.filter(|_| cpu.is_none()).and_then(|it| UnmappedWork::of(analysis, it));
    if let Some(Err(why)) = work {
        let text = format!("which cpus poll {} is not known: {why}", silo.netdev.name);
        because.push(Fact::new(text, "/proc/softirqs"));
    }
    let busy = busy_polled(silo);
    let is_in_softirq = cpu.is_none_or(|cpu| !silo.busy_polled.contains(cpu));
    let is_software = netdev.is_some_and(|it| SoftwareNetdev::from_netdev(it).is_some());
    because.extend(is_in_softirq.then(|| polled(silo, cpu, is_software)));
    because.extend(not_interrupted_here(analysis, silo, cpu).filter(|_| busy.is_none()));
    because.extend(busy);
    because.extend(steered(analysis, silo));
    because.extend(netdev.and_then(|netdev| handed_up(analysis, netdev)));
    because.extend(leaves(silo, cpu));
    because.extend(read(silo));
    because
}

/// How it is known that an interrupt is the queue's, unless the kernel reports it.
fn known_by(edge: &Association<Irq>) -> Option<Fact> {
    let words = edge.source.in_words();
    let irq = edge.to;
    let source = match edge.source {
        AssociationSource::NetdevGenl => return None,
        AssociationSource::Observed => "irq:irq_handler_entry/exit",
        _ => "/proc/interrupts",
    };
    let text = match edge.confidence {
        Confidence::Guess => {
            format!("irq {irq} may be its interrupt: {words}; a guess: plan does not use it")
        }
        _ => format!("irq {irq} is known as its interrupt: {words}"),
    };
    Some(Fact::new(text, source))
}

/// How long the device waits before it interrupts, and how many packets an interrupt announced.
fn moderated(analysis: &Analysis<'_>, silo: &Silo) -> Option<Fact> {
    let netdev = analysis.after().netdevs.identified(&silo.netdev)?;
    let moderation = Moderation::of(netdev)?;
    let interrupts: f64 = silo.interrupts_per_s.iter().flatten().map(|(_, rate)| rate).sum();
    let packets = silo.received_per_s().filter(|packets| *packets > 0.0 && interrupts > 0.0);
    let each = packets.map_or_else(String::new, |packets| {
        format!("; {:.1} packets came per interrupt", packets / interrupts)
    });
    Some(Fact::new(format!("{}{each}", moderation.in_words()), moderation.source()))
}

/// Explains why an interrupt arrives on its CPU.
fn placed(analysis: &Analysis<'_>, irq: Irq, state: &IrqState, cpu: Option<CpuId>) -> Vec<Fact> {
    let file = |name: &str| format!("/proc/irq/{irq}/{name}");
    let mut because = Vec::new();
    let name = format!("its interrupt, irq {irq} ({}),", state.devices());
    let Some(requested) = &state.requested else {
        return vec![Fact::new(
            format!("{name} has no readable affinity"),
            file("smp_affinity_list"),
        )];
    };
    because.push(Fact::new(
        format!(
            "{name} is requested on {}: {}",
            cpus(requested),
            origin_of_affinity(analysis, state, requested)
        ),
        file("smp_affinity_list"),
    ));
    let rates = analysis.rates.irqs.get(&irq);
    if rates.is_some_and(|rates| rates.ignores_affinity) {
        let arrived: CpuSet = rates.iter().flat_map(|it| it.per_s.keys().copied()).collect();
        let text = format!(
            "it arrived only on {}: its interrupt controller accepts the affinity and ignores it",
            cpus(&arrived)
        );
        because.push(Fact::new(text, "/proc/interrupts"));
        return because;
    }
    let in_effect = file("effective_affinity_list");
    let Some(effective) = &state.effective else {
        let arrived = rates.and_then(|rates| rates.mostly_on()).map(|cpu| {
            let text = format!("the kernel shows no effective affinity; it arrived on cpu {cpu}");
            Fact::new(text, "/proc/interrupts")
        });
        because.extend(arrived.filter(|_| requested.len() > 1));
        return because;
    };
    let before = analysis.observation.before.irqs.get(&irq);
    let was_moved = before.is_some_and(|before| before.requested != state.requested);
    let came = |cpu: &CpuId| rates.and_then(|rates| rates.per_s.get(cpu));
    if !effective.is_empty() && !effective.intersects(requested) {
        because.push(Fact::new(
            format!(
                "its effective affinity is still {}: it moves when the next interrupt arrives",
                cpus(effective)
            ),
            in_effect,
        ));
    } else if requested.len() > 1 && effective.len() == 1 {
        because.push(Fact::new(
            format!("the interrupt controller delivers it to one of these: {}", cpus(effective)),
            in_effect,
        ));
    } else if let Some((cpu, rate)) =
        cpu.filter(|cpu| !effective.contains(*cpu)).and_then(|cpu| Some((cpu, came(&cpu)?)))
    {
        let moved = if was_moved { ": it was moved meanwhile" } else { "" };
        let effective = cpus(effective);
        let text = format!(
            "{rate:.1} of it per second arrived on cpu {cpu}, but its effective affinity is \
             {effective}{moved}"
        );
        because.push(Fact::new(text, format!("/proc/interrupts, {in_effect}")));
    }
    because
}

/// Where an interrupt's requested affinity comes from, in words.
fn origin_of_affinity(
    analysis: &Analysis<'_>,
    state: &IrqState,
    requested: &CpuSet,
) -> &'static str {
    if state.writable == Writable::Managed {
        return "the kernel placed it when the driver requested it, and rejects changes";
    }
    if state.hint.as_ref() == Some(requested) {
        return "this is the driver's affinity hint";
    }
    if analysis.observation.after.default_smp_affinity.as_ref() == Some(requested) {
        return "this is default_smp_affinity: nobody has changed it";
    }
    "somebody wrote this value"
}

fn no_interrupt(analysis: &Analysis<'_>, silo: &Silo) -> Fact {
    let netdev = analysis.after().netdevs.identified(&silo.netdev);
    let software = netdev.and_then(SoftwareNetdev::from_netdev).map(|kind| {
        let by = kind.polled_without_id().unwrap_or("whoever sends to it lets it be polled");
        Fact::new(format!("it has no interrupt: {by}"), kind.function)
    });
    let channel =
        netdev.into_iter().flat_map(|dev| &dev.rx_queues).filter(|rx| Some(rx.index) == silo.queue);
    match channel.filter_map(|rx| rx.vmbus_cpu).next() {
        Some(cpu) => Fact::new(
            format!("it has no separate interrupt: its VMBus channel is bound to cpu {cpu}"),
            "/sys/bus/vmbus/devices/*/channels",
        ),
        None => software.unwrap_or_else(|| {
            Fact::new("its interrupt is not known", "netdev netlink, /proc/interrupts")
        }),
    }
}

/// Explains what polls the queue, and why on this CPU.
fn polled(silo: &Silo, cpu: Option<CpuId>, is_software: bool) -> Fact {
    let adds = if is_software {
        "that cpu adds the NAPI to its own poll list"
    } else {
        "the cpu that takes the interrupt adds the NAPI to its own poll list"
    };
    match &silo.kthread {
        Some(thread) => Fact::new(
            format!(
                "threaded NAPI: its kthread {} (pid {}) polls on the cpu that the scheduler \
                 chooses; it may run on {}{}",
                thread.comm,
                thread.pid,
                cpus(&thread.cpus),
                silo.kthread_time.map_or_else(String::new, |time| format!(
                    "; it ran {:.1}% of the time and waited {:.1}% of it for a cpu",
                    time.ran * 100.0,
                    time.waited * 100.0
                ))
            ),
            format!("/proc/{0}/status, /proc/{0}/schedstat", thread.pid),
        ),
        None if silo.only_wakes => Fact::new(
            "its interrupts arrive and raise no NET_RX softirqs: they only wake kthreads of a \
             netdev that is not listed here",
            "/proc/interrupts, /proc/softirqs",
        ),
        None => Fact::new(
            match cpu {
                Some(cpu) => format!("{adds}: NET_RX runs on cpu {cpu}"),
                None => adds.to_owned(),
            },
            "net/core/dev.c:____napi_schedule",
        ),
    }
}

/// Explains why a queue is polled on this CPU although no interrupt arrived here.
fn not_interrupted_here(analysis: &Analysis<'_>, silo: &Silo, cpu: Option<CpuId>) -> Option<Fact> {
    let cpu = cpu.filter(|cpu| {
        silo.kthread.is_none() && silo.polls.get(cpu).is_some_and(|rate| rate.polls_per_s > 0.0)
    })?;
    let by_cpu = silo.interrupts_per_s.as_ref()?;
    if by_cpu.get(&cpu).is_some_and(|rate| *rate > 0.0) {
        return None;
    }
    let sysctls = &analysis.observation.after.net.sysctls;
    let busy_poll = ["net.core.busy_poll", "net.core.busy_read"].into_iter();
    let busy_polls =
        busy_poll.filter_map(|name| sysctls.get(name)).any(|value| value.trim() != "0");
    let reads_here = silo.consumers.iter().any(|consumer| consumer.cpus.contains_key(&cpu));
    let text = match (busy_polls, reads_here) {
        (true, true) => {
            "no interrupt arrived here, but busy polling is on and a reader runs here: the reader \
             polls"
        }
        (_, true) => {
            "no interrupt arrived here, but a reader runs here: its socket may busy-poll \
             (SO_BUSY_POLL), or the NAPI always found packets and kept its interrupt off"
        }
        _ => {
            "no interrupt arrived here: the NAPI always found packets, and stays on this cpu's \
             poll list with its interrupt off"
        }
    };
    Some(Fact::new(text, "/proc/interrupts, tp_btf/napi_poll"))
}

/// Explains where RPS and RFS move the protocol work.
fn steered(analysis: &Analysis<'_>, silo: &Silo) -> Vec<Fact> {
    let mut because = Vec::new();
    let rps = silo.rps_cpus.as_ref().filter(|cpus| !cpus.is_empty());
    if let Some(targets) = rps {
        because.push(Fact::new(
            format!(
                "RPS steers its packets to {} by their hash: driver and GRO run here, IP and above \
                 run there",
                cpus(targets)
            ),
            "rps_cpus",
        ));
    }
    let entries = analysis.observation.after.net.rps_sock_flow_entries.unwrap_or(0);
    if silo.rps_flow_cnt.is_some_and(|count| count > 0) && entries > 0 {
        because
            .push(Fact::new("RFS steers each flow to the cpu that read it last", "rps_flow_cnt"));
    }
    because
}

/// Explains that a bridge, bond or team takes the packets that a netdev receives.
pub(super) fn handed_up(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Fact> {
    let master = netdev.master.as_ref()?;
    let master = analysis.after().netdevs.named(master)?;
    let kind = SoftwareNetdev::from_netdev(master)?;
    let (name, verb) = match kind.receive {
        SoftwareReceive::Reentry => (&master.name, "bridges"),
        SoftwareReceive::SamePass => (&master.name, "takes"),
        _ => return None,
    };
    Some(Fact::new(
        format!("{name} {verb} its packets on the same cpu, in the same pass"),
        kind.function,
    ))
}

/// Explains where packets polled on this CPU are forwarded to.
fn leaves(silo: &Silo, cpu: Option<CpuId>) -> Option<Fact> {
    let here = silo.forwards.iter().filter(|to| cpu.is_none_or(|cpu| to.cpu == cpu));
    let to: Vec<String> =
        here.take(3).map(|to| format!("{:.0}% by {}", to.share * 100.0, to.label())).collect();
    (!to.is_empty()).then(|| {
        let text = format!(
            "it forwards: {}; bridging or routing, netfilter and sending run in the same softirq",
            to.join(", ")
        );
        Fact::new(text, "net:netif_receive_skb, net:net_dev_queue")
    })
}

/// Lists the main readers of a queue and their CPUs.
fn read(silo: &Silo) -> Option<Fact> {
    let reader = |consumer: &netsilo_model::derive::silo::ConsumerShare| {
        let cpus: CpuSet = consumer.cpus.keys().copied().collect();
        format!(
            "{} on {} ({:.0}%)",
            consumer.comm,
            netsilo_model::machine::words::cpus(&cpus),
            consumer.share * 100.0
        )
    };
    let mut readers: Vec<String> = silo.consumers.iter().take(3).map(reader).collect();
    if silo.unknown_share > 0.0 {
        readers.push(format!("a reader that is not known ({:.0}%)", silo.unknown_share * 100.0));
    }
    (!readers.is_empty())
        .then(|| Fact::new(format!("read by {}", readers.join(", ")), "eBPF, sock_diag"))
}
