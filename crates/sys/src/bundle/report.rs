//! Turns the files of another collector's report into the tree of a sample, as `capture` writes it:
//! kernel files, and answers of ethtool and netlink.
//!
//! The texts are parsed in [`netsilo_model::collection`]. A command that was not recorded, or whose
//! output cannot be parsed, is a gap with the command that adds it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use netsilo_model::collection::links::{Link, links, merged};
use netsilo_model::collection::names::{EthtoolPart, Item, in_file_name, item};
use netsilo_model::collection::{
    cpus, ethtool, grepped, processes, qdiscs, sysctls, uname, whole_lines,
};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::stat::stat;
use netsilo_model::snapshot::ethtool::{Channels, Ethtool, FlowType, Limit};
use netsilo_model::snapshot::host::{CpuStat, Gap, NAPI_SETTINGS, STEERING_MASKS};
use netsilo_model::snapshot::netdev::UNRECORDED;
use serde::Serialize;

use crate::bundle::unpack_report::Files;
use crate::files::error::ReadError;
use crate::files::memory_tree::MemoryTree;
use crate::files::root::join;
use crate::files::tree_facts::{TREE_FACTS, TreeFacts};

/// Files whose last line is wanted whole: a number that was cut is another number.
const COUNTERS: [&str; 5] =
    ["proc/interrupts", "proc/softirqs", "proc/stat", "proc/net/softnet_stat", "proc/net/snmp"];

/// Most files and folders that are made of one report, and most queues of one netdev.
const MOST_MADE: usize = 400_000;
const MOST_QUEUES: u32 = 1024;

/// USER_HZ, the unit of `/proc/stat`.
const TICKS_PER_S: u64 = 100;

/// A sample, and what its report lacks.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) tree: MemoryTree,
    pub(super) gaps: Vec<Gap>,
}

/// Makes the sample of a report; `None` if that has more than [`MOST_MADE`] files.
pub(super) fn sample(files: Files) -> Result<Option<Sample>, ReadError> {
    let mut report = Report { files, gaps: Vec::new(), left: MOST_MADE };
    let items = report.items();
    report.kernel_files(&items);
    for path in COUNTERS {
        let text = report.text(path).filter(|text| !text.is_empty());
        text.map_or(Ok(()), |text| whole_lines(&text).map(drop))
            .map_err(|source| ReadError::Parse { path: path.to_owned(), source })?;
    }
    report.cpus(&items);
    let links = report.links(&items);
    let written = ethtool_files(&items);
    let masters: BTreeSet<&str> =
        links.values().filter_map(|link| link.master.as_deref()).collect();
    for link in links.values() {
        report.netdev(&written, link, masters.contains(link.name.as_str()));
    }
    report.qdiscs(&items, &links);
    report.facts()?;
    report.missing(&items, &links);
    let Report { files, gaps, left } = report;
    Ok((left > 0).then_some(Sample { tree: files.tree, gaps }))
}

/// The files that are known, by path.
type Items = Vec<(String, Item)>;

/// The files with outputs of ethtool, by the netdev as their names write it.
type EthtoolFiles<'a> = BTreeMap<&'a str, Vec<(EthtoolPart, &'a str)>>;

fn ethtool_files(items: &Items) -> EthtoolFiles<'_> {
    let mut files = EthtoolFiles::new();
    for (path, item) in items {
        if let Item::Ethtool(part, written) = item {
            files.entry(written).or_default().push((*part, path));
        }
    }
    files
}

struct Report {
    files: Files,
    gaps: Vec<Gap>,
    /// How many files and folders may still be made. At 0, nothing more is.
    left: usize,
}

impl Report {
    fn gap(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.gaps.push(Gap { what: what.into(), why: why.into() });
    }

    /// What was not recorded, with the command that adds it.
    fn not_recorded(&mut self, what: impl Into<String>, command: &str) {
        self.gap(what, format!("not recorded: {command}"));
    }

    /// The value; if the text cannot be parsed, a gap.
    fn parsed<T>(&mut self, path: &str, parsed: Result<T, impl ToString>) -> Option<T> {
        parsed.map_err(|error| self.gap(path, error.to_string())).ok()
    }

