//! Loads and attaches the eBPF programs, one object per quantity. Explains why a hook cannot run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use libbpf_rs::{
    Iter, Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut, ProgramType,
};
use netsilo_model::snapshot::attribution::{Hook, OTHER_SOCKETS};
use netsilo_model::snapshot::{drops, ip_packets, packet_sockets, runqueue};

use crate::bpf::{cgroup, layout};

macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o.zst"))
    };
}

/// One compiled `bpf/*.bpf.c`, and which of its programs to attach. The others are not loaded.
pub(crate) struct Source {
    /// An ELF object, compressed by `build.rs`.
    object: &'static [u8],
    programs: Vec<Program>,
    /// Whether its table has half the usual number of slots.
    pub(crate) half: bool,
    /// Whether its programs mark reading threads, if [`READERS`] exists.
    marks_readers: bool,
}

struct Program {
    name: &'static str,
    /// The name in [`Hook::quantity`].
    quantity: &'static str,
}

/// The map of reading threads. `bpf/runqueue.bpf.c` creates it; the programs that count reads fill
/// it.
pub(crate) const READERS: &str = "readers";

/// x86 has a tracepoint for each interrupt vector; other architectures have one pair for all.
const IPI_PROGRAMS: &[&str] = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    &[
        "call_function_entry",
        "call_function_exit",
        "call_function_single_entry",
        "call_function_single_exit",
        "reschedule_entry",
        "reschedule_exit",
    ]
} else {
    &["ipi_entry", "ipi_exit"]
};

/// The programs at the start and the end of a reschedule IPI.
const RESCHEDULE_PROGRAMS: [&str; 2] = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    ["reschedule_entry", "reschedule_exit"]
} else {
    ["ipi_entry", "ipi_exit"]
};

impl Source {
    pub(crate) fn polls() -> Self {
        Self::new(object!("polls"), "napi polls", &["napi_poll"])
    }

    pub(crate) fn tcp() -> Self {
        let programs = &["tcp_begins", "tcp_ends", "tcp_read"];
        Self { marks_readers: true, ..Self::new(object!("tcp"), "tcp bytes", programs) }
    }

    pub(crate) fn copied() -> Self {
        let source = Self::new(object!("copied"), OTHER_SOCKETS, &["copied_read"]);
        Self { marks_readers: true, ..source }
    }

