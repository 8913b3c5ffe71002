//! Loads and attaches the eBPF programs. Explains why a hook cannot run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{
    Iter, Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramMut,
    ProgramType,
};
use netsilo_model::snapshot::attribution::Hook;
use netsilo_model::snapshot::packet_sockets;

use crate::bpf::refusal::reason;
use crate::bpf::sources::{READERS, RESCHEDULES, SOFTIRQS, STAGES, Source};
use crate::bpf::{cgroup, clocks, layout};

/// All programs (`bpf/programs.c`): an ELF object, compressed by `build.rs`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/programs.o.zst"));

/// What programs need to be loaded.
pub(crate) struct LoadContext {
    /// Maps shared between loads and with user space, by name.
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

/// Loaded programs with the state of each of their hooks. Dropping it detaches them.
pub(crate) struct Loaded {
    /// Declared before `object`, because links must be dropped first.
    programs: Vec<Program>,
    object: Option<Object>,
}

/// A program that was to be loaded.
struct Program {
    name: &'static str,
    hook: Hook,
    needs_softirqs: bool,
    /// Empty while it is not attached.
    links: Vec<Link>,
}

/// Loads and attaches the programs of all sources that the kernel accepts, next to those in `all`.
///
/// Usually that is one object. For sources whose programs are accepted but cannot be attached,
/// their next variants are loaded as another one. If libbpf does not name what was refused, each
/// source is loaded alone.
pub(crate) fn load(mut sources: Vec<Source>, context: &mut LoadContext, all: &mut Vec<Loaded>) {
    while !sources.is_empty() {
        let Some(mut loaded) = Loaded::new(&mut sources, context) else {
            sources.drain(..).for_each(|source| load(vec![source], context, all));
            return;
        };
        loaded.attach_or_go_on(&mut sources, all.iter().any(Loaded::knows_softirqs));
        let readers = loaded.map(READERS).filter(|_| loaded.runs("reader_runs"));
        context.maps.extend(readers.map(|readers| (READERS, readers)));
        all.push(loaded);
    }
}

/// The hooks of all sources, each refused for this reason.
pub(crate) fn refuse(sources: &[Source], reason: &str) -> Vec<Hook> {
    let sections = open().map(|object| sections(&object)).unwrap_or_default();
    let all = sources.iter().flat_map(|source| {
        let listed =
            if source.lists_refused { &source.variants[..] } else { &source.variants[..1] };
        listed.iter().copied().flatten().map(|name| Program::new(source, name, &sections))
    });
    let refused = Some(reason.to_owned());
    all.map(|program| Hook { refused: refused.clone(), ..program.hook }).collect()
}

impl Loaded {
    /// Loads without attaching. One refused program makes the load of all fail. So each time, the
    /// program that libbpf names is left out, or its source goes on to its next variant. `None` if
    /// libbpf names none of several sources.
    fn new(sources: &mut [Source], context: &LoadContext) -> Option<Self> {
        let mut refused: BTreeMap<&str, String> = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut replaced: Vec<Program> = Vec::new();
        let object = loop {
            let mut wanted = Vec::new();
            let mut maps = Vec::new();
            for source in &*sources {
                let accepted = source.programs().iter().filter(|it| !refused.contains_key(**it));
                let before = wanted.len();
                wanted.extend(accepted.copied());
                maps.extend(source.maps.iter().filter(|_| wanted.len() > before).copied());
            }
            let failed = match open() {
                Ok(object) => {
                    if names.is_empty() {
                        names = sections(&object);
                    }
                    match try_load(object, &wanted, &maps, context) {
                        Ok(object) => break Some(object),
                        Err(failed) => failed,
                    }
                }
                Err(reason) => Failed { culprit: None, reason },
            };
            if wanted.is_empty() {
                break None;
            }
            let culprit = failed.culprit.unwrap_or_default();
            let blamed = |source: &Source| -> Vec<&str> {
                let own = wanted.iter().filter(|name| source.programs().contains(*name));
                let whole = source.maps.contains(&culprit.as_str());
                own.filter(|name| whole || **name == culprit).copied().collect()
            };
            let at = sources.iter().position(|source| !blamed(source).is_empty());
            let (source, blamed) = match (at, &mut *sources) {
                (Some(at), sources) => {
                    let blamed = blamed(&sources[at]);
                    (&mut sources[at], blamed)
                }
                (None, [only]) => (only, wanted),
                (None, _) => return None,
            };
            if source.variants.len() > 1 {
                replaced.extend(source.next_variant(&failed.reason, &names));
            } else {
                refused.extend(blamed.into_iter().map(|name| (name, failed.reason.clone())));
            }
        };
        let mut programs = Vec::new();
        for source in &*sources {
            let is_own = |program: &mut Program| program.hook.quantity == source.quantity;
            programs.extend(replaced.extract_if(.., is_own));
            for name in source.programs() {
                let mut program = Program::new(source, name, &names);
                program.hook.refused = refused.remove(name);
                programs.push(program);
            }
        }
        Some(Self { programs, object })
    }