    fn text(&self, path: &str) -> Option<String> {
        let bytes = self.files.tree.file(path).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Adds a kernel file, unless the report has it.
    fn add(&mut self, path: &str, text: impl Into<String>) {
        self.insert(path, MemoryTree::File(text.into().into_bytes().into()));
    }

    fn insert(&mut self, path: &str, new: MemoryTree) {
        let tree = &mut self.files.tree;
        if self.left == 0 || tree.mode(path).is_ok() || tree.link(path).is_ok() {
            return;
        }
        let path = Path::new(path);
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for folder in above.iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            if tree.mode(&folder.to_string_lossy()).is_err() {
                tree.insert(folder, MemoryTree::default());
                self.left = self.left.saturating_sub(1);
            }
        }
        tree.insert(path, new);
        self.left = self.left.saturating_sub(1);
    }

    fn answer(&mut self, name: &str, value: &impl Serialize) {
        if let Ok(json) = serde_json::to_string(&value) {
            self.add(name, json);
        }
    }

    /// The known files in the folders where commands are, and at the top.
    fn items(&self) -> Items {
        let mut paths = Vec::new();
        let names = |folder: &str| -> Vec<String> {
            let entries = self.files.tree.folder(folder).map(|it| it.keys().collect::<Vec<_>>());
            entries.unwrap_or_default().iter().map(|it| it.to_string_lossy().into_owned()).collect()
        };
        paths.extend(names(""));
        for plugin in names("sos_commands") {
            let folder = format!("sos_commands/{plugin}");
            paths.extend(names(&folder).into_iter().map(|name| format!("{folder}/{name}")));
        }
        paths.into_iter().filter_map(|path| Some((path.clone(), item(&path)?))).collect()
    }

    /// The texts of one kind of item.
    fn texts(&self, items: &Items, wanted: &Item) -> Vec<(String, String)> {
        let of = |(path, _): &(String, Item)| Some((path.clone(), self.text(path)?));
        items.iter().filter(|(_, item)| item == wanted).filter_map(of).collect()
    }

    /// Kernel files that have another name in the report, or that a command printed.
    fn kernel_files(&mut self, items: &Items) {
        for (path, item) in items {
            if let (Item::Kernel(kernel), Some(text)) = (item, self.text(path)) {
                // the command `uptime` prints words
                let is_command = kernel == "proc/uptime" && text.contains("up");
                if !is_command {
                    self.add(kernel, text);
                }
            }
        }
        self.printed(items, &Item::Grepped, grepped);
        self.printed(items, &Item::Sysctl, sysctls);
        self.printed(items, &Item::Processes, processes);
        for (_, text) in self.texts(items, &Item::Hostname) {
            self.add("proc/sys/kernel/hostname", text);
        }
        self.printed(items, &Item::Uname, uname);
    }

    /// The kernel files that a command printed in its own words.
    fn printed(&mut self, items: &Items, wanted: &Item, files: fn(&str) -> Vec<(String, String)>) {
        for (path, text) in self.texts(items, wanted) {
            let whole = whole_lines(&text).map(|_| files(&text));
            let known = self.parsed(&path, whole).unwrap_or_default().into_iter();
            let is_read = |path: &str| matches!(item(path), Some(Item::Kernel(it)) if it == path);
            known.filter(|(path, _)| is_read(path)).for_each(|(path, text)| self.add(&path, text));
        }
    }

