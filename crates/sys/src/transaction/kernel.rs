//! The few operations that a transaction needs from a kernel. Tests replace the kernel by one that
//! fails, rounds or dies.
//!
//! Decides nothing: [`crate::transaction::knob`] knows the file, the text, and the meaning of a
//! failure.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use netsilo_model::change::Kind as _;
pub use netsilo_model::change::{Capability, EthtoolSetting};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev_genl::Napi;
use rustix::fs::Access;
use rustix::thread::CapabilitySet;

use crate::clock::since_boot;
use crate::ethtool::set;
use crate::files::root::Root;
use crate::files::writes;
use crate::irqbalance::{FOLDER, Irqbalance};
use crate::read::entrance::Entrance;
use crate::read::netlink::netdev_genl;
use crate::read::netns::{NetnsId, NotEntered};
use crate::transaction::bounded::{Bounded, NoAnswer};
use crate::transaction::scheduler;

/// Where a knob is now, and how it is accessed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KnobAddress {
    /// A file, by its absolute path on a running system (`/proc/irq/27/smp_affinity`).
    File(String),
    /// The CPUs that the thread of this id may run on. The text is a kernel mask.
    Thread(u32),
    /// The scheduling policy, nice value and priority of the thread of this id, as
    /// `policy=0 nice=-5 priority=0` (`sched_getattr`).
    Scheduler(u32),
    /// Whether the NAPI of this id is polled in its own kthread (netlink, 6.17): 0, 1 or 2.
    NapiThreaded(u32),
    /// Whether the irqbalance of this process id leaves any of these interrupts alone: `on`, `off`
    /// (its socket).
    Irqbalance(u32, BTreeSet<Irq>),
    /// A setting of the netdev of this name that only an ioctl can access.
    Ethtool(String, EthtoolSetting),
}

impl KnobAddress {
    /// The name of the netdev that it belongs to, if it belongs to one.
    pub(crate) fn netdev(&self) -> Option<&str> {
        match self {
            Self::File(path) => path.strip_prefix("/sys/class/net/")?.split('/').next(),
            Self::Ethtool(netdev, _) => Some(netdev),
            Self::Thread(_) | Self::Scheduler(_) | Self::NapiThreaded(_) | Self::Irqbalance(..) => {
                None
            }
        }
    }

    /// Whether the kernel may wait for a driver, possibly another one that holds rtnl.
    fn may_block(&self) -> bool {
        match self {
            Self::File(path) => {
                ["/sys/class/net/", "/proc/sys/net/"].iter().any(|folder| path.starts_with(folder))
            }
            Self::Ethtool(..) | Self::NapiThreaded(_) => true,
            // these requests have their own time limit
            Self::Irqbalance(..) => false,
            Self::Thread(_) | Self::Scheduler(_) => false,
        }
    }
}

/// What a transaction needs from a kernel.
pub trait Kernel {
    /// The whole text of a file. Bytes that are not UTF-8, as in a thread's name, are replaced.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Where a symbolic link points to.
    fn read_link(&self, path: &str) -> io::Result<String>;
    /// The names in a directory.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;
    /// The inode number of what a path leads to. Symbolic links are followed.
    fn inode(&self, path: &str) -> io::Result<u64>;
    /// A knob's text, byte for byte.
    fn get(&self, place: &KnobAddress) -> io::Result<String>;
    /// The NAPIs of a netdev that have an id, by id. Fails before 6.8.
    fn napis(&self, ifindex: u32) -> io::Result<Vec<Napi>>;
    /// Writes a knob with a single write. Returns [`NoAnswer`](super::bounded::NoAnswer) if the
    /// kernel does not answer in time.
    fn set(&self, place: &KnobAddress, text: &str) -> io::Result<()>;
    /// Checks whether this process may write a knob. Changes nothing.
    fn may_set(&self, place: &KnobAddress, needs: Capability) -> io::Result<()>;
    /// Time since boot, including suspended time (CLOCK_BOOTTIME). Deadlines use this clock.
    fn now(&self) -> Duration;
    /// Waits for this time.
    fn pause(&self, time: Duration);
    /// The network namespace whose settings these are. `None` before 5.14, and in a directory tree.
    fn netns(&self) -> Option<NetnsId> {
        None
    }
    /// The same kernel with the settings of another network namespace.
    fn within(&self, _: NetnsId) -> Result<Box<dyn Kernel>, NotEntered> {
        Err(NotEntered::Why("a directory tree has no other network namespace".into()))
    }
}

/// A real kernel, or a directory tree that looks like one.
#[derive(Debug, Clone)]
pub struct Live {
    root: Root,
    bounded: Arc<Bounded>,
}

impl Live {
    /// The kernel or the tree under this root.
    pub fn new(root: Root) -> Self {
        Self { root, bounded: Arc::default() }
    }

    fn runs(&self) -> bool {
        self.root.is_live()
    }

