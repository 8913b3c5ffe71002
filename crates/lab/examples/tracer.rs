//! Traces in a guest, for `tests/lab_attribution`. Writes its counts to `/tmp/attribution`.
//!
//! Writes to the fifo `/tmp/attached` when it counts. Ends when something is written to
//! `/tmp/enough`.

#![allow(clippy::unwrap_used, reason = "a part of tests")]

use std::fs::{self, File};
use std::io::Read;

use clap::Parser;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_sys::files::root::Root;

/// Count in a guest.
#[derive(Parser)]
struct Args {
    /// Also sample stages
    #[arg(long)]
    stages: bool,
    /// Also measure how long readers wait for a CPU
    #[arg(long)]
    runqueue: bool,
    /// Use only the kernel's tracepoints, no functions and variables
    #[arg(long)]
    tracepoints: bool,
    /// Also count what each tx queue got
    #[arg(long)]
    sent: bool,
    /// Also write netsilo's snapshot of the guest to `/tmp/snapshot`
    #[arg(long)]
    snapshot: bool,
}

fn main() {
    let Args { stages, runqueue, tracepoints, sent, snapshot } = Args::parse();
    let options = Options {
        stages,
        runqueue,
        only_tracepoints: tracepoints,
        ip_packets: sent,
        ..Options::exact()
    };
    let mut tracer = Tracer::attach(options);
    // opening a fifo waits until the other end is open
    fs::write("/tmp/attached", "yes").unwrap();
    File::open("/tmp/enough").unwrap().read_to_end(&mut Vec::new()).unwrap();
    let attribution = tracer.read().unwrap();
    fs::write("/tmp/attribution", serde_json::to_vec(&attribution).unwrap()).unwrap();
    if snapshot {
        let snapshot = netsilo_sys::snapshot(&Root::live()).unwrap();
        fs::write("/tmp/snapshot", serde_json::to_vec(&snapshot).unwrap()).unwrap();
    }
}