    /// CPUs and nodes that the report has no kernel files of.
    fn cpus(&mut self, items: &Items) {
        self.printed(items, &Item::Lscpu, cpus::lscpu);
        self.printed(items, &Item::Numactl, cpus::numactl);
        const CPUS: &str = "sys/devices/system/cpu";
        let counted = self.text("proc/stat").and_then(|text| stat(&text).ok());
        let counted: Option<CpuSet> = counted.map(|cpus| cpus.into_keys().collect());
        let of_table = self.text("proc/interrupts").map(|text| {
            let header = text.lines().next().unwrap_or_default();
            let cpu = |word: &str| word.strip_prefix("CPU")?.parse().ok();
            header.split_ascii_whitespace().filter_map(cpu).map(CpuId).collect()
        });
        if let Some(cpus) = counted.or(of_table).filter(|cpus: &CpuSet| !cpus.is_empty()) {
            self.add(&format!("{CPUS}/online"), format!("{cpus}\n"));
        }
        let online = self.text(&format!("{CPUS}/online")).unwrap_or_default();
        self.add(&format!("{CPUS}/present"), online);
        if self.files.tree.folder(&format!("{CPUS}/cpu0/topology")).is_err() {
            self.not_recorded("which CPUs share a core", "lscpu -e");
        }
        if self.files.tree.folder(&format!("{CPUS}/cpu0/cache")).is_err() {
            self.not_recorded("which CPUs share a cache", "lscpu -e");
        }
    }

    fn links(&mut self, items: &Items) -> BTreeMap<u32, Link> {
        let mut outputs = Vec::new();
        for (path, text) in self.texts(items, &Item::Links) {
            outputs.extend(self.parsed(&path, links(&text)));
        }
        let links = merged(outputs);
        if links.is_empty() {
            self.not_recorded("netdevs", "ip -s -s -d link");
        }
        links
    }

    /// The folder, device, queues and driver's answers of a netdev.
    fn netdev(&mut self, written: &EthtoolFiles<'_>, link: &Link, has_ports: bool) {
        let name = &link.name;
        let (known, missing) = self.ethtool(written, name);
        let dir = self.folder_of(link, &known);
        for (file, text) in link.files() {
            self.add(&format!("{dir}/{file}"), text);
        }
        if let Some(master) = &link.master {
            self.insert(&format!("{dir}/master"), MemoryTree::Link(format!("../{master}").into()));
        }
        let is_software = dir.starts_with("sys/devices/virtual/");
        let channels = known.channels.value();
        let count = |direction: fn(&Channels) -> [Option<Limit>; 2]| {
            let limits = direction(channels?).into_iter().flatten();
            Some(limits.map(|limit| limit.current).sum::<u32>()).filter(|sum| *sum > 0)
        };
        // of allocated queues the first is in use, and without a driver the others rarely are
        let allocated =
            |count: Option<u32>| count.filter(|count| is_software || *count == 1).map(|_| 1);
        let rx = count(|it| [it.rx, it.combined])
            .or_else(|| known.rx_rings.value().copied())
            .or_else(|| allocated(link.numrxqueues));
        let tx = count(|it| [it.tx, it.combined]).or_else(|| allocated(link.numtxqueues));
        for (direction, count) in [("rx", rx), ("tx", tx)] {
            match count {
                // more than any netdev has: the text is garbled
                Some(count) if count <= MOST_QUEUES => (0..count).for_each(|queue| {
                    self.insert(
                        &format!("{dir}/queues/{direction}-{queue}"),
                        MemoryTree::default(),
                    );
                }),
                _ if self.files.tree.folder(&format!("{dir}/queues")).is_err() => {
                    let command = EthtoolPart::Channels.command(name);
                    self.not_recorded(format!("{direction} queues of {name}"), &command);
                }
                _ => {}
            }
        }
        if !is_software && !has_ports {
            self.missing_of(name, &missing, rx);
        }
        self.answer(&format!("ethtool/{name}.json"), &Reading::Value(known));
    }

    /// Names the commands that would add what is not known of a NIC.
    fn missing_of(&mut self, name: &str, missing: &[EthtoolPart], rx: Option<u32>) {
        if rx != Some(1) && missing.contains(&EthtoolPart::Rss) {
            let command = EthtoolPart::Rss.command(name);
            self.not_recorded(format!("RSS indirection table of {name}"), &command);
        }
        let others = missing.iter().filter(|part| **part != EthtoolPart::Rss);
        let commands: Vec<String> = others.map(|part| part.command(name)).collect();
        if !commands.is_empty() {
            self.not_recorded(format!("parts of ethtool of {name}"), &commands.join("; "));
        }
    }

