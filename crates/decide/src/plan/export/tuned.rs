//! A tuned profile: plugins `sysctl`, `sysfs`, `net` and `irq` (tuned 2.20 does not have `irq` yet,
//! later versions do).
//!
//! tuned saves the old values itself and restores them when the profile is unloaded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netsilo_model::change::{Location, Target, Value};
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::plan::contents::Plan;
use crate::plan::export::file::{ExportedFile, add_line, is_plain, one_line};
use crate::plan::export::interrupts::interrupts;

/// Builds the profile's `tuned.conf`.
pub fn tuned(plan: &Plan) -> ExportedFile {
    let mut text = "# Written by `netsilo export tuned`: /etc/tuned/netsilo/tuned.conf\n\
        # (or the folder where your tuned reads its profiles).\n\
        [main]\n\
        summary=Where network receive work is processed, by netsilo\n\
        # Name the profile that is active now, to keep its settings:\n\
        # include=throughput-performance\n"
        .to_owned();
    for (section, lines) in [("sysctl", sysctl(plan)), ("sysfs", sysfs(plan))] {
        if !lines.is_empty() {
            let _ = write!(text, "\n[{section}]\n{lines}");
        }
    }
    for (name, features) in offloads(plan) {
        let features = features.join(" ");
        if is_plain(name) && features.split(' ').all(is_plain) {
            let _ = write!(text, "\n[net_{name}]\ntype=net\ndevices={name}\nfeatures={features}\n");
        } else {
            text.push('\n');
            leave_out(&mut text, &format!("{name} {features}"));
        }
    }
    for change in plan.changes.iter().filter(|change| is_left_out(&change.target)) {
        text.push('\n');
        leave_out(&mut text, &change.target.to_string());
    }
    text.push_str(&irqs(plan));
    let threads: Vec<&str> =
        plan.changes.iter().filter_map(|change| kthread(&change.target)).collect();
    if !threads.is_empty() {
        let what = "not expressible here, their names change with each reset: kthreads";
        text.push('\n');
        add_line(&mut text, &format!("# {what} {}", threads.join(", ")));
    }
    ExportedFile { name: "tuned.conf".into(), text, executable: false }
}

/// A setting. tuned would expand variables and call functions in it (`${f:exec:...}`).
fn setting(lines: &mut String, key: &str, value: &str) {
    let plain_key = key.split('/').all(|name| name.is_empty() || name == "*" || is_plain(name));
    if plain_key && value.split([' ', ',']).all(|word| word.is_empty() || is_plain(word)) {
        let _ = writeln!(lines, "{key}={value}");
    } else {
        leave_out(lines, &format!("{key}={value}"));
    }
}

fn leave_out(text: &mut String, what: &str) {
    add_line(text, &format!("# left out, use `netsilo export script` for it: {what}"));
}

/// Offload settings (`rx-gro off`) by netdev: a section may appear only once.
fn offloads(plan: &Plan) -> BTreeMap<&str, Vec<String>> {
    let mut offloads: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for change in &plan.changes {
        if let Target::Offload(knob) = &change.target {
            let feature = format!("{} {}", knob.feature, change.new);
            offloads.entry(&knob.netdev.name).or_default().push(feature);
        }
    }
    offloads
}

fn sysctl(plan: &Plan) -> String {
    let mut lines = String::new();
    for change in &plan.changes {
        let Location::File(path) = change.target.location() else { continue };
        let Some(path) = path.strip_prefix("/proc/sys/") else { continue };
        let name = path.replace('/', ".");
        setting(&mut lines, &name, &change.settled_text());
    }
    lines
}

/// Sysfs files of queues and netdevs, by device path if known, so that they hold under any name.
fn sysfs(plan: &Plan) -> String {
    let mut lines = String::new();
    for change in &plan.changes {
        let Location::Netdev { netdev, file } = change.target.location() else { continue };
        setting(&mut lines, &format!("{}/{file}", folder(netdev)), &change.settled_text());
    }
    lines
}

fn folder(netdev: &NetdevIdentity) -> String {
    match &netdev.device_path {
        Some(path) => format!("/sys{path}/net/*"),
        None => format!("/sys/class/net/{}", netdev.name),
    }
}

/// One plugin instance per interrupt: tuned knows interrupts by number only.
fn irqs(plan: &Plan) -> String {
    let default =
        plan.changes.iter().find(|change| matches!(change.target, Target::DefaultSmpAffinity(_)));
    let interrupts = interrupts(plan);
    let mut text = String::new();
    if default.is_none() && interrupts.is_empty() {
        return text;
    }
    text.push_str(
        "\n# Plugin irq, by number: export this file again after a change of driver or queue\n\
         # count, and after a boot that numbers interrupts differently. A profile that uses\n\
         # plugin scheduler needs irq_process=false there.\n",
    );
    if let Some((cpus, change)) = default.and_then(|it| Some((cpus_of(&it.new)?, it))) {
        let _ = writeln!(
            text,
            "# {}\n[irq_default]\ntype=irq\ndevices=DEFAULT\naffinity={cpus}",
            one_line(&change.reason)
        );
    }
    for it in interrupts {
        let (irq, cpus) = (it.irq, it.cpus);
        add_line(&mut text, &format!("# {}: {}", it.action, one_line(it.why)));
        let _ = writeln!(text, "[irq_{irq}]\ntype=irq\ndevices=irq{irq}\naffinity={cpus}");
    }
    text
}

fn cpus_of(value: &Value) -> Option<&netsilo_model::machine::cpuset::CpuSet> {
    match value {
        Value::Cpus(cpus) => Some(cpus),
        _ => None,
    }
}

/// ethtool settings that this format does not include.
fn is_left_out(target: &Target) -> bool {
    target.is_of_ethtool() && !matches!(target, Target::Offload(_))
}

fn kthread(target: &Target) -> Option<&str> {
    match target.location() {
        Location::Thread { comm, .. } => comm,
        _ => None,
    }
}
