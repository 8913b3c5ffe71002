//! `make demo`: netsilo's main task on real traffic, from a bad placement to a better one and back.

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use netsilo_lab::traffic::{self, Proto, RrReport};
use netsilo_lab::{Accel, Job, Kernel, Lab, NicModel, PeerJob, Spec};
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use crate::counters::Counters;
use crate::counters::Spent;

/// CPUs that the servers are pinned to: two on each socket, four different cores.
const SERVER_CPUS: &str = "1,2,5,6";
/// Port and connections: eight of each protocol to each server.
const TCP_PORT: u16 = 7000;
const UDP_PORT: u16 = 7100;
const CONNECTIONS: u32 = 32;
/// Longest duration of the traffic that netsilo observes.
const WATCHED: Duration = Duration::from_secs(90);

/// Arguments of the demo.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Demo {
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t = Kernel::V6_1)]
    kernel: Kernel,
    /// Seconds to measure each protocol in each placement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=30))]
    seconds: u32,
}

/// The measurements of one placement.
struct Measured {
    name: &'static str,
    tcp: Spent,
    udp: Spent,
    locality: Vec<(String, f64)>,
}

/// The guest with its servers, and the path of netsilo.
struct DemoGuest {
    lab: Lab,
    netsilo: String,
    traffic: String,
    seconds: u32,
    _servers: Vec<Job>,
}

/// Runs the demo.
pub(crate) fn run(demo: &Demo) -> Result<()> {
    say("netsilo's main task on a real kernel: show, plan, apply, verify, undo")?;
    let guest = DemoGuest::set(demo)?;
    let before = guest.settings()?;

    chapter("as booted: every interrupt of the NIC on cpu 0, the servers on cpus 1, 2, 5 and 6")?;
    let booted = guest.look("as booted", &["show", "plan --algorithm near-consumer"], &[])?;
    chapter("near-consumer: close to the reader, on another core of its cache")?;
    let near = guest.look("near-consumer", &["show"], &["near-consumer"])?;
    chapter("rfs-max-weight: on the heaviest reader's own cpu")?;
    let own = guest.look("rfs-max-weight", &["show"], &["rfs-max-weight"])?;

    chapter("undo")?;
    guest.netsilo("undo")?;
    let after = guest.settings()?;
    ensure!(after == before, "not all settings are restored:\n{}", differences(&before, &after));
    say(&format!("all {} settings are restored, byte for byte", before.lines().count()))?;

    chapter("before and after")?;
    say(&comparison(&[booted, near, own]))?;
    say(&caveats(&guest.lab))
}

impl DemoGuest {
    fn set(demo: &Demo) -> Result<Self> {
        // Threads::Multi would run the CPUs in parallel but stalls at times; the counts are the
        // same.
        let lab = Lab::boot(&Spec::new(demo.kernel, NicModel::VirtioNet))?;
        let traffic = traffic::program()?.display().to_string();
        let netsilo = built_beside("netsilo")?.display().to_string();
        let serve = |proto: Proto, port: u16| {
            lab.spawn(&format!(
                "exec {traffic} traffic rr-server --proto {proto} --port {port} \
                 --cpus {SERVER_CPUS}"
            ))
        };
        let servers = vec![serve(Proto::Tcp, TCP_PORT)?, serve(Proto::Udp, UDP_PORT)?];
        lab.sh("for irq in $(ls $(readlink -f /sys/class/net/eth0/device)/../msi_irqs); do \
                echo 1 >/proc/irq/$irq/smp_affinity; done")?;
        Ok(Self { lab, netsilo, traffic, seconds: demo.seconds, _servers: servers })
    }

    /// Applies these algorithms and runs these verbs under traffic, then measures without netsilo.
    fn look(&self, name: &'static str, verbs: &[&str], algorithms: &[&str]) -> Result<Measured> {
        let traffic = [self.client(Proto::Tcp, WATCHED)?, self.client(Proto::Udp, WATCHED)?];
        for algorithm in algorithms {
            self.netsilo(&format!("apply --yes --interval 2s --algorithm {algorithm}"))?;
        }
        for verb in verbs {
            self.netsilo(&format!("{verb} --interval 2s"))?;
        }
        let report: serde_json::Value =
            serde_json::from_str(&self.netsilo_quietly("show --interval 2s --json")?)?;
        for client in traffic {
            client.stop()?;
        }
        let locality = report["totals"]["locality"]["shares"]
            .as_object()
            .context("a report without locality")?;
        let locality = locality
            .iter()
            .map(|(what, share)| (what.clone(), share.as_f64().unwrap_or(0.0)))
            .collect();
        Ok(Measured {
            name,
            tcp: self.measure(Proto::Tcp)?,
            udp: self.measure(Proto::Udp)?,
            locality,
        })
    }