    /// What the recorded parts of ethtool say of a netdev, and the parts that were not recorded.
    fn ethtool(&mut self, written: &EthtoolFiles<'_>, name: &str) -> (Ethtool, Vec<EthtoolPart>) {
        let mut known = Ethtool::unavailable("not recorded");
        for part in EthtoolPart::ALL {
            let why = format!("not recorded: {}", part.command(name));
            ethtool::set_absent(&mut known, part, why);
        }
        let of_flow = |flow: FlowType| {
            let why = format!("not recorded: ethtool -n {name} rx-flow-hash {flow}");
            (flow, Reading::Absent(why))
        };
        known.flow_hash = FlowType::ALL.map(of_flow).into();
        let mut missing = EthtoolPart::ALL.to_vec();
        let names = BTreeSet::from([name.to_owned(), in_file_name(name)]);
        let files = names.iter().filter_map(|name| written.get(name.as_str())).flatten();
        for (part, path) in files {
            if let Some(text) = self.text(path) {
                let added = ethtool::add(&mut known, *part, &text);
                self.parsed(path, added);
                missing.retain(|it| it != part);
            }
        }
        (known, missing)
    }

    /// The folder of a netdev below `sys/devices`. Makes the links to it and to its device.
    fn folder_of(&mut self, link: &Link, known: &Ethtool) -> String {
        let name = &link.name;
        let class = format!("sys/class/net/{name}");
        if let Ok(target) = self.files.tree.link(&class) {
            let target = target.to_string_lossy().into_owned();
            let dir = join(&format!("/{class}"), &target).trim_start_matches('/').to_owned();
            self.device(&dir, name);
            return dir;
        }
        // files of sysfs that were recorded by their path in `class`
        let recorded = match self.files.tree.folder(&class) {
            Ok(_) => self.files.tree.remove(Path::new(&class)),
            Err(_) => None,
        };
        let bus = known.driver.value().and_then(|driver| driver.bus_info.clone());
        let bus = bus.filter(|bus| bus.contains(':') && !bus.contains('/'));
        let parent = link.parentdev.clone().filter(|parent| !parent.contains('/'));
        let device = match (bus, parent) {
            _ if link.software.is_some() => None,
            // a virtio device is below the device of its bus
            (Some(bus), Some(parent)) if bus != parent => Some(format!("{bus}/{parent}")),
            (bus, parent) => bus.or(parent),
        };
        let dir = match device {
            Some(device) => format!("sys{UNRECORDED}{device}/net/{name}"),
            None => format!("sys/devices/virtual/net/{name}"),
        };
        let to = format!("../../{}", dir.trim_start_matches("sys/"));
        self.insert(&class, MemoryTree::Link(to.into()));
        if let Some(recorded) = recorded {
            self.insert(&dir, recorded);
        }
        self.device(&dir, name);
        dir
    }

    /// The link from a netdev to its device, and from a virtio device to its bus.
    fn device(&mut self, dir: &str, name: &str) {
        let device = dir
            .strip_suffix(&format!("/net/{name}"))
            .filter(|_| !dir.starts_with("sys/devices/virtual/"));
        let Some((device, (_, last))) = device.and_then(|it| Some((it, it.rsplit_once('/')?)))
        else {
            return;
        };
        self.insert(&format!("{dir}/device"), MemoryTree::Link(format!("../../../{last}").into()));
        if last.starts_with("virtio") {
            self.insert(&format!("{device}/subsystem"), MemoryTree::Link("virtio".into()));
        }
    }

    fn qdiscs(&mut self, items: &Items, links: &BTreeMap<u32, Link>) {
        let by_name: HashMap<&str, u32> =
            links.values().map(|link| (link.name.as_str(), link.ifindex)).collect();
        let ifindex = |name: &str| by_name.get(name).copied();
        let mut all = None;
        for (path, text) in self.texts(items, &Item::Qdiscs) {
            all = self.parsed(&path, qdiscs::qdiscs(&text, ifindex)).or(all);
        }
        let why = || Reading::Absent("not recorded: tc -s qdisc".to_owned());
        self.answer("rtnetlink/qdiscs.json", &all.map_or_else(why, Reading::Value));
    }