    /// Attaches all. If a variant is not attached as a whole, detaches it and goes on to the next
    /// one; keeps the sources of which that is to be loaded.
    fn attach_or_go_on(&mut self, sources: &mut Vec<Source>, softirqs: bool) {
        self.attach(|_| true, softirqs);
        sources.retain_mut(|source| {
            let own = |program: &Program| source.programs().contains(&program.name);
            let failed = self.programs.iter().filter(|program| own(program));
            let failed = failed.filter_map(|program| program.hook.refused.clone()).next();
            let can_go_on = |reason: &String| source.variants.len() > 1 && *reason != NO_SOFTIRQS;
            let Some(reason) = failed.filter(can_go_on) else { return false };
            self.programs.retain_mut(|program| {
                let is_kept = !own(program) || source.lists_refused;
                if own(program) {
                    program.links.clear();
                    program.hook.refused = Some(reason.clone());
                }
                is_kept
            });
            source.variants.remove(0);
            !source.programs().is_empty()
        });
    }

    /// Each hook, with the reason if it was refused.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = &Hook> {
        self.programs.iter().map(|program| &program.hook)
    }

    /// Whether this program is accepted, and attached unless it is detached for now.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.programs.iter().any(|it| it.name == name && it.hook.refused.is_none())
    }

    /// Whether the programs that record which softirq runs are accepted.
    pub(crate) fn knows_softirqs(&self) -> bool {
        SOFTIRQS.iter().all(|program| self.runs(program))
    }

    /// Whether reschedule IPIs are counted and timed.
    pub(crate) fn counts_reschedules(&self) -> bool {
        RESCHEDULES.iter().all(|program| self.runs(program))
    }

    /// What an iterator prints; nothing if it was refused.
    pub(crate) fn iterate(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let program = self.programs.iter().find(|program| program.name == name);
        if let Some(link) = program.and_then(|program| program.links.first()) {
            let mut iterator = Iter::new(link).map_err(io::Error::other)?;
            iterator.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// A map that was created for these programs.
    pub(crate) fn map(&self, name: &str) -> Option<MapHandle> {
        let map = self.object.iter().flat_map(Object::maps).find(|map| map.name() == name)?;
        MapHandle::try_from(&map).ok()
    }

    /// Attaches each program of these quantities that was not refused and is not attached.
    /// `softirqs`: whether others know the softirqs.
    pub(crate) fn attach(&mut self, is_wanted: impl Fn(&str) -> bool, softirqs: bool) {
        for at in 0..self.programs.len() {
            let softirqs = softirqs || self.knows_softirqs();
            let program = &mut self.programs[at];
            if program.hook.refused.is_some()
                || !program.links.is_empty()
                || !is_wanted(&program.hook.quantity)
            {
                continue;
            }
            let mut loaded = self.object.iter().flat_map(Object::progs_mut);
            let Some(loaded) = loaded.find(|it| it.name() == program.name) else { continue };
            let attached = if program.needs_softirqs && !softirqs {
                Err(NO_SOFTIRQS.to_owned())
            } else {
                attach(&loaded)
            };
            match attached {
                Ok(links) => program.links = links,
                Err(reason) => program.hook.refused = Some(reason),
            }
        }
    }

    /// Whether a program of this quantity is attached.
    pub(crate) fn is_attached(&self, quantity: &str) -> bool {
        self.programs.iter().any(|it| it.hook.quantity == quantity && !it.links.is_empty())
    }

    /// Detaches the programs of these quantities; they stay loaded in the kernel.
    pub(crate) fn detach(&mut self, is_meant: impl Fn(&str) -> bool) {
        let meant = self.programs.iter_mut().filter(|it| is_meant(&it.hook.quantity));
        meant.for_each(|program| program.links.clear());
    }

    /// Events that our programs missed because they interrupted the same program on that CPU.
    pub(crate) fn missed(&self) -> u64 {
        let counts_events =
            |quantity: &str| ![STAGES, packet_sockets::QUANTITY].contains(&quantity);
        self.infos(counts_events).map(|info| info.recursion_misses).sum()
    }

    /// Nanoseconds that our programs ran, while the kernel kept statistics.
    pub(crate) fn run_ns(&self) -> u64 {
        self.infos(|_| true).map(|info| info.run_time_ns).sum()
    }

    fn infos(
        &self,
        is_meant: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = libbpf_sys::bpf_prog_info> {
        let programs = self.object.iter().flat_map(Object::progs);
        programs.filter(|program| program.autoload()).filter_map(move |loaded| {
            let known = self.programs.iter().find(|it| loaded.name() == it.name)?;
            if is_meant(&known.hook.quantity) { info(loaded.as_fd()) } else { None }
        })
    }
}

const NO_SOFTIRQS: &str = "needs the softirq hooks, which are refused or not requested";

impl Program {
    fn new(source: &Source, name: &'static str, sections: &BTreeMap<String, String>) -> Self {
        let hook = sections.get(name).cloned().unwrap_or_else(|| name.to_owned());
        let hook = Hook { quantity: source.quantity.to_owned(), hook, refused: None };
        Self { name, hook, needs_softirqs: source.needs_softirqs, links: Vec::new() }
    }
}

impl Source {
    /// Goes on to the next variant. Returns the programs of this one, if they are to be listed.
    fn next_variant(&mut self, reason: &str, sections: &BTreeMap<String, String>) -> Vec<Program> {
        let variant = self.variants.remove(0);
        let listed = variant.iter().filter(|_| self.lists_refused);
        let mut programs: Vec<_> = listed.map(|name| Program::new(self, name, sections)).collect();
        programs.iter_mut().for_each(|it| it.hook.refused = Some(reason.to_owned()));
        programs
    }
}

/// Attaches a program to its hook; a program of cgroups to the root of cgroup v2, next to others;
/// one of perf events to the clock of each CPU.
fn attach(program: &ProgramMut<'_>) -> Result<Vec<Link>, String> {
    let link = match program.prog_type() {
        ProgramType::PerfEvent => return clocks::attach(program),
        ProgramType::CgroupSkb => {
            let root = cgroup::root().ok_or("cgroup v2 is not mounted")?;
            program.attach_cgroup(root.as_raw_fd())
        }
        _ => program.attach(),
    };
    link.map(|link| vec![link]).map_err(|error| reason(&error))
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

fn open() -> Result<OpenObject, String> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, note_culprit)));
    let object = zstd::decode_all(OBJECT)
        .map_err(|error| format!("cannot unpack the programs' object: {error}"))?;
    // libelf requires an alignment of 8
    let mut aligned = vec![0; object.len() + 8];
    let start = aligned.as_ptr().align_offset(8);
    let aligned = &mut aligned[start..start + object.len()];
    aligned.copy_from_slice(&object);
    let object = ObjectBuilder::default().open_memory(aligned);
    object.map_err(|error| format!("cannot parse the programs' object: {error}"))
}