    /// The variants of `bpf/udp.bpf.c` in order of preference; the first that attaches completely
    /// is used.
    pub(crate) fn udp(only_tracepoints: bool) -> Vec<Self> {
        let variant = |programs| Self {
            marks_readers: true,
            ..Self::new(object!("udp"), "udp bytes", programs)
        };
        let mut ladder = Vec::new();
        if !only_tracepoints {
            ladder.push(variant(&["udp_read", "udp_queued"]));
        }
        if !only_tracepoints && cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            let kprobes = variant(&["udp_read_kprobe", "udp_queued_kprobe"]);
            ladder.insert(if preemptible() { 0 } else { 1 }, kprobes);
        }
        ladder.push(variant(&["udp_read_length", "udp_arrives"]));
        ladder.push(variant(&["udp_read_length"]));
        ladder
    }

    pub(crate) fn flows() -> Self {
        Self::new(object!("flows"), "flows behind veth", &["flow_enters"])
    }

    pub(crate) fn arrive() -> Self {
        Self::new(object!("arrive"), "flows by rx queue", &["flow_arrives"])
    }

    /// The variants of `bpf/drops.bpf.c`, the newest kernel's first.
    pub(crate) fn drops() -> Vec<Self> {
        let variant = |program| Self {
            half: true,
            ..Self::new(object!("drops"), drops::QUANTITY, &[program])
        };
        vec![variant("drop_of_socket"), variant("drop_with_reason"), variant("drop")]
    }

    pub(crate) fn ip_packets() -> Self {
        let programs = &["packet_enters", "packet_leaves"];
        Self::new(object!("ip_packets"), ip_packets::QUANTITY, programs)
    }

    pub(crate) fn packet_sockets() -> Self {
        Self::new(object!("packet_sockets"), packet_sockets::QUANTITY, &["packet_sockets"])
    }

    /// The variants of `bpf/time.bpf.c`: with the list of NAPIs that each CPU has to poll, and for
    /// kernels that do not let a program read it.
    pub(crate) fn time() -> [Self; 2] {
        let variant = |programs| {
            let mut source =
                Self::new(object!("time"), "softirq time", &["softirq_entry", "softirq_exit"]);
            source.add("hardirq time", programs);
            source.add("ipi time", IPI_PROGRAMS);
            source
        };
        [
            variant(&["irq_handler_entry", "irq_handler_exit"]),
            variant(&["irq_entry_only", "irq_exit_only", "net_rx_raised"]),
        ]
    }

    pub(crate) fn forward() -> Self {
        let programs = &["forward_enters", "forward_leaves"];
        Self { half: true, ..Self::new(object!("forward"), "forwarded packets", programs) }
    }

    /// Needs the state that `time` keeps. `stages.rs` attaches it.
    pub(crate) fn stages() -> Self {
        Self::new(object!("stages"), "stages", &["tick"])
    }

    /// Needs the state that `time` keeps. The second variant does not report which wakeups found
    /// the CPU idle.
    pub(crate) fn wakeups() -> Vec<Self> {
        let variant =
            |program| Self { half: true, ..Self::new(object!("wakeups"), "wakeups", &[program]) };
        vec![variant("waking"), variant("waking_only")]
    }

    pub(crate) fn runqueue() -> Self {
        Self::new(object!("runqueue"), runqueue::QUANTITY, &["reader_wakes", "reader_runs"])
    }

    fn new(object: &'static [u8], quantity: &'static str, programs: &[&'static str]) -> Self {
        let mut source = Self { object, programs: Vec::new(), half: false, marks_readers: false };
        source.add(quantity, programs);
        source
    }

    fn add(&mut self, quantity: &'static str, programs: &[&'static str]) {
        self.programs.extend(programs.iter().map(|name| Program { name, quantity }));
    }

    /// All hooks, each refused for this reason.
    pub(crate) fn refuse(&self, reason: &str) -> Vec<Hook> {
        let refused = Some(reason.to_owned());
        self.programs.iter().map(|program| self.hook(program, refused.clone())).collect()
    }

    fn names(&self) -> Vec<&'static str> {
        self.programs.iter().map(|program| program.name).collect()
    }

    fn hook(&self, program: &Program, refused: Option<String>) -> Hook {
        let section = open(self).ok().and_then(|object| section_of(&object, program.name));
        let hook = section.unwrap_or_else(|| program.name.to_owned());
        Hook { quantity: program.quantity.to_owned(), hook, refused }
    }
}

/// What every object needs to be loaded.
pub(crate) struct LoadContext {
    /// Maps shared between programs and user space, by name.
    pub(crate) maps: BTreeMap<&'static str, MapHandle>,
    /// Number of possible CPUs: the highest number + 1.
    pub(crate) cpus: u32,
    /// Slots per CPU of a full table.
    pub(crate) slots: u32,
    /// How many events of each kind a CPU examines in each tick before it starts to sample
    /// (`bpf/sample.h`).
    pub(crate) quota: u32,
    /// The same for dropped packets, in their longer tick.
    pub(crate) quota_of_drops: u32,
}

/// A loaded object with the state of each of its hooks. Dropping it detaches the programs.
pub(crate) struct Loaded {
    pub(crate) hooks: Vec<Hook>,
    programs: Vec<&'static str>,
    /// Declared before `object`, because links must be dropped first.
    links: Vec<Link>,
    object: Option<Object>,
}

impl Loaded {
    /// Stands in for a source that is not loaded.
    pub(crate) fn refused(source: &Source, reason: &str) -> Self {
        nothing(source, reason)
    }

    /// Whether this program is attached.
    pub(crate) fn runs(&self, program: &str) -> bool {
        let hooks = self.programs.iter().zip(&self.hooks);
        hooks.into_iter().any(|(name, hook)| *name == program && hook.refused.is_none())
    }

    /// Whether reschedule IPIs are counted and timed.
    pub(crate) fn counts_reschedules(&self) -> bool {
        RESCHEDULE_PROGRAMS.iter().all(|program| self.runs(program))
    }

    /// Whether it counts dropped packets.
    pub(crate) fn counts_drops(&self) -> bool {
        self.hooks.iter().any(|hook| hook.quantity == drops::QUANTITY)
    }

    /// Whether every hook is attached.
    pub(crate) fn complete(&self) -> bool {
        self.hooks.iter().all(|hook| hook.refused.is_none())
    }

