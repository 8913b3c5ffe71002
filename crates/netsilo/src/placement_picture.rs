//! The picture on the first page of the documentation: where the queues of a machine are processed
//! and read, before and after netsilo's plan, as SVG.
//!
//! `make generate` draws it again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netsilo_decide::plan::{Goal, plan};
use netsilo_decide::report::Report;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::NodeId;
use netsilo_model::synthetic::scene::Scene;

use crate::current::assert_current;
use crate::views::units::{count, percent};

/// Redis on socket 0, nginx on socket 1, all interrupts on CPU 0.
const MACHINE: &str = include_str!("../../../cases/virtio-all-on-cpu0/before.json");

const STYLE: &str = "text { font: 15px system-ui, 'DejaVu Sans', sans-serif; fill: #24292f } \
    .head { font-weight: 700 } .soft { fill: #57606a } .near { stroke: #14643a } \
    .far { stroke: #b3261e } path { stroke-width: 3 } .reader { fill: none; stroke-width: 3 } \
    .socket { fill: #eef1f4; stroke: #d5dae0 }";

/// Height of a row, and of a panel with its four rows.
const ROW: usize = 40;
const PANEL: usize = 70 + 4 * ROW;

/// Left end of a CPU's column. The second socket is further right.
fn column(cpu: CpuId) -> usize {
    84 + cpu.0 as usize * 46 + if cpu.0 > 3 { 16 } else { 0 }
}

/// Where queues are processed and read, from `top` downwards.
fn panel(
    svg: &mut String,
    top: usize,
    title: &str,
    queues: &[&Silo],
    processed: &BTreeMap<String, CpuId>,
    nodes: &BTreeMap<CpuId, NodeId>,
) {
    let cpus: CpuSet = processed.values().copied().collect();
    let reader = |it: &Silo| *it.consumers[0].cpus.keys().next().unwrap();
    let is_far = |it: &Silo| nodes[&processed[&it.label()]] != nodes[&reader(it)];
    let sum = |all: f64, it: &&Silo| all + it.locality.bytes_per_s;
    let far = queues.iter().filter(|it| is_far(it)).fold(0.0, sum);
    let far = percent(far / queues.iter().fold(0.0, sum));
    let s = if cpus.len() > 1 { "s" } else { "" };
    let _ = write!(
        svg,
        "<text class=\"head\" x=\"12\" y=\"{}\">{title}: {} rx queues on CPU{s} {cpus}</text>\n\
         <text class=\"soft\" x=\"12\" y=\"{}\">{far} of the bytes cross to the other \
         socket</text>\n",
        top + 16,
        queues.len(),
        top + 36
    );
    for (socket, first) in [(0, CpuId(0)), (1, CpuId(4))] {
        let _ = writeln!(
            svg,
            "<rect class=\"socket\" x=\"{}\" y=\"{}\" width=\"184\" height=\"{}\" rx=\"6\"><title>\
             socket {socket}</title></rect>",
            column(first),
            top + 44,
            PANEL - 46
        );
    }
    for cpu in nodes.keys() {
        let _ = writeln!(
            svg,
            "<text class=\"soft\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{cpu}</text>",
            column(*cpu) + 23,
            top + 62
        );
    }
    for (row, queue) in queues.iter().enumerate() {
        let y = top + 78 + row * ROW;
        let (name, class) = (queue.label(), if is_far(queue) { "far" } else { "near" });
        let (from, to) = (column(processed[&name]) + 23, column(reader(queue)) + 23);
        let name = name.split(' ').next_back().unwrap();
        let _ = write!(
            svg,
            "<text x=\"12\" y=\"{}\">{name}</text>\n\
             <path class=\"{class}\" d=\"M{from} {y}H{to}\"/>\n\
             <circle cx=\"{from}\" cy=\"{y}\" r=\"5\"/>\n\
             <circle class=\"reader {class}\" cx=\"{to}\" cy=\"{y}\" r=\"9\"/>\n\
             <text text-anchor=\"middle\" x=\"{to}\" y=\"{}\">{}</text>\n",
            y + 5,
            y + 23,
            queue.consumers[0].comm
        );
    }
}

#[test]
fn the_picture_of_the_first_page_is_current() {
    let scene: Scene = serde_json::from_str(MACHINE).unwrap();
    let (observation, costs) = (scene.observation(), Costs::default());
    let analysis = Analysis::new(&observation, &costs);
    let report = Report::of(&analysis);
    let queues: Vec<&Silo> = report.netdevs.iter().flat_map(|netdev| &netdev.queues).collect();
    let nodes = report.cpus.iter().map(|cpu| (cpu.cpu, cpu.node.unwrap())).collect();
    let before = queues.iter().map(|it| (it.label(), *it.polls.keys().next().unwrap())).collect();
    let plan = plan(&analysis, &Goal::default());
    let placed = plan.placements.iter().filter(|it| !it.is_of_completions());
    let after = placed.map(|it| (it.label.to_string(), it.cpus.single().unwrap())).collect();
    let height = 2 * PANEL + 124;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"480\" \
         viewBox=\"0 0 480 {height}\" role=\"img\">\n\
         <title>Where the packets of four rx queues are processed and read, before and after \
         netsilo apply</title>\n<style>{STYLE}</style>\n\
         <rect width=\"480\" height=\"{height}\" rx=\"8\" fill=\"#fff\"/>\n\
         <text class=\"soft\" x=\"12\" y=\"24\">8 CPUs on 2 sockets, {} packets/s</text>\n",
        count(report.totals.packets_per_s.unwrap())
    );
    panel(&mut svg, 44, "before", &queues, &before, &nodes);
    panel(&mut svg, 56 + PANEL, "after netsilo apply", &queues, &after, &nodes);
    let y = height - 40;
    let _ = write!(
        svg,
        "<circle cx=\"24\" cy=\"{y}\" r=\"5\"/>\n\
         <text x=\"40\" y=\"{}\">processes the packets</text>\n\
         <circle class=\"reader near\" cx=\"224\" cy=\"{y}\" r=\"9\"/>\
         <text x=\"242\" y=\"{}\">reads them, same socket</text>\n\
         <circle class=\"reader far\" cx=\"224\" cy=\"{}\" r=\"9\"/>\
         <text x=\"242\" y=\"{}\">reads them, other socket</text>\n</svg>\n",
        y + 5,
        y + 5,
        y + 24,
        y + 29
    );
    assert_current("docs/pictures/placement.svg", &svg);
}
