//! The result of `netsilo-bench run` as text.

use std::fmt::Write as _;
use std::net::SocketAddr;

use comfy_table::{CellAlignment, Table, presets};
use netsilo::tell::words::plural;
use netsilo::views::table::{MEASURED, TICKS};
use netsilo::views::units::{bytes_per_s, count, or_dash, percent};
use netsilo_model::derive::rates::CpuRates;
use netsilo_trial::traffic::{EndMachine, Figures, Latency, LoadResult};

/// The rate of all runs of a trial together, in its unit: transactions, packets or bytes per
/// second.
pub(crate) fn rate(figures: &[Figures]) -> String {
    let sum = |of: fn(&Figures) -> Option<f64>| figures.iter().map(of).sum::<Option<f64>>();
    if let Some(rate) = sum(|it| it.transactions_per_s) {
        format!("{} transactions/s", count(rate))
    } else if let Some(rate) = sum(|it| it.datagrams_per_s) {
        format!("{} packets/s", count(rate))
    } else {
        bytes_per_s(figures.iter().map(|it| it.bytes_per_s).sum())
    }
}

/// Renders the load, its rate, and the activity of both machines.
pub(crate) fn render(run: &LoadResult) -> String {
    let mut text = head(run);
    let figures = run.figures();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<13} {value}");
    };
    if let Some(rate) = figures.transactions_per_s {
        line("transactions", format!("{}/s", count(rate)));
    } else {
        line("received", bytes_per_s(figures.bytes_per_s));
    }
    if let Some(rate) = figures.datagrams_per_s {
        line("datagrams", format!("{}/s", count(rate)));
    }
    if let Some(lost) = figures.lost {
        let totals = &run.totals;
        let more = match (totals.resent, totals.late) {
            (0, 0) => String::new(),
            (resent, late) => format!(", {resent} sent again, {late} late"),
        };
        line("lost", format!("{}{more}", percent(lost)));
    }
    if let Some(words) = zero_copy(run) {
        line("zero copy", words);
    }
    if let Some((client, server)) = figures.cpu_ns_per_transaction {
        line(
            "cpu time",
            both(run, |ns| format!("{:.1} us", ns / 1e3), "transaction", client, server),
        );
    }
    if let Some((client, server)) = figures.cpu_s_per_gigabyte {
        line("cpu time", both(run, |s| format!("{s:.2} s"), "gigabyte", client, server));
    }
    if let Some(latency) = &run.latency {
        let _ = write!(text, "\n{}\n", latencies(latency));
    }
    text + &sides(run)
}

/// Describes zero-copy sends. The kernel may copy anyway, and reports this only afterwards.
fn zero_copy(run: &LoadResult) -> Option<String> {
    let totals = run.totals;
    let of = |count: u64| percent(count as f64 / totals.zerocopy_sends as f64);
    let loopback = run.address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback());
    let always = if loopback { ", as always on loopback" } else { "" };
    let open = totals.zerocopy_sends.saturating_sub(totals.zerocopy_completed);
    let open =
        if open > 0 { format!("; no completion reported for {}", of(open)) } else { String::new() };
    let (sends, copied) = (count(totals.zerocopy_sends as f64), of(totals.zerocopy_copied));
    (totals.zerocopy_sends > 0)
        .then(|| format!("{sends} sends; the kernel copied {copied} of them{always}{open}"))
}

fn head(run: &LoadResult) -> String {
    let spec = &run.spec;
    let what = if spec.test.has_responses() {
        format!("requests of {} bytes, responses of {}", spec.request_bytes, spec.response_bytes)
    } else {
        format!("{} bytes per call", spec.send_bytes)
    };
    let served = &run.server;
    let work = if served.work_usecs > 0 {
        format!(", {} us of work per request", served.work_usecs)
    } else {
        String::new()
    };
    let served_as = served.instances_as.map_or_else(String::new, |kind| format!(" ({kind})"));
    format!(
        "{} of {}, {what}, {:.1} s\n  client        {}\n  \
         server        {} at {}{served_as}{work}\n",
        plural(spec.instances, "instance"),
        spec.test,
        run.seconds,
        spec.instances_as,
        plural(served.workers, "thread"),
        run.address,
    )
}

