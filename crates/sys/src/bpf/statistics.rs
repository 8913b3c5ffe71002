//! The kernel's own statistics of eBPF programs: runs and run time (`BPF_ENABLE_STATS`, 5.8).
//!
//! While they are enabled, each run of any eBPF program on this machine costs two more clock reads.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::query::ProgInfoIter;

/// Statistics of the programs that are loaded while this value lives.
#[derive(Debug)]
pub struct Statistics {
    _enabled: OwnedFd,
    /// Ids of the programs that were loaded before.
    others: Vec<u32>,
}

/// Runs of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// Its name.
    pub name: String,
    /// Run time in nanoseconds.
    pub ns: u64,
    /// Number of runs.
    pub count: u64,
}

impl Statistics {
    /// Enables the statistics; call it before the programs are loaded.
    pub fn enable() -> io::Result<Self> {
        let others = ProgInfoIter::default().map(|program| program.id).collect();
        // SAFETY: takes a number, returns a descriptor or an error.
        #[allow(unsafe_code)]
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        #[allow(unsafe_code)]
        let enabled = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { _enabled: enabled, others })
    }

    /// The runs of each program so far, by its id.
    pub fn runs(&self) -> BTreeMap<u32, Runs> {
        let ours = ProgInfoIter::default().filter(|program| !self.others.contains(&program.id));
        let runs = |program: libbpf_rs::query::ProgramInfo| {
            let name = program.name.to_string_lossy().into_owned();
            (program.id, Runs { name, ns: program.run_time_ns, count: program.run_cnt })
        };
        ours.map(runs).collect()
    }

    /// The runs since an earlier state; programs without a run are left out.
    pub fn since(&self, earlier: &BTreeMap<u32, Runs>) -> Vec<Runs> {
        let grown = self.runs().into_iter().map(|(id, now)| {
            let before = earlier.get(&id).cloned().unwrap_or_default();
            Runs { ns: now.ns - before.ns, count: now.count - before.count, ..now }
        });
        grown.filter(|runs| runs.count > 0).collect()
    }
}
