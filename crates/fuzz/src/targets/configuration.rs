//! The daemon's configuration files: no text panics the parser, and an error names a line of it.

use std::path::Path;

use netsilo::daemon::config::file;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    match file::parse(text, Path::new("netsilo.toml")) {
        Ok(parsed) => assert!(parsed.netdev.iter().all(|rule| rule.queue.len() <= text.len())),
        Err(error) => {
            assert!(!error.why.is_empty() && !error.why.contains('\n'), "{error}");
            let lines = text.split('\n').count();
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
        }
    }
}

/// Every key with a value, once in one file and once each, and errors.
fn seeds() -> Vec<Vec<u8>> {
    let keys = [
        "interval = \"10s\"\nwindow = \"1s\"\nbpf = true\nhints = true\nhints-only = false",
        "restore-on-exit = true\nmetrics = \"127.0.0.1:9798\"",
        "[costs]\nsame_cpu = 0.0",
        "[goal]\nmanage = true\nnetdevs = [\"eth0\"]\ncpus = \"0-3\"\nexclude = \"1\"\n\
         algorithm = \"auto\"\nirqs = true\nrps = \"off\"\nrfs = 32768\narfs = true\n\
         steer = [\"443/tcp=2-3\"]\nxps = \"near\"\ndefault-smp-affinity = \"0\"\n\
         rps-default-mask = \"off\"\neven-if-owned = false",
        "[controller]\nmin-gain = 0.1\ndwell = \"2m\"\ncalm = \"30m\"\nhold-off = \"10m\"\n\
         hold-off-most = \"6h\"\nchanges-per-minute = 256\nyield-for = \"forever\"\n\
         verify-windows = 6\nworse-by = 0.05",
        "[[netdev]]\nname = \"eth*\"\nmac = \"52:54:00:12:34:56\"\ndriver = \"igb\"\n\
         path = \"/devices/*\"\nmanage = false\nalgorithm = \"spread\"\ncpus = \"0x3\"\n\
         [[netdev.queue]]\nqueues = \"0-1\"\nmanage = true\nalgorithm = \"auto\"\ncpus = \"2\"",
    ];
    let wrong = ["intervall = 1", "[[netdev]]\n", "metrics = \"x\"", "goal = \n\n[", "\u{feff}"];
    keys.into_iter().chain(wrong).map(Vec::from).chain([keys.join("\n").into_bytes()]).collect()
}
