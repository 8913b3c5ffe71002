//! Measures placements of a NIC's queues in a guest of two sockets.
//!
//! Four servers, each on a CPU of its own, read from the four queues. Rates compare only with each
//! other, as the CPUs are emulated.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use netsilo_lab::{Kernel, Lab, NicModel, Spec, Threads};
use netsilo_model::cost::assumed::Assumed;

use crate::built;
use crate::outcome::args::Measure;
use crate::outcome::recorded::{Load, Recorded, Start, choice};
use crate::peers::SERVER_CPUS;
use crate::peers::guest::PeersGuest;
use crate::say::{bar, progress};
use crate::workload::{Kind, Workload, while_busy};

/// The starts, as the CPU of each queue: as booted, of irqbalance, all on one CPU, next to the
/// readers, on their CPUs.
const STARTS: [[u32; 4]; 5] =
    [[0, 3, 5, 7], [6, 7, 4, 3], [0, 0, 0, 0], [3, 0, 7, 4], [1, 2, 5, 6]];

/// A placement that is measured besides: one queue on each idle core.
const SPREAD: [u32; 4] = [0, 2, 4, 6];

/// The netdev of the servers.
const NETDEV: &str = "eth0";

/// Each server has a port of its own, so that each start has readers of every queue. The few
/// connections under which nginx is observed would leave some queues without traffic.
const LOADS: [Kind; 4] = [Kind::TcpRr, Kind::UdpRr, Kind::Redis, Kind::Memcached];

/// The CPU of each queue, as a plan prints it.
type Placement = Vec<String>;

/// Asks the default from each start under each load, then measures all placements that came up.
pub(super) fn record(args: &Measure, folder: &Path) -> Result<()> {
    let spec = Spec { threads: Threads::Multi, ..Spec::new(Kernel::V6_1, NicModel::VirtioNet) };
    let lab = Lab::boot(&spec)?;
    let guest = PeersGuest::new(&lab, &spec)?;
    let mut placements: Vec<Placement> = STARTS.iter().chain([&SPREAD]).map(in_words).collect();
    let mut loads = Vec::new();
    for kind in LOADS {
        let asked = ask(&guest, kind, args, folder).with_context(|| kind.name())?;
        let new: Vec<Placement> =
            asked.choices.into_iter().filter(|it| !placements.contains(it)).collect();
        placements.extend(new);
        loads.push(Load { name: kind.name().to_owned(), rates: Vec::new(), starts: asked.starts });
        progress(&format!("{}: asked from each start", kind.name()));
    }
    for (kind, load) in LOADS.into_iter().zip(&mut loads) {
        load.rates = rates(&guest, kind, args, &placements).with_context(|| kind.name())?;
    }
    let Measure { rounds, seconds, looks } = args;
    let about = format!(
        "netsilo-lab outcome --guest --rounds {rounds} --seconds {seconds} --looks {looks}; {}; \
         servers on CPUs 1, 2, 5, 6; rates compare only here",
        lab.title()
    );
    Recorded { about, netdev: NETDEV.to_owned(), placements, loads }.write(folder)
}

fn in_words(cpus: &[u32; 4]) -> Placement {
    cpus.iter().map(u32::to_string).collect()
}

/// What the default wants under a load.
struct Asked {
    starts: Vec<Start>,
    /// Its choices, those with other assumptions too.
    choices: BTreeSet<Placement>,
}

/// Saves a bundle of each start under this load.
fn ask(guest: &PeersGuest<'_>, kind: Kind, args: &Measure, folder: &Path) -> Result<Asked> {
    let workload = Workload::start(kind, guest.lab(), &SERVER_CPUS)?;
    let netsilo = built::netsilo()?;
    let capture = format!(
        "{} capture --interval 2s --output /tmp/start.tar.zst >&2 && cat /tmp/start.tar.zst && \
         rm /tmp/start.tar.zst",
        netsilo.display()
    );
    let mut asked = Asked { starts: Vec::new(), choices: BTreeSet::new() };
    for (placement, cpus) in STARTS.iter().enumerate() {
        guest.placed(cpus).write(guest.lab())?;
        for look in 0..args.looks {
            let bundle = format!("{}-from-{placement}-{look}.tar.zst", kind.name());
            let output = while_busy(&[&workload], || guest.lab().run(&capture)?.ok())?;
            let file = folder.join(&bundle);
            std::fs::write(&file, output.stdout).with_context(|| format!("{file:?}"))?;
            let observation = netsilo_sys::bundle::open(file)?;
            let present = in_words(cpus);
            let others = Assumed::half_and_double().flat_map(|(_, both)| both);
            let choices = others
                .chain([Assumed::default()])
                .map(|assumed| choice(&observation, NETDEV, &present, assumed));
            asked.choices.extend(choices);
            asked.starts.push(Start { placement, bundle });
        }
    }
    Ok(asked)
}

/// Transactions per second of each placement in each round, in random order.
fn rates(
    guest: &PeersGuest<'_>,
    kind: Kind,
    args: &Measure,
    placements: &[Placement],
) -> Result<Vec<Vec<f64>>> {
    let workload = Workload::start(kind, guest.lab(), &SERVER_CPUS)?;
    let mut rates = vec![Vec::new(); placements.len()];
    let bar = bar(u64::from(args.rounds) * placements.len() as u64);
    for _ in 0..args.rounds {
        let mut order: Vec<usize> = (0..placements.len()).collect();
        fastrand::shuffle(&mut order);
        for placement in order {
            let cpus: Vec<u32> =
                placements[placement].iter().map(|cpu| cpu.parse()).collect::<Result<_, _>>()?;
            bar.set_message(format!("{} on {cpus:?}", kind.name()));
            guest.placed(&cpus).write(guest.lab())?;
            rates[placement].push(workload.measure(args.seconds)?.clients.per_second);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rates)
}