    /// What the iterator that is attached prints; nothing if it was refused.
    pub(crate) fn iterate(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if let Some(link) = self.links.first() {
            let mut iterator = Iter::new(link).map_err(io::Error::other)?;
            iterator.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// A map that the object created.
    pub(crate) fn map(&self, name: &str) -> Option<MapHandle> {
        let map = self.object.iter().flat_map(Object::maps).find(|map| map.name() == name)?;
        MapHandle::try_from(&map).ok()
    }

    /// Attaches each program that was not refused.
    pub(crate) fn attach(&mut self) {
        for (name, hook) in
            self.programs.iter().zip(&mut self.hooks).filter(|(_, hook)| hook.refused.is_none())
        {
            let program = self
                .object
                .iter()
                .flat_map(Object::progs_mut)
                .find(|program| program.name() == *name);
            match program.map(|program| attach(&program)) {
                Some(Ok(link)) => self.links.push(link),
                Some(Err(reason)) => hook.refused = Some(reason),
                None => {}
            }
        }
    }

    /// Whether any program is attached.
    pub(crate) fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Detaches all programs; they stay loaded in the kernel.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }

    /// Events that our programs missed because they interrupted the same program on that CPU.
    pub(crate) fn missed(&self) -> u64 {
        self.infos().map(|info| info.recursion_misses).sum()
    }

    /// Nanoseconds that our programs ran, while the kernel kept statistics.
    pub(crate) fn run_ns(&self) -> u64 {
        self.infos().map(|info| info.run_time_ns).sum()
    }

    fn infos(&self) -> impl Iterator<Item = libbpf_sys::bpf_prog_info> {
        let programs = self.object.iter().flat_map(Object::progs);
        programs.filter(|program| program.autoload()).filter_map(|program| info(program.as_fd()))
    }
}

/// Loads and attaches those programs of a source that the kernel accepts.
pub(crate) fn load(source: &Source, context: &LoadContext) -> Loaded {
    match try_load(source, &source.names(), context) {
        Ok(object) => attached(source, object, BTreeMap::new()),
        Err(reason) if source.programs.len() == 1 => nothing(source, &reason),
        Err(_) => load_accepted(source, context),
    }
}

/// Loads all of a source's programs without attaching them.
pub(crate) fn loaded_object(source: &Source, context: &LoadContext) -> Result<Object, String> {
    try_load(source, &source.names(), context)
}

/// Uses the first source that attaches completely. Earlier ones contribute only their reasons.
pub(crate) fn load_first(ladder: &[Source], context: &LoadContext) -> Vec<Loaded> {
    let mut tried = Vec::new();
    for source in ladder {
        match try_load(source, &source.names(), context) {
            Ok(object) => {
                let loaded = attached(source, object, BTreeMap::new());
                if loaded.complete() {
                    tried.push(loaded);
                    break;
                }
                let reason = loaded.hooks.into_iter().find_map(|hook| hook.refused);
                tried.push(nothing(source, &reason.unwrap_or_default()));
            }
            Err(reason) => tried.push(nothing(source, &reason)),
        }
    }
    tried
}

fn attached(
    source: &Source,
    object: Object,
    mut refused: BTreeMap<&'static str, String>,
) -> Loaded {
    let hooks = source
        .programs
        .iter()
        .map(|program| source.hook(program, refused.remove(program.name)))
        .collect();
    let mut loaded =
        Loaded { hooks, programs: source.names(), links: Vec::new(), object: Some(object) };
    loaded.attach();
    loaded
}

/// Attaches a program to its hook; a program of cgroups to the root of cgroup v2, next to others.
fn attach(program: &ProgramMut<'_>) -> Result<Link, String> {
    let link = if program.prog_type() == ProgramType::CgroupSkb {
        let root = cgroup::root().ok_or("cgroup v2 is not mounted")?;
        program.attach_cgroup(root.as_raw_fd())
    } else {
        program.attach()
    };
    link.map_err(|error| reason(&error))
}

fn nothing(source: &Source, reason: &str) -> Loaded {
    Loaded { hooks: source.refuse(reason), programs: Vec::new(), links: Vec::new(), object: None }
}

/// Loads the programs that the kernel accepts.
///
/// One refused program makes the load of its whole object fail. So each program is tried alone,
/// then the accepted ones are loaded together.
fn load_accepted(source: &Source, context: &LoadContext) -> Loaded {
    let mut refused = BTreeMap::new();
    for name in source.names() {
        if let Err(reason) = try_load(source, &[name], context) {
            refused.insert(name, reason);
        }
    }
    let taken: Vec<_> =
        source.names().into_iter().filter(|name| !refused.contains_key(name)).collect();
    match try_load(source, &taken, context) {
        Ok(object) => attached(source, object, refused),
        Err(reason) => nothing(source, &reason),
    }
}

fn info(program: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut bytes = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `bytes` into `info`, and nothing through its pointers,
    // whose lengths are 0.
    #[allow(unsafe_code)]
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut bytes) }
            != 0;
    (!failed).then_some(info)
}