    /// Measures transactions of one protocol, and what the kernel counted meanwhile.
    fn measure(&self, proto: Proto) -> Result<Spent> {
        let before = self.counters()?;
        let output =
            self.client(proto, Duration::from_secs(self.seconds.into()))?.wait(WATCHED)?.ok()?;
        let report: RrReport = serde_json::from_slice(&output.stdout)?;
        ensure!(report.transactions > 0, "no {proto} transaction was completed");
        Ok(self.counters()?.since(&before, &report))
    }

    fn counters(&self) -> Result<Counters> {
        Counters::parse(&self.lab.sh("cat /proc/softirqs /proc/interrupts")?)
    }

    fn client(&self, proto: Proto, duration: Duration) -> Result<PeerJob> {
        let port = if proto == Proto::Tcp { TCP_PORT } else { UDP_PORT };
        self.lab.peer(0)?.spawn(&format!(
            "exec {} traffic rr-client --proto {proto} --dest {} --port {port} --ports 4 \
             --connections {CONNECTIONS} --duration {}",
            self.traffic,
            Lab::guest_address(0),
            duration.as_secs(),
        ))
    }

    /// Runs netsilo in the guest and prints command and output.
    fn netsilo(&self, arguments: &str) -> Result<()> {
        say(&format!("# netsilo {arguments}"))?;
        let output = self.lab.run(&format!("{} {arguments} 2>&1", self.netsilo))?;
        say(&output.text())?;
        if output.status != 0 {
            bail!("netsilo {arguments} ended with {}", output.status);
        }
        Ok(())
    }

    fn netsilo_quietly(&self, arguments: &str) -> Result<String> {
        self.lab.sh(&format!("{} {arguments}", self.netsilo))
    }

    /// Reads every setting that netsilo may write, as the kernel prints it.
    fn settings(&self) -> Result<String> {
        self.lab.sh("cd /; grep -H . \
             proc/irq/*/smp_affinity proc/irq/default_smp_affinity proc/sys/net/core/rps_* \
             sys/class/net/eth0/queues/*/rps_* sys/class/net/eth0/queues/*/xps_* \
             sys/class/net/eth0/threaded")
    }
}

/// Returns the path of a program in the same folder as this one.
fn built_beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `cargo build --release`", path.display());
    Ok(path)
}

fn differences(before: &str, after: &str) -> String {
    let changed = before.lines().zip(after.lines()).filter(|(old, new)| old != new);
    changed.map(|(old, new)| format!("  {old} became {new}")).collect::<Vec<_>>().join("\n")
}

/// One column per placement, one row per figure.
fn comparison(placements: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(std::iter::once("").chain(placements.iter().map(|placement| placement.name)));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |what: &str, figure: &dyn Fn(&Measured) -> String| {
        table.add_row(std::iter::once(what.to_owned()).chain(placements.iter().map(figure)));
    };
    for distance in ["same_cpu", "smt", "l2", "llc", "node", "remote"] {
        let share = |placement: &Measured| {
            let share = placement
                .locality
                .iter()
                .find(|(what, _)| what == distance)
                .map_or(0.0, |(_, share)| *share);
            format!("{:.0}%", share * 100.0)
        };
        row(&format!("bytes read at distance {}", distance.replace('_', " ")), &share);
    }
    for cpu in 0..placements[0].tcp.net_rx.len() {
        row(&format!("NET_RX on cpu {cpu}"), &|it| {
            (it.tcp.net_rx[cpu] + it.udp.net_rx[cpu]).to_string()
        });
    }
    let per_transaction =
        |spent: &Spent, count: u64| format!("{:.3}", spent.per_transaction(count));
    for kind in ["TCP_RR", "UDP_RR"] {
        let spent = |it: &Measured| if kind == "TCP_RR" { it.tcp.clone() } else { it.udp.clone() };
        row(&format!("{kind} IPIs per transaction"), &|it| {
            per_transaction(&spent(it), spent(it).ipis)
        });
        let softirqs = |it: &Measured| per_transaction(&spent(it), spent(it).net_rx.iter().sum());
        row(&format!("{kind} NET_RX softirqs per transaction"), &softirqs);
        row(&format!("{kind} transactions/s"), &|it| {
            format!("{:.0}", spent(it).transactions_per_s())
        });
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn caveats(lab: &Lab) -> String {
    if lab.accel() == Accel::Kvm {
        return "The guest's CPUs are real (KVM); its NIC is virtio.".to_owned();
    }
    "Emulated: the CPUs and their caches (QEMU without KVM). The kernel, its driver, the NIC's \
     queues and the traffic are real.\n\
     Valid here: where packets are processed and read; softirqs, interrupts and IPIs, also per \
     transaction.\n\
     Not valid here: times and shares of time (transactions/s, %usr .. %idle, measured irq and \
     softirq): run it on your machine."
        .to_owned()
}

fn chapter(title: &str) -> Result<()> {
    say(&format!("\n=== {title}\n"))
}

fn say(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()?;
    Ok(())
}
