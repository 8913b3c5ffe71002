//! A row without emulation: a veth of this machine's own kernel, whose NAPI kthread netsilo places.

use anyhow::{Context as _, Result};
use netsilo_model::cost::assumed::Assumed;
use netsilo_sys::bundle;

use crate::demo::versus::{RULES, Versus};
use crate::outcome::choice;
use crate::say::say;
use crate::veths::{Server, Veth, VethSetting};
use crate::wire::{CLIENT_CPU, Course, SERVER_CPU};

/// Seconds of one measurement.
const SECONDS: f64 = 0.4;

/// The load: the CPU that runs the kthread decides how long a request waits.
const LOAD: &str = "-t TCP_RR -n 16";

/// Says where netsilo places the kthread, and compares the two CPUs.
pub(super) fn compare() -> Result<()> {
    say(
        "A veth between two network namespaces, polled by a NAPI kthread. The server is on CPU 1,",
    )?;
    say("its 16 clients on CPU 0.")?;
    let mut veth = Veth::start(Course::One, Server::works(0), LOAD)?;
    let on = |cpu: u32| VethSetting { kthreads: vec![cpu], rps: 0 };
    let folder = tempfile::tempdir()?;
    let netdevs: Vec<String> = veth.netdevs().iter().map(|it| (*it).to_owned()).collect();
    for start in [CLIENT_CPU, SERVER_CPU] {
        veth.set(&on(start))?;
        let path = folder.path().join(format!("{start}.tar.zst"));
        veth.capture(&path)?;
        let observation = bundle::open(&path).context("cannot read what was captured")?;
        let cpus = choice(&observation, &netdevs, &[start.to_string()], Assumed::default());
        say(&format!("kthread on CPU {start}: netsilo plans CPU {}", cpus.join(",")))?;
    }
    let (mut far, mut near) = (Vec::new(), Vec::new());
    while !Versus::of(&far, &near, true).is_settled() && far.len() < RULES.max_pairs {
        let mut turns = [(SERVER_CPU, &mut far), (CLIENT_CPU, &mut near)];
        // in varying order
        if turns[0].1.len() % 2 == 1 {
            turns.reverse();
        }
        for (cpu, rates) in turns {
            veth.set(&on(cpu))?;
            rates.push(veth.measure(SECONDS)?.rate);
        }
    }
    let versus = Versus::of(&far, &near, true);
    say(&format!("requests/s with the kthread on CPU 0, compared with CPU 1: {versus}"))
}
