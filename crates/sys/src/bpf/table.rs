//! Tables in which eBPF programs count. User space reads them through a mapping, instead of one
//! syscall per slot.
//!
//! See `bpf/count.h` for the layout.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netsilo_model::machine::cpuset::CpuId;
use rustix::mm::{MapFlags as MmapFlags, ProtFlags};

use crate::bpf::layout::{
    HALVES, KEY_WORDS, LABEL_WORDS, SLOT_KEY, SLOT_LABEL, SLOT_SUM, SLOT_TAG, SLOT_WORDS, SUMS,
};

/// One slot in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cpu: CpuId,
    pub(crate) key: [u64; KEY_WORDS],
    /// The name of the netdev or of the thread group, up to 15 bytes.
    pub(crate) label: String,
    pub(crate) sums: [u64; SUMS],
}

/// An array of slots with two halves: the kernel writes one while user space reads the other.
pub(crate) struct Table {
    map: MapHandle,
    words: Mapped,
    /// For each CPU in each half.
    slots: u32,
}

impl Table {
    /// Creates the array, with `slots` slots (a power of two) for each CPU in each half.
    pub(crate) fn new(cpus: u32, slots: u32) -> libbpf_rs::Result<Self> {
        let (bytes, entries) = ((SLOT_WORDS * 8) as u32, HALVES as u32 * cpus * slots);
        let map = mappable_array("netsilo_slots", bytes, entries)?;
        let words = Mapped::new(map.as_fd(), entries as usize * bytes as usize)?;
        Ok(Self { map, words, slots })
    }

    /// The array, for the programs.
    pub(crate) fn map(&self) -> libbpf_rs::Result<MapHandle> {
        MapHandle::try_from(&self.map)
    }

    /// Reads and clears the counts of a half that no program uses any more ([`Turn::next`],
    /// [`Turn::wait`]).
    pub(crate) fn drain(&mut self, half: usize) -> Vec<Entry> {
        let words = self.words.words();
        let words = &words[half * words.len() / HALVES..][..words.len() / HALVES];
        let mut entries = Vec::new();
        for (index, slot) in words.chunks_exact(SLOT_WORDS).enumerate() {
            if slot[SLOT_TAG].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let word = |i: usize| slot[i].swap(0, Ordering::Relaxed);
            entries.push(Entry {
                cpu: CpuId(index as u32 / self.slots),
                key: std::array::from_fn(|i| word(SLOT_KEY + i)),
                label: text(std::array::from_fn(|i| word(SLOT_LABEL + i))),
                sums: std::array::from_fn(|i| word(SLOT_SUM + i)),
            });
            slot[SLOT_TAG].store(0, Ordering::Relaxed);
        }
        entries
    }
}

/// Which half of every table the programs write. All tables share one switch, so their counts
/// belong to the same window.
pub(crate) struct Turn {
    map: MapHandle,
    now: Mapped,
    /// An array of one map. No program uses it.
    waits: MapHandle,
}

impl Turn {
    pub(crate) fn new() -> libbpf_rs::Result<Self> {
        let map = mappable_array("netsilo_turn", 8, 1)?;
        let mut options = create_options();
        options.inner_map_fd = map.as_fd().as_raw_fd() as u32;
        let (kind, name) = (MapType::ArrayOfMaps, Some("netsilo_waits"));
        let waits = MapHandle::create(kind, name, 4, 4, 1, &options)?;
        Ok(Self { now: Mapped::new(map.as_fd(), 8)?, map, waits })
    }

    /// The map, by the name that the programs use.
    pub(crate) fn map(&self) -> libbpf_rs::Result<(&'static str, MapHandle)> {
        Ok(("turn", MapHandle::try_from(&self.map)?))
    }

    /// Switches all tables to their other half and returns the half that is full. Programs that are
    /// running now may still write to it ([`Self::wait`]).
    pub(crate) fn next(&self) -> usize {
        (self.now.words()[0].fetch_xor(1, Ordering::SeqCst) & 1) as usize
    }

    /// Waits until every program that is running now has ended. On a busy machine this takes
    /// seconds.
    ///
    /// The kernel waits this way (`synchronize_rcu`) after each update of an array of maps
    /// (`maybe_wait_bpf_programs`, `kernel/bpf/syscall.c`).
    pub(crate) fn wait(&self) -> libbpf_rs::Result<()> {
        let map = self.map.as_fd().as_raw_fd();
        self.waits.update(&0_u32.to_ne_bytes(), &map.to_ne_bytes(), MapFlags::ANY)
    }
}

/// Creates an array map that user space can mmap.
pub(crate) fn mappable_array(
    name: &str,
    value_bytes: u32,
    entries: u32,
) -> libbpf_rs::Result<MapHandle> {
    let mut options = create_options();
    options.map_flags = libbpf_sys::BPF_F_MMAPABLE;
    MapHandle::create(MapType::Array, Some(name), 4, value_bytes, entries, &options)
}

/// Empty options, with the size field set as libbpf requires.
pub(crate) fn create_options() -> libbpf_sys::bpf_map_create_opts {
    libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    }
}

/// Decodes a NUL-terminated name in two words.
fn text(words: [u64; LABEL_WORDS]) -> String {
    let bytes = words.map(u64::to_ne_bytes).concat();
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// A mapped array map, as words. The kernel may change them at any time.
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: only this value owns the mapping, and all accesses are atomic.
#[allow(unsafe_code)]
unsafe impl Send for Mapped {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(crate) fn new(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MmapFlags::SHARED);
        // SAFETY: this is a new mapping at an address that the kernel chooses; only `Drop` unmaps
        // it.
        #[allow(unsafe_code)]
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, map, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, words: bytes / 8 })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long and lives as long as `self`; the kernel
        // may change it, hence the atomics.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.words)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it with this length; no reference into it is left. On failure it
        // stays mapped.
        #[allow(unsafe_code)]
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}