/// The cost on both machines. One number if client and server are the same machine.
fn both(
    run: &LoadResult,
    unit: impl Fn(f64) -> String,
    per: &str,
    client: f64,
    server: f64,
) -> String {
    if run.is_on_one_machine() {
        return format!("{} per {per}, both ends on one machine", unit(client.max(server)));
    }
    format!("{} per {per} at the client, {} at the server", unit(client), unit(server))
}

fn latencies(latency: &Latency) -> Table {
    let mut table = plain();
    let mut percentiles: Vec<(f64, u64)> = latency
        .percentiles_ns
        .iter()
        .filter_map(|(name, ns)| Some((name.parse().ok()?, *ns)))
        .collect();
    percentiles.sort_by(|a, b| a.0.total_cmp(&b.0));
    let names = percentiles.iter().map(|(percent, _)| format!("p{percent}"));
    table.set_header(
        ["latency (us)".to_owned(), "mean".into()].into_iter().chain(names).chain(["max".into()]),
    );
    let us = |ns: f64| format!("{:.1}", ns / 1e3);
    let values = percentiles.iter().map(|(_, ns)| us(*ns as f64));
    let last = us(latency.max_ns as f64);
    table.add_row([String::new(), us(latency.mean_ns)].into_iter().chain(values).chain([last]));
    right(&mut table);
    table
}

fn sides(run: &LoadResult) -> String {
    if run.is_on_one_machine() {
        return side("both ends", &run.client);
    }
    side("client", &run.client) + &side("server", &run.server.side)
}

/// One machine: its totals, a table per CPU, and drop counters.
fn side(name: &str, side: &EndMachine) -> String {
    let mut table = plain();
    let [usr, sys, irq, softirq, idle] = TICKS;
    let mut header = vec!["\ncpu", usr, sys, irq, softirq, "\nsteal", idle];
    header.extend(["\nNET_RX/s", "\nIPI/s", "\npackets/s", "\nrps/s"]);
    let seconds = side.true_elapsed.as_secs_f64();
    let is_measured = !side.true_times.is_empty() && seconds > 0.0;
    if is_measured {
        header.extend(MEASURED);
    }
    table.set_header(header);
    for (cpu, rates) in &side.rates.cpus {
        let mut row = vec![cpu.to_string()];
        row.extend(booked(rates));
        if is_measured {
            let time = side.true_times.get(cpu).copied().unwrap_or_default();
            let share = |ns: u64| percent(ns as f64 / 1e9 / seconds);
            row.extend([share(time.hardirq_ns), share(time.softirq_ns()), share(time.ipi_ns)]);
        }
        table.add_row(row);
    }
    right(&mut table);
    let rate = |value: Option<f64>| or_dash(value, |value| format!("{}/s", count(value)));
    let mut text = format!(
        "\n{name}: {}, Linux {}, {} context switches, {} interrupts\n{table}\n",
        side.hostname,
        side.kernel,
        rate(side.context_switches_per_s),
        rate(side.interrupts_per_s),
    );
    let lost = ["rx_dropped", "rx_missed_errors", "rx_fifo_errors", "tx_dropped"];
    for (netdev, counters) in &side.rates.netdevs {
        let shown = lost
            .iter()
            .filter_map(|name| Some((name, counters.get(*name).filter(|rate| **rate > 0.0)?)));
        let shown: Vec<String> =
            shown.map(|(name, rate)| format!("{name} {}/s", count(*rate))).collect();
        if !shown.is_empty() {
            let _ = writeln!(text, "{netdev}: {}", shown.join(", "));
        }
    }
    text
}