    /// The time, and the modes where they say something.
    fn facts(&mut self) -> Result<(), ReadError> {
        let mut facts = TreeFacts::default();
        let uptime = self
            .text("proc/uptime")
            .and_then(|text| text.split_ascii_whitespace().next()?.parse::<f64>().ok());
        let ticks = |stat: &CpuStat| {
            let CpuStat { user, nice, system, idle, iowait, irq, softirq, steal, .. } = *stat;
            [user, nice, system, idle, iowait, irq, softirq, steal]
                .into_iter()
                .fold(0, u64::saturating_add)
        };
        let cpus = self.text("proc/stat").and_then(|text| stat(&text).ok());
        // a CPU that was offline has counted less
        let most = cpus.and_then(|cpus| cpus.values().map(ticks).max());
        facts.at = match uptime.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            None => {
                most.map(|ticks| Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_S)))
            }
            uptime => uptime,
        };
        if facts.at.is_none_or(|at| at.is_zero()) {
            return Err(ReadError::Missing {
                path: "/proc/stat and /proc/uptime, which tell the time since boot".to_owned(),
            });
        }
        // where every file is read-only, they were copied so
        if self.files.modes.values().any(|mode| mode & 0o200 != 0) {
            let modes = self
                .files
                .modes
                .iter()
                .map(|(path, mode)| (format!("/{}", path.display()), mode & 0o777));
            facts.modes.extend(modes);
        }
        // whether an interrupt can be moved is not known: netsilo assumes so, as before 6.11
        let table = self.text("proc/interrupts").unwrap_or_default();
        for row in
            table.lines().filter_map(|line| line.split_once(':')?.0.trim().parse::<u32>().ok())
        {
            let path = format!("/proc/irq/{row}/smp_affinity_list");
            facts.modes.entry(path).or_insert(0o644);
        }
        self.answer(TREE_FACTS, &facts);
        Ok(())
    }

    /// Names the commands that would add what the whole report lacks.
    fn missing(&mut self, items: &Items, links: &BTreeMap<u32, Link>) {
        let has = |report: &Self, path: &str| report.files.tree.mode(path).is_ok();
        for path in COUNTERS {
            if !has(self, path) {
                self.not_recorded(format!("/{path}"), &format!("cat /{path}"));
            }
        }
        if self.texts(items, &Item::Qdiscs).is_empty() {
            self.not_recorded("queueing disciplines", "tc -s qdisc");
        }
        if !has(self, "proc/irq") {
            self.not_recorded("where interrupts may arrive", "grep -H . /proc/irq/*/*affinity*");
        }
        if !has(self, "proc/sys/net/core/netdev_budget") {
            self.not_recorded("sysctls", "sysctl -a");
        }
        let queue = |link: &Link| format!("sys/class/net/{}/queues/rx-0", link.name);
        let queues: BTreeSet<String> =
            links.values().map(queue).filter(|path| has(self, path)).collect();
        if !queues.is_empty() && !queues.iter().any(|path| has(self, &format!("{path}/rps_cpus"))) {
            let command = "grep -H . /sys/class/net/*/queues/*/{rps_cpus,rps_flow_cnt,xps_cpus}";
            self.not_recorded(STEERING_MASKS, command);
        }
        let threaded = |link: &Link| format!("sys/class/net/{}/threaded", link.name);
        if !links.is_empty() && !links.values().any(|link| has(self, &threaded(link))) {
            let files = "{threaded,napi_defer_hard_irqs,gro_flush_timeout}";
            self.not_recorded(NAPI_SETTINGS, &format!("grep -H . /sys/class/net/*/{files}"));
        }
        let of_processes = |report: &Self, file: &str| {
            let is_there =
                |name: &OsString| has(report, &format!("proc/{}/{file}", name.to_string_lossy()));
            report.files.tree.folder("proc").is_ok_and(|names| names.keys().any(is_there))
        };
        if !of_processes(self, "comm") {
            self.not_recorded("programs that write the same settings (irqbalance)", "ps aux");
        } else if !of_processes(self, "schedstat") {
            let command = "grep -H . /proc/[0-9]*/schedstat";
            self.not_recorded("CPU time of kernel threads that receive", command);
        }
    }
}
