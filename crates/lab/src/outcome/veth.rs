//! Measures placements on this machine's own kernel, at true speed.
//!
//! A veth with GRO and threaded NAPI stands for a NIC: its kthread polls the packets, and can be
//! placed as an interrupt can. The server is on CPU 1, its clients on CPU 0; the kthread is on the
//! server's CPU or on the other one.

use std::path::Path;

use anyhow::{Context, Result};

use crate::outcome::args::Measure;
use crate::outcome::recorded::{Load, Recorded, Start};
use crate::say::say;
use crate::wire::{CLIENT_CPU, Kthread, NETDEV, SERVER_CPU, Wire, kernel};

/// The kthread's places.
const PLACES: [u32; 2] = [SERVER_CPU, CLIENT_CPU];

/// The loads: a name, arguments of `bench run`, and the server's work per request in microseconds.
const LOADS: [(&str, &str, u32); 10] = [
    ("TCP_RR x 1", "-t TCP_RR -n 1", 0),
    ("TCP_RR x 16", "-t TCP_RR -n 16", 0),
    ("TCP_RR x 64", "-t TCP_RR -n 64", 0),
    ("TCP_RR x 16, 5 us of work", "-t TCP_RR -n 16", 5),
    ("TCP_RR x 16, 50 us of work", "-t TCP_RR -n 16", 50),
    ("TCP_RR x 16, 200 us of work", "-t TCP_RR -n 16", 200),
    ("UDP_RR x 1", "-t UDP_RR -n 1", 0),
    ("UDP_RR x 16", "-t UDP_RR -n 16", 0),
    ("UDP_RR x 16, 50 us of work", "-t UDP_RR -n 16", 50),
    ("TCP_STREAM x 1", "-t TCP_STREAM -n 1", 0),
];

/// Measures all loads, and saves the results in a folder.
pub(super) fn record(args: &Measure, folder: &Path) -> Result<()> {
    let wire = Wire::new()?;
    let kthread = wire.threaded()?;
    let mut recorded = Recorded {
        about: format!(
            "netsilo-lab outcome --rounds {} --seconds {} --looks {}; Linux {}",
            args.rounds,
            args.seconds,
            args.looks,
            kernel()?
        ),
        netdev: NETDEV.to_owned(),
        placements: PLACES.iter().map(|cpu| vec![cpu.to_string()]).collect(),
        loads: Vec::new(),
    };
    for (name, load, work) in LOADS {
        let measured = measure((&wire, &kthread), name, (load, work), args, folder);
        recorded.loads.push(measured.with_context(|| name.to_owned())?);
        say(&format!("measured: {name}"))?;
    }
    recorded.write(folder)
}

/// A name as part of a file name.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = name.chars().map(kept).collect();
    words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

/// Measures one load in each place, by rounds, and saves bundles of each start.
fn measure(
    (wire, kthread): (&Wire, &Kthread),
    name: &str,
    (load, work): (&str, u32),
    args: &Measure,
    folder: &Path,
) -> Result<Load> {
    let server = wire.server(work)?;
    let mut rates = vec![Vec::new(); PLACES.len()];
    for round in 0..usize::from(args.rounds) {
        for turn in 0..PLACES.len() {
            let place = (round + turn) % PLACES.len();
            kthread.put(PLACES[place])?;
            rates[place].push(wire.rate(load, args.seconds)?);
        }
    }
    let mut starts = Vec::new();
    for (time, placement) in
        (0..args.looks).flat_map(|it| (0..PLACES.len()).map(move |place| (it, place)))
    {
        kthread.put(PLACES[placement])?;
        let bundle = format!("{}-from-{}-{time}.tar.zst", slug(name), PLACES[placement]);
        wire.capture(load, &folder.join(&bundle))?;
        starts.push(Start { placement, bundle });
    }
    drop(server);
    Ok(Load { name: name.to_owned(), rates, starts })
}
