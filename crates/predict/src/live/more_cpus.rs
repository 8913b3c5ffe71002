//! More CPUs: the threads spread over them, interrupts stay where they are.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{Cpu, Node, Topology};
use netsilo_model::snapshot::attribution::{Attribution, CpuTime};
use netsilo_model::snapshot::host::Snapshot;

use crate::live::supposed::{CannotSuppose, Supposed, in_all, parts};
use crate::live::work::{Shares, Work};

impl Supposed {
    /// Supposes more CPUs: in each socket and cache more cores like those that it has.
    pub(crate) fn more_cpus(&mut self, work: &Work<'_>, count: u32) -> Result<(), CannotSuppose> {
        let topology = &work.analysis.after().topology;
        let each = topology.online.len() as u32;
        if topology.online != CpuSet::first(each) || topology.cpus.len() as u32 != each {
            return Err(CannotSuppose::Offline);
        }
        if count == 0 || !count.is_multiple_of(each) {
            return Err(CannotSuppose::NoMultiple(count, each));
        }
        let copies = count / each;
        if copies == 1 {
            return Ok(());
        }
        let images = |cpu: CpuId| (0..copies).map(move |copy| CpuId(cpu.0 + copy * each));
        let pinned = pinned_shares(&self.observation.attribution);
        let old = self.cpus.clone();
        for (cpu, time) in &old {
            let stays = pinned.get(cpu).copied().unwrap_or(0.0);
            let part = (1.0 - stays) / f64::from(copies);
            for image in images(*cpu) {
                let stays = if image == *cpu { stays } else { 0.0 };
                let new = self.cpus.entry(image).or_default();
                (new.usr, new.sys) = (time.usr * (stays + part), time.sys * (stays + part));
                if let Some(room) = self.room.get(cpu).copied() {
                    self.room.insert(image, room);
                }
            }
        }
        let grown = grown(topology, copies);
        for snapshot in [&mut self.observation.before, &mut self.observation.after] {
            grow(snapshot, &grown, &topology.online);
        }
        spread_readers(&mut self.observation.attribution, &images);
        self.assumed.push(format!(
            "that each socket and cache has {copies} times the cores, that threads which are not \
             pinned spread over all {count} CPUs as they do over {each}, and that interrupts stay"
        ));
        Ok(())
    }
}

/// The share of a CPU's reads that processes do which are pinned.
fn pinned_shares(attribution: &Attribution) -> Shares {
    let mut sums: BTreeMap<CpuId, (f64, f64)> = BTreeMap::new();
    for row in &attribution.consumption {
        let (pinned, all) = sums.entry(row.consumer_cpu).or_default();
        *all += row.bytes as f64;
        if attribution.pinned.contains_key(&row.consumer.tgid) {
            *pinned += row.bytes as f64;
        }
    }
    sums.into_iter().map(|(cpu, (pinned, all))| (cpu, pinned / all.max(1.0))).collect()
}

/// A machine with this many times the cores in each cache and socket.
fn grown(topology: &Topology, copies: u32) -> Topology {
    let each = topology.online.len() as u32;
    let all = |cpus: &CpuSet| in_all(cpus, copies, each);
    let here = |cpus: &CpuSet, copy: u32| -> CpuSet {
        cpus.iter().map(|cpu| CpuId(cpu.0 + copy * each)).collect()
    };
    let images = (topology.cpus.iter()).flat_map(|(id, cpu)| {
        (0..copies).map(move |copy| {
            let image = Cpu {
                siblings: here(&cpu.siblings, copy),
                l2: here(&cpu.l2, copy),
                llc: all(&cpu.llc),
                package: all(&cpu.package),
                ..cpu.clone()
            };
            (CpuId(id.0 + copy * each), image)
        })
    });
    Topology {
        cpus: images.collect(),
        nr_cpu_ids: each * copies,
        online: CpuSet::first(each * copies),
        possible: CpuSet::first(each * copies),
        nodes: (topology.nodes.iter())
            .map(|(id, node)| (*id, Node { cpus: all(&node.cpus), ..node.clone() }))
            .collect(),
        ..topology.clone()
    }
}

/// Puts the new CPUs into a snapshot; kthreads that may run everywhere may do so there, too.
fn grow(snapshot: &mut Snapshot, grown: &Topology, old: &CpuSet) {
    snapshot.topology = grown.clone().into();
    let napis = snapshot.netdevs.iter_mut().flat_map(|netdev| &mut netdev.napis);
    for thread in napis.filter_map(|napi| napi.thread.as_mut()) {
        if old.is_subset(&thread.cpus) {
            thread.cpus = grown.online.clone();
        }
    }
}

/// Spreads readers that are not pinned.
fn spread_readers<I: Iterator<Item = CpuId> + Clone>(
    attribution: &mut Attribution,
    images: &impl Fn(CpuId) -> I,
) {
    let Attribution { consumption, wakeups, pinned, cpu_time, .. } = attribution;
    let is_pinned = |tgid: u32| pinned.contains_key(&tgid);
    for row in std::mem::take(consumption) {
        if is_pinned(row.consumer.tgid) {
            consumption.push(row);
            continue;
        }
        // RFS brings the protocol to the reader.
        let follows = row.protocol_cpu == Some(row.consumer_cpu)
            && row.poll_cpu.is_some()
            && row.poll_cpu != row.protocol_cpu;
        let count = images(row.consumer_cpu).count();
        let shares = parts(row.bytes, count).zip(parts(row.events, count));
        for (cpu, (bytes, events)) in images(row.consumer_cpu).zip(shares) {
            let protocol_cpu = if follows { Some(cpu) } else { row.protocol_cpu };
            let row = row.clone();
            let part = netsilo_model::snapshot::attribution::Consumption {
                consumer_cpu: cpu,
                protocol_cpu,
                bytes,
                events,
                ..row
            };
            consumption.extend((bytes > 0).then_some(part));
        }
    }
    for row in std::mem::take(wakeups) {
        if is_pinned(row.tgid) {
            wakeups.push(row);
            continue;
        }
        let count = images(row.sleeper_cpu).count();
        let shares = images(row.sleeper_cpu).zip(parts(row.count, count));
        wakeups.extend(shares.filter(|(_, count)| *count > 0).map(|(sleeper_cpu, count)| {
            netsilo_model::snapshot::attribution::Wakeup { sleeper_cpu, count, ..row }
        }));
    }
    let measured: Vec<CpuId> = cpu_time.keys().copied().collect();
    for image in measured.into_iter().flat_map(images) {
        cpu_time.entry(image).or_insert_with(CpuTime::default);
    }
}