    fn put(&self, place: &KnobAddress, text: &str) -> io::Result<()> {
        match place {
            // A missing file is not created. There is one write, because a pseudo-file takes each
            // write as a value.
            KnobAddress::File(path) => {
                let path = self.root.path(path)?;
                let mut options = std::fs::OpenOptions::new();
                let mut file = options.write(true).truncate(true).open(path)?;
                let written = io::Write::write(&mut file, text.as_bytes())?;
                if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
            }
            _ if !self.runs() => Err(not_here(place)),
            KnobAddress::Ethtool(netdev, setting) => set::set(netdev, setting, text),
            KnobAddress::NapiThreaded(napi) => {
                netdev_genl::set_threaded(*napi, text.trim().parse().map_err(io::Error::other)?)
            }
            KnobAddress::Scheduler(tid) => scheduler::set(*tid, text),
            KnobAddress::Irqbalance(pid, irqs) => {
                let on = bool::parse(text).map_err(io::Error::other)?;
                no_answer(Irqbalance::new(FOLDER, *pid, IRQBALANCE).set(irqs, on))
            }
            KnobAddress::Thread(tid) => {
                let cpus = CpuSet::parse_mask(text).map_err(io::Error::other)?;
                set_thread_cpus(*tid, &cpus)
            }
        }
    }

    fn look_up(&self, place: &KnobAddress) -> io::Result<String> {
        match place {
            KnobAddress::File(path) => self.read(path),
            _ if !self.runs() => Err(not_here(place)),
            KnobAddress::Ethtool(netdev, setting) => set::get(netdev, setting),
            KnobAddress::NapiThreaded(napi) => netdev_genl::threaded(*napi),
            KnobAddress::Scheduler(tid) => scheduler::get(*tid),
            KnobAddress::Irqbalance(pid, irqs) => {
                no_answer(Irqbalance::new(FOLDER, *pid, IRQBALANCE).get(irqs))
            }
            KnobAddress::Thread(tid) => allowed_cpus(&self.read(&format!("/proc/{tid}/status"))?),
        }
    }

    /// Does work that may block in a child process, for a limited time.
    fn bounded(
        &self,
        place: &KnobAddress,
        work: impl FnOnce() -> io::Result<String>,
    ) -> io::Result<String> {
        if self.runs() && place.may_block() { self.bounded.call(work) } else { work() }
    }
}

/// How long irqbalance may take to answer a request of a transaction. Up to 1.9.3 it sleeps for a
/// whole interval (10 s by default) after each list.
const IRQBALANCE: Duration = Duration::from_secs(30);

/// A request that was not answered in time may still be carried out.
fn no_answer<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => NoAnswer::within(IRQBALANCE),
        _ => error,
    })
}

/// The error for what a directory tree lacks.
fn not_here(place: &KnobAddress) -> io::Error {
    let what = match place {
        KnobAddress::Thread(_) | KnobAddress::Scheduler(_) | KnobAddress::Irqbalance(..) => {
            "no thread runs under a directory"
        }
        _ => "no driver answers under a directory",
    };
    io::Error::new(io::ErrorKind::Unsupported, what)
}

impl Kernel for Live {
    fn read(&self, path: &str) -> io::Result<String> {
        std::fs::read(self.root.path(path)?)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        Ok(std::fs::read_link(self.root.path(path)?)?.to_string_lossy().into_owned())
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.root.path(path)?)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.root.path(path)?)?.ino())
    }

    fn get(&self, place: &KnobAddress) -> io::Result<String> {
        self.bounded(place, || self.look_up(place))
    }

    fn napis(&self, ifindex: u32) -> io::Result<Vec<Napi>> {
        if self.runs() { netdev_genl::napis_of(ifindex) } else { Ok(Vec::new()) }
    }

    fn set(&self, place: &KnobAddress, text: &str) -> io::Result<()> {
        let done = self.bounded(place, || self.put(place, text).map(|()| String::new())).map(drop);
        if self.runs() {
            writes::add_one();
        }
        done
    }

    fn may_set(&self, place: &KnobAddress, needs: Capability) -> io::Result<()> {
        if let KnobAddress::File(path) = place {
            rustix::fs::access(self.root.path(path)?, Access::WRITE_OK)?;
        }
        let wanted = match needs {
            Capability::None => return Ok(()),
            Capability::NetAdmin => CapabilitySet::NET_ADMIN,
            Capability::SysNice => CapabilitySet::SYS_NICE,
        };
        let held = rustix::thread::capabilities(None)?.effective;
        if !self.runs() || held.contains(wanted) {
            Ok(())
        } else {
            Err(rustix::io::Errno::PERM.into())
        }
    }

    fn now(&self) -> Duration {
        since_boot()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn netns(&self) -> Option<NetnsId> {
        if self.runs() { NetnsId::own(&self.root) } else { None }
    }

    fn within(&self, netns: NetnsId) -> Result<Box<dyn Kernel>, NotEntered> {
        Ok(Box::new(Elsewhere::start(self.clone(), netns)?))
    }
}

type Job = Box<dyn FnOnce(&Live) + Send>;