fn open(source: &Source) -> Result<OpenObject, String> {
    let object = zstd::decode_all(source.object)
        .map_err(|error| format!("cannot unpack the program's object: {error}"))?;
    // libelf requires an alignment of 8
    let mut aligned = vec![0; object.len() + 8];
    let start = aligned.as_ptr().align_offset(8);
    let aligned = &mut aligned[start..start + object.len()];
    aligned.copy_from_slice(&object);
    let object = ObjectBuilder::default().open_memory(aligned);
    object.map_err(|error| format!("cannot parse the program's object: {error}"))
}

fn section_of(object: &OpenObject, name: &str) -> Option<String> {
    let program = object.progs().find(|program| program.name() == name)?;
    Some(program.section().to_string_lossy().into_owned())
}

fn try_load(source: &Source, programs: &[&str], context: &LoadContext) -> Result<Object, String> {
    let mut object = open(source)?;
    for mut program in object.progs_mut() {
        let wanted = programs.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(shared) = context.maps.get(name.as_str()) {
            map.reuse_fd(shared.as_fd())
                .map_err(|error| format!("map {name}: {}", reason(&error)))?;
        } else if name == READERS && source.marks_readers {
            map.set_autocreate(false).map_err(|error| reason(&error))?;
        } else if name.ends_with(".rodata")
            && let Some(constants) = map.initial_value_mut()
        {
            let slots = if source.half { context.slots / 2 } else { context.slots };
            let marks = u32::from(context.maps.contains_key(READERS));
            let mut machine = [0; layout::MACHINE_WORDS];
            machine[layout::MACHINE_CPUS] = context.cpus;
            machine[layout::MACHINE_SLOTS] = slots;
            machine[layout::MACHINE_MARKS] = marks;
            machine[layout::MACHINE_QUOTA] = context.quota;
            machine[layout::MACHINE_DROPS] = context.quota_of_drops;
            let machine = machine.map(u32::to_ne_bytes).concat();
            constants.iter_mut().zip(machine).for_each(|(to, from)| *to = from);
        }
    }
    object.load().map_err(|error| reason(&error))
}

/// Explains the kernel's refusal without errno numbers.
pub(crate) fn reason(error: &libbpf_rs::Error) -> String {
    let text = format!("{error:#}");
    let words = if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
    } else {
        match errno(&text) {
            Some(1) if may_load() => {
                "this kernel forbids this kind of hook, although netsilo has the privilege"
            }
            Some(1) => "no privilege: run as root or with CAP_BPF and CAP_PERFMON",
            Some(13) => "the kernel's verifier refused the program",
            Some(2 | 3) => "this kernel lacks the hook, or a symbol that the program reads",
            Some(22 | 95 | 524) => "this kernel does not allow this kind of hook here",
            Some(16) => "the hook is busy: another tracer holds it exclusively",
            Some(12) => "out of memory",
            _ => "refused by the kernel",
        }
    };
    format!("{words} [{text}]")
}

/// Whether the kernel itself is preemptible. debugfs shows `none voluntary (full) lazy`.
fn preemptible() -> bool {
    let models = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    models.contains("(full)") || models.contains("(lazy)")
}

/// Whether CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON (`include/uapi/linux/capability.h`), are
/// effective.
fn may_load() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective =
        effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(21) || (has(39) && has(38))
}

/// The errno. libbpf-rs keeps it only in its text: `... (os error 22)`.
fn errno(text: &str) -> Option<i32> {
    let (_, after) = text.rsplit_once("(os error ")?;
    after.split(')').next()?.parse().ok()
}
