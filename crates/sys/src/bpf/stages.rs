//! The counts of `bpf/stages.bpf.c`: where receive work spends its time. perf's cpu-clock samples
//! stacks on each CPU; kallsyms has the names of the functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netsilo_model::derive::stages::stage_of;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::parse::kallsyms;
use netsilo_model::snapshot::stage_samples::{ReceiveStage, StageSamples};

use crate::bpf::clocks::SAMPLES_PER_S;
use crate::bpf::layout;
use crate::bpf::load::Loaded;

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