fn booked(rates: &CpuRates) -> Vec<String> {
    let share = |of: fn(&netsilo_model::derive::rates::Shares) -> f64| {
        or_dash(rates.shares, |shares| percent(of(&shares)))
    };
    let softnet = rates.softnet.unwrap_or_default();
    vec![
        share(|it| it.usr + it.nice),
        share(|it| it.sys),
        share(|it| it.irq),
        share(|it| it.softirq),
        share(|it| it.steal),
        share(|it| it.idle + it.iowait),
        or_dash(rates.net_rx_per_s, count),
        or_dash(rates.cal_per_s, count),
        or_dash(softnet.processed_per_s, count),
        or_dash(softnet.received_rps_per_s, count),
    ]
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

fn right(table: &mut Table) {
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netsilo_model::derive::rates::{Rates, Shares, SoftnetRates};
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_trial::traffic::{InstancesAs, ServerResult, Spec, Test, Totals};

    use super::*;

    fn side(hostname: &str, usr: f64) -> EndMachine {
        let shares = Shares { usr, softirq: 0.25, idle: 0.75 - usr, ..Shares::default() };
        let softnet = SoftnetRates { processed_per_s: Some(41_000.0), ..SoftnetRates::default() };
        let cpu = CpuRates {
            shares: Some(shares),
            net_rx_per_s: Some(20_500.0),
            cal_per_s: Some(7.0),
            softnet: Some(softnet),
            ..CpuRates::default()
        };
        let cpus = [(CpuId(0), cpu.clone()), (CpuId(1), cpu)].into();
        let netdevs = [("eth0".into(), [("rx_dropped".into(), 12.5)].into())].into();
        EndMachine {
            hostname: hostname.into(),
            kernel: "6.12.1".into(),
            boot_id: hostname.into(),
            rates: Rates { cpus, netdevs, ..Rates::default() },
            context_switches_per_s: Some(81_234.0),
            ..EndMachine::default()
        }
    }

    #[test]
    fn a_rate_has_the_unit_of_its_load() {
        let figures = |transactions_per_s, datagrams_per_s| Figures {
            transactions_per_s,
            bytes_per_s: 215_500.0,
            datagrams_per_s,
            lost: None,
            cpu_ns_per_transaction: None,
            cpu_s_per_gigabyte: None,
        };
        let of = |one: Figures| rate(&[one, one]);
        assert_eq!(of(figures(Some(500.0), None)), "1.00k transactions/s");
        assert_eq!(of(figures(None, Some(12_000.0))), "24.0k packets/s");
        assert_eq!(of(figures(None, None)), "431 kB/s");
    }

    #[test]
    fn a_run_tells_its_rate_its_latencies_and_what_both_machines_did() {
        let mut spec = Spec::default_for(Test::UdpRr, Duration::from_secs(10));
        (spec.instances, spec.instances_as) = (100, InstancesAs::Multiplexed);
        let percentiles = [("50", 31_000), ("99.9", 90_500)];
        let run = LoadResult {
            schema: 1,
            spec,
            address: "192.0.2.7:12870".into(),
            seconds: 10.0,
            totals: Totals {
                requests: 410_010,
                responses: 410_000,
                lost: 10,
                late: 3,
                ..Totals::default()
            },
            counted: Totals { responses: 400_000, ..Totals::default() },
            per_second: vec![40_000; 10],
            latency: Some(Latency {
                count: 400_000,
                mean_ns: 33_300.0,
                max_ns: 1_200_000,
                percentiles_ns: percentiles.map(|(name, ns)| (name.to_owned(), ns)).into(),
                histogram: String::new(),
            }),
            client: side("client1", 0.5),
            server: ServerResult {
                instances_as: Some(InstancesAs::Multiplexed),
                workers: 8,
                work_usecs: 20,
                side: side("server1", 0.25),
                ..ServerResult::default()
            },
        };
        insta::assert_snapshot!(render(&run));
        let mut one = run;
        one.server.side.boot_id = one.client.boot_id.clone();
        assert!(render(&one).contains("per transaction, both ends on one machine"));
        (one.totals.zerocopy_sends, one.totals.zerocopy_completed, one.totals.zerocopy_copied) =
            (2000, 2000, 500);
        assert!(
            render(&one).contains("2.00k sends; the kernel copied 25% of them\n"),
            "{}",
            render(&one)
        );
        (one.address, one.totals.zerocopy_completed) = ("127.0.0.1:12870".into(), 1000);
        let text = render(&one);
        assert!(
            text.contains("them, as always on loopback; no completion reported for 50%\n"),
            "{text}"
        );
    }
}