/// What each program is attached to, as its source says it.
fn sections(object: &OpenObject) -> BTreeMap<String, String> {
    let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
    let section = |section: String| match section.as_str() {
        "perf_event" => "perf_event/cpu-clock".to_owned(),
        _ => section,
    };
    object.progs().map(|it| (text(it.name()), section(text(it.section())))).collect()
}

/// Why programs were not loaded.
struct Failed {
    /// The program or map that was refused, if one is the cause.
    culprit: Option<String>,
    reason: String,
}

thread_local! {
    /// The program or map that libbpf complained about last on this thread.
    static CULPRIT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Remembers which program or map a message of libbpf is about: `prog 'NAME': ...`.
fn note_culprit(_: PrintLevel, message: String) {
    let name = ["prog '", "map '"].iter().find_map(|kind| message.split_once(kind));
    if let Some((name, _)) = name.and_then(|(_, rest)| rest.split_once('\'')) {
        CULPRIT.with_borrow_mut(|culprit| *culprit = Some(name.to_owned()));
    }
}

/// Loads these programs and creates these maps.
fn try_load(
    mut object: OpenObject,
    programs: &[&str],
    maps: &[&str],
    context: &LoadContext,
) -> Result<Object, Failed> {
    let failed = |reason| Failed { culprit: None, reason };
    for mut program in object.progs_mut() {
        let wanted = programs.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(shared) = context.maps.get(name.as_str()) {
            map.reuse_fd(shared.as_fd())
                .map_err(|error| failed(format!("map {name}: {}", reason(&error))))?;
        } else if name.ends_with(".rodata") {
            let marks = maps.contains(&READERS) || context.maps.contains_key(READERS);
            let mut machine = [0; layout::MACHINE_WORDS];
            machine[layout::MACHINE_CPUS] = context.cpus;
            machine[layout::MACHINE_SLOTS] = context.slots;
            machine[layout::MACHINE_MARKS] = u32::from(marks);
            machine[layout::MACHINE_QUOTA] = context.quota;
            machine[layout::MACHINE_DROPS] = context.quota_of_drops;
            let machine = machine.map(u32::to_ne_bytes).concat();
            let constants = map.initial_value_mut().into_iter().flatten();
            constants.zip(machine).for_each(|(to, from)| *to = from);
        } else if !maps.contains(&name.as_str()) {
            map.set_autocreate(false).map_err(|error| failed(reason(&error)))?;
        }
    }
    CULPRIT.set(None);
    object.load().map_err(|error| Failed { culprit: CULPRIT.take(), reason: reason(&error) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::bpf::options::Options;

    /// With a path in line info, builds in two folders would differ.
    #[test]
    fn the_object_names_its_sources_without_the_folder_of_the_build() {
        let object = zstd::decode_all(OBJECT).unwrap();
        let has = |text: &str| memchr::memmem::find(&object, text.as_bytes()).is_some();
        assert!(has("./src/bpf/udp.bpf.c"), "line info for the verifier's messages");
        let target = env!("OUT_DIR").split("/build/").next().unwrap();
        for folder in [env!("CARGO_MANIFEST_DIR"), target] {
            assert!(!has(folder), "{folder}");
        }
    }

    /// A program with another name would be reported as attached, a map never be created.
    #[test]
    fn sources_name_the_programs_and_maps_of_the_object() {
        let all = Options {
            stages: true,
            arrivals: true,
            drops: true,
            packet_sockets: true,
            ip_packets: true,
            runqueue: true,
            ..Options::default()
        };
        let mut sources = Source::all(all);
        sources.extend(Source::all(Options { only_tracepoints: true, ..all }));
        sources.extend([Source::flows(), Source::forward(), Source::copied()]);
        let object = open().unwrap();
        let programs: BTreeSet<String> = sections(&object).into_keys().collect();
        let variants = sources.iter().flat_map(|source| &source.variants);
        let named: BTreeSet<String> =
            variants.copied().flatten().map(|name| (*name).to_owned()).collect();
        let left_out: Vec<_> = programs.difference(&named).collect();
        let of_others = if cfg!(target_arch = "x86_64") { 2 } else { 6 };
        assert!(named.is_subset(&programs), "{:?}", named.difference(&programs));
        assert_eq!(left_out.len(), of_others, "IPIs of other architectures: {left_out:?}");
        let maps: Vec<_> = object.maps().map(|map| map.name().to_owned()).collect();
        for name in sources.iter().flat_map(|source| source.maps) {
            assert!(maps.iter().any(|map| map == name), "{name} of {maps:?}");
        }
    }
}
