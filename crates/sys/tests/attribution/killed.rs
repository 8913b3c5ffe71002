//! What is left of a tracer that was killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Command, Stdio};

use libbpf_rs::query::ProgInfoIter;

use super::in_own_netns;

/// Nothing is pinned, so the kernel ends the programs with the process.
#[test]
fn no_program_outlives_a_killed_process() {
    in_own_netns(|| {
        let program = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "attribution").unwrap();
        let mut tracer = Command::new(program);
        tracer.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut tracer = tracer.spawn().unwrap();
        BufReader::new(tracer.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
        let programs = programs_of(tracer.id());
        assert!(programs.len() > 10 && programs.is_subset(&loaded_programs()), "{programs:?}");
        tracer.kill().unwrap();
        tracer.wait().unwrap();
        let left = || loaded_programs().intersection(&programs).copied().collect::<Vec<_>>();
        netsilo_lab::until("the programs end", left, Vec::is_empty).unwrap();
    });
}

/// The programs whose descriptors a process has.
fn programs_of(pid: u32) -> BTreeSet<u32> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let text = |file: io::Result<fs::DirEntry>| fs::read_to_string(file.unwrap().path()).unwrap();
    let id = |line: &str| line.strip_prefix("prog_id:")?.trim().parse().ok();
    files.flat_map(|file| text(file).lines().filter_map(id).collect::<Vec<u32>>()).collect()
}

fn loaded_programs() -> BTreeSet<u32> {
    ProgInfoIter::default().map(|program| program.id).collect()
}
