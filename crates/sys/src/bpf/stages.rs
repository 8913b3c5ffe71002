//! The counts of `bpf/stages.bpf.c`: where receive work spends its time. perf's cpu-clock samples
//! stacks on each CPU; kallsyms has the names of the functions.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramMut};
use netsilo_model::derive::stages::stage_of;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::parse::kallsyms;
use netsilo_model::snapshot::stage_samples::{ReceiveStage, StageSamples};

use crate::bpf::layout;
use crate::bpf::load::{Loaded, reason};

/// Not a divisor of the timer frequencies 100, 250 and 1000 Hz.
const SAMPLES_PER_S: u32 = 499;

/// What the sampling program counts.
pub(crate) struct Samples {
    samples: MapHandle,
    stacks: MapHandle,
    lost: MapHandle,
}

impl Samples {
    /// Those of the programs that were loaded; `None` without the sampling program.
    pub(crate) fn of(loaded: &Loaded) -> Option<Self> {
        Some(Self {
            samples: loaded.map("samples")?,
            stacks: loaded.map("stacks")?,
            lost: loaded.map("samples_lost")?,
        })
    }

    /// The samples since the last call.
    pub(crate) fn read(&self) -> libbpf_rs::Result<StageSamples> {
        let mut sampled = StageSamples { per_s: SAMPLES_PER_S, ..StageSamples::default() };
        let counts = taken(&self.samples)?;
        let known: BTreeSet<u32> = counts.iter().map(|((_, stack), _)| *stack).collect();
        let stacks: BTreeMap<u32, Vec<u64>> =
            known.into_iter().filter_map(|id| Some((id, addresses(&self.stacks, id)?))).collect();
        sampled.lost = taken_lost(&self.lost)?;
        let stages = match stages(&stacks) {
            Ok(stages) => stages,
            Err(reason) => {
                sampled.refused = Some(reason);
                BTreeMap::new()
            }
        };
        for ((cpu, stack), count) in counts {
            let stage = stages.get(&stack).copied().unwrap_or(ReceiveStage::Other);
            *sampled.cpus.entry(CpuId(cpu)).or_default().entry(stage).or_default() += count;
        }
        Ok(sampled)
    }
}

/// Attaches the sampling program to the clocks of all online CPUs.
pub(crate) fn attach_to_clocks(program: &ProgramMut<'_>) -> Result<Vec<Link>, String> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let attach = |cpu| {
        let event = clock(cpu).map_err(|error| {
            format!("no perf clock on cpu {cpu}: {error} (kernel.perf_event_paranoid?)")
        })?;
        program.attach_perf_event(event).map_err(|error| reason(&error))
    };
    CpuSet::parse_list(&online).unwrap_or_default().iter().map(attach).collect()
}

/// Reads and removes the counts, by CPU and stack.
fn taken(samples: &MapHandle) -> libbpf_rs::Result<Vec<((u32, u32), u64)>> {
    let keys: Vec<Vec<u8>> = samples.keys().collect();
    let mut counts = Vec::new();
    for key in keys {
        let word = |at: usize| {
            key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
        };
        let count = samples
            .lookup_and_delete(&key)?
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_ne_bytes);
        if let (Some(cpu), Some(stack), Some(count)) =
            (word(layout::WHERE_CPU), word(layout::WHERE_STACK), count)
        {
            counts.push(((cpu, stack), count));
        }
    }
    Ok(counts)
}

/// Reads and removes a stack, innermost address first.
fn addresses(stacks: &MapHandle, id: u32) -> Option<Vec<u64>> {
    let bytes = stacks.lookup(&id.to_ne_bytes(), MapFlags::ANY).ok()??;
    let _ = stacks.delete(&id.to_ne_bytes());
    let words =
        bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes);
    Some(words.take_while(|address| *address != 0).collect())
}

fn taken_lost(lost: &MapHandle) -> libbpf_rs::Result<u64> {
    let zero = 0_u32.to_ne_bytes();
    let value = lost.lookup(&zero, MapFlags::ANY)?;
    lost.update(&zero, &0_u64.to_ne_bytes(), MapFlags::ANY)?;
    Ok(value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes))
}

/// The stage of each stack, found by the names of kernel functions.
fn stages(stacks: &BTreeMap<u32, Vec<u64>>) -> Result<BTreeMap<u32, ReceiveStage>, String> {
    let wanted: BTreeSet<u64> = stacks.values().flatten().copied().collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| format!("cannot read /proc/kallsyms: {error}"))?;
    let functions = kallsyms::functions(&text, &wanted).ok_or(
        "the kernel shows no addresses in /proc/kallsyms: needs CAP_SYSLOG, \
             or kernel.kptr_restrict below 2",
    )?;
    let stage =
        |stack: &Vec<u64>| stage_of(stack.iter().filter_map(|address| functions.get(address)));
    Ok(stacks.iter().map(|(id, stack)| (*id, stage(stack))).collect())
}

/// Opens perf's cpu-clock of one CPU for all tasks. The caller closes it.
fn clock(cpu: CpuId) -> io::Result<i32> {
    let mut attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_freq = u64::from(SAMPLES_PER_S);
    attributes.set_freq(1);
    attributes.set_exclude_user(1);
    let cpu = i32::try_from(cpu.0).map_err(io::Error::other)?;
    let (pid, group, flags) = (-1, -1, libbpf_sys::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the kernel reads `size` bytes of the attributes, which outlive the call, and keeps no
    // reference.
    #[allow(unsafe_code)]
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, cpu, group, flags)
    };
    if fd < 0 {
        Err(io::Error::last_os_error())
    } else {
        i32::try_from(fd).map_err(io::Error::other)
    }
}