/// A kernel as a thread in another network namespace sees it. The thread ends with this value.
struct Elsewhere {
    jobs: Sender<Job>,
}

impl Elsewhere {
    /// Starts the thread, which finds and enters the namespace.
    fn start(live: Live, netns: NetnsId) -> Result<Self, NotEntered> {
        let (jobs, all) = channel::<Job>();
        let (answer, entered) = channel();
        let work = move || {
            let result = Entrance::enter_cookie(&live.root, netns);
            let is_there = result.is_ok();
            if answer.send(result).is_ok() && is_there {
                all.iter().for_each(|job| job(&live));
            }
        };
        let failed = |why: &dyn std::fmt::Display| NotEntered::Why(why.to_string());
        std::thread::Builder::new()
            .name("netsilo-netns".into())
            .spawn(work)
            .map_err(|e| failed(&e))?;
        entered.recv().map_err(|e| failed(&e))??;
        Ok(Self { jobs })
    }

    /// Does work in the thread.
    fn there<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Live) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (answer, result) = channel();
        let job = move |live: &Live| drop(answer.send(work(live)));
        self.jobs.send(Box::new(job)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        result.recv().map_err(io::Error::other)?
    }
}

impl Kernel for Elsewhere {
    fn read(&self, path: &str) -> io::Result<String> {
        let path = path.to_owned();
        self.there(move |live| live.read(&path))
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        let path = path.to_owned();
        self.there(move |live| live.read_link(&path))
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let path = path.to_owned();
        self.there(move |live| live.names(&path))
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        let path = path.to_owned();
        self.there(move |live| live.inode(&path))
    }

    fn get(&self, place: &KnobAddress) -> io::Result<String> {
        let place = place.clone();
        self.there(move |live| live.get(&place))
    }

    fn napis(&self, ifindex: u32) -> io::Result<Vec<Napi>> {
        self.there(move |live| live.napis(ifindex))
    }

    fn set(&self, place: &KnobAddress, text: &str) -> io::Result<()> {
        let (place, text) = (place.clone(), text.to_owned());
        self.there(move |live| live.set(&place, &text))
    }

    fn may_set(&self, place: &KnobAddress, needs: Capability) -> io::Result<()> {
        let place = place.clone();
        self.there(move |live| live.may_set(&place, needs))
    }

    fn now(&self) -> Duration {
        since_boot()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The mask in a thread's `status`, with a newline at the end, as in a file.
///
/// `sched_getaffinity` leaves out CPUs that are offline now, so undo would lose them.
pub(crate) fn allowed_cpus(status: &str) -> io::Result<String> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"));
    let mask = mask.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "no Cpus_allowed in its status")
    })?;
    Ok(format!("{}\n", mask.trim()))
}

/// Calls `sched_setaffinity` for any number of CPUs. The wrapper in rustix is limited to 1024.
pub fn set_thread_cpus(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let pid = i32::try_from(tid).map_err(io::Error::other)?;
    let longs = cpus.highest().map_or(1, |cpu| cpu.0 as usize / 64 + 1);
    let mut mask = vec![0u64; longs];
    for cpu in cpus.iter() {
        mask[cpu.0 as usize / 64] |= 1 << (cpu.0 % 64);
    }
    // The kernel's words are unsigned longs. They have the size of ours only on 64-bit machines.
    const { assert!(size_of::<libc::c_ulong>() == size_of::<u64>()) };
    // SAFETY: the kernel reads `longs * 8` bytes, which `mask` holds, and keeps no reference to
    // them.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, longs * 8, mask.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use netsilo_model::machine::cpuset::CpuId;

    use super::*;

    #[test]
    fn the_mask_of_a_thread_is_that_of_its_status() {
        let status =
            "Name:\tnapi/eth0-8193\nCpus_allowed:\t00000000,000000ff\nCpus_allowed_list:\t0-7\n";
        assert_eq!(allowed_cpus(status).unwrap(), "00000000,000000ff\n");
        assert!(allowed_cpus("Name:\tx\n").is_err());
    }

    #[test]
    fn a_thread_of_our_own_moves_and_comes_back_byte_for_byte() {
        let kernel = Live::new(Root::live());
        let place =
            KnobAddress::Thread(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let before = kernel.get(&place).unwrap();
        let first = CpuSet::parse_mask(&before).unwrap().lowest().unwrap();
        kernel.set(&place, &CpuSet::from_cpu(first).to_mask(1)).unwrap();
        assert_eq!(
            CpuSet::parse_mask(&kernel.get(&place).unwrap()).unwrap(),
            CpuSet::from_cpu(first)
        );
        kernel.set(&place, &before).unwrap();
        assert_eq!(kernel.get(&place).unwrap(), before);
        let error = kernel.set(&place, &CpuSet::from_cpu(CpuId(8191)).to_mask(1)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_missing_knob_is_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Live::new(Root::at(dir.path()).unwrap());
        let error =
            kernel.set(&KnobAddress::File("/proc/irq/1/smp_affinity".into()), "1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
