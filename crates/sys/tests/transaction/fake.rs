//! A fake kernel in a directory. Its writes round values as the kernel does, and fail or crash on
//! demand.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsilo_model::change::{Change, NTUPLE_FILTER, Target, Value, knobs, ordered};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::netdev_genl::Napi;
use netsilo_sys::files::root::Root;
use netsilo_sys::irqbalance::Irqbalance;
use netsilo_sys::read::netns::{NetnsId, NotEntered};
use netsilo_sys::transaction::apply::{self, Applied, ApplyError, TransactionOptions};
use netsilo_sys::transaction::bounded::NoAnswer;
use netsilo_sys::transaction::journal::{Journal, JournalError};
use netsilo_sys::transaction::kernel::{Capability, Kernel, KnobAddress, Live};
use netsilo_sys::transaction::record::{Origin, RestoredBy};
use netsilo_sys::transaction::undo::{self, UndoScope, Undone};

use super::remedies;

/// The payload of the unwinding in a simulated crash.
pub(crate) struct Died;

/// When the process that uses a fake kernel crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// By unwinding, before the write of this number.
    Before(usize),
    /// By unwinding, after the write.
    After(usize),
    /// By a real SIGKILL, before the write.
    KillBefore(usize),
    /// By a real SIGKILL, after the write.
    KillAfter(usize),
}

/// The fake kernel.
pub(crate) struct Fake {
    pub(crate) root: PathBuf,
    live: Live,
    /// Writes made so far.
    pub(crate) writes: Cell<usize>,
    /// The writes that fail, with their errno.
    pub(crate) failing: RefCell<BTreeMap<usize, i32>>,
    /// The write that the kernel does not answer.
    pub(crate) unanswered: Cell<Option<usize>>,
    pub(crate) death: Cell<Option<Death>>,
    /// Journal length and knobs just before each write.
    pub(crate) trail: RefCell<Vec<(usize, Knobs)>>,
    pub(crate) recording: Cell<bool>,
    /// What each pause adds to the interrupt counters: irq -> text of per_cpu_count afterwards.
    pub(crate) traffic: RefCell<BTreeMap<u32, String>>,
    /// Whether a driver recreates its queues, interrupts and NAPIs when a knob is written that
    /// may do so.
    pub(crate) resets: Cell<bool>,
    /// How many reads after a write still return the old value, as for an interrupt that is being
    /// moved.
    pub(crate) lag: Cell<u32>,
    lagging: RefCell<Option<(KnobAddress, String, u32)>>,
    clock: Cell<Duration>,
    written: RefCell<Vec<(String, String)>>,
    /// Switches that stay off while another one is off, by their paths, and whether a write then
    /// reports that.
    pub(crate) needs: RefCell<BTreeMap<String, (String, bool)>>,
    /// The network namespace that it shows. All have the same files.
    pub(crate) netns: Cell<Option<NetnsId>>,
    /// The socket of an irqbalance; without one, a file says what it leaves alone.
    pub(crate) irqbalance: RefCell<Option<Irqbalance>>,
    /// Whether it may enter other namespaces, where it then finds that they have ended.
    pub(crate) may_enter: Cell<bool>,
}

/// All knobs' bytes, by path.
pub(crate) type Knobs = BTreeMap<PathBuf, Vec<u8>>;

const ROUNDED: [&str; 2] = ["rps_flow_cnt", "rps_sock_flow_entries"];
const ISOLATED: &str = "7";
/// The scheduling of the kthread.
pub(crate) const SCHEDULER: &str = "policy=1 nice=0 priority=50\n";

pub(crate) fn tempdir() -> tempfile::TempDir {
    // In memory if possible: the tests sync thousands of journals.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The knobs of the fake host: path and initial text.
fn knobs() -> Vec<(String, &'static str)> {
    let queues = "sys/devices/pci0000:00/0000:00:03.0/net/eth0/queues";
    let mut all = vec![
        ("proc/irq/default_smp_affinity".to_owned(), "ff\n"),
        ("proc/sys/net/core/rps_sock_flow_entries".to_owned(), "0\n"),
        ("proc/sys/net/core/rps_default_mask".to_owned(), "00\n"),
        ("proc/70/cpus".to_owned(), "ff\n"),
        ("sys/class/net/eth0.Offloadrxntuplefilter".to_owned(), "off\n"),
        ("proc/81/cpus".to_owned(), "0f\n"),
        ("sys/fs/cgroup/web.slice/cpuset.cpus".to_owned(), "\n"),
    ];
    for n in 0..3 {
        all.push((format!("proc/irq/{}/smp_affinity", 27 + n), ["01\n", "ff\n", "04\n"][n]));
    }
    for n in 0..2 {
        all.push((format!("{queues}/rx-{n}/rps_cpus"), ["00\n", "c0\n"][n]));
        all.push((format!("{queues}/rx-{n}/rps_flow_cnt"), ["0\n", "512\n"][n]));
        all.push((format!("{queues}/tx-{n}/xps_cpus"), ["0f\n", "00\n"][n]));
    }
    all.extend(remedies::knobs());
    all
}

/// Creates the host in a directory.
pub(crate) fn build(root: &Path) {
    for (path, text) in knobs() {
        put(root, &path, text);
    }
    for (n, name) in ["virtio0-input.0", "virtio0-input.1", "eth0-a,eth0-b"].into_iter().enumerate()
    {
        put(root, &format!("sys/kernel/irq/{}/actions", 27 + n), &format!("{name}\n"));
        put(root, &format!("sys/kernel/irq/{}/per_cpu_count", 27 + n), "9,0,0,0,0,0,0,0\n");
    }
    std::fs::create_dir_all(root.join("sys/class/net")).unwrap();
    let link = root.join("sys/class/net/eth0");
    std::os::unix::fs::symlink("../../devices/pci0000:00/0000:00:03.0/net/eth0", link).unwrap();
    let eth0 = "sys/devices/pci0000:00/0000:00:03.0/net/eth0";
    put(root, &format!("{eth0}/flags"), "0x1003\n");
    put(root, &format!("{eth0}/ifindex"), "2\n");
    for irq in 27..30 {
        put(root, &format!("{eth0}/device/msi_irqs/{irq}"), "msix\n");
    }
    put(root, "sys/devices/system/cpu/isolated", &format!("{ISOLATED}\n"));
    put(root, "sys/devices/system/cpu/possible", "0-7\n");
    put(root, "proc/sys/kernel/random/boot_id", "6a5b-boot-1\n");
    put(root, "proc/81/comm", "nginx-worker\n");
    put(
        root,
        "proc/81/stat",
        "81 (nginx) S 80 0 0 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 5151 0 0\n",
    );
    add_irqbalance(root, 812);
    put(root, "proc/70/scheduler", SCHEDULER);
    put(root, "proc/70/comm", "napi/eth0-8193\n");
    put(
        root,
        "proc/70/stat",
        "70 (napi/eth0-8193) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n",
    );
}

/// Adds an irqbalance with this process id.
pub(crate) fn add_irqbalance(root: &Path, pid: u32) {
    put(root, &format!("proc/{pid}/comm"), "irqbalance\n");
    put(root, &format!("proc/{pid}/banned"), "off\n");
    put(
        root,
        &format!("proc/{pid}/stat"),
        &format!("{pid} (irqbalance) S 1 0 0 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0\n"),
    );
}

/// What such an irqbalance leaves alone.
pub(crate) fn ban(pid: u32) -> knobs::IrqbalanceBan {
    knobs::IrqbalanceBan { pid, start_time: 99, irqs: [Irq(27), Irq(28)].into() }
}

impl Fake {
    /// A fresh host.
    pub(crate) fn new(root: &Path) -> Self {
        build(root);
        Self::on(root)
    }

    /// Adds an interrupt of eth0.
    pub(crate) fn add_irq(&self, number: u32) -> Target {
        put(&self.root, &format!("proc/irq/{number}/smp_affinity"), "01\n");
        put(&self.root, &format!("sys/kernel/irq/{number}/actions"), "eth0-more\n");
        put(
            &self.root,
            &format!("sys/devices/pci0000:00/0000:00:03.0/net/eth0/device/msi_irqs/{number}"),
            "msix\n",
        );
        irq(number)
    }

    /// A kernel on an existing host.
    pub(crate) fn on(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            live: Live::new(Root::at(root).unwrap()),
            writes: Cell::new(0),
            failing: RefCell::default(),
            unanswered: Cell::new(None),
            death: Cell::new(None),
            trail: RefCell::default(),
            recording: Cell::new(false),
            traffic: RefCell::default(),
            resets: Cell::new(false),
            lag: Cell::new(0),
            lagging: RefCell::default(),
            clock: Cell::new(Duration::from_secs(1000)),
            written: RefCell::default(),
            needs: RefCell::default(),
            netns: Cell::new(None),
            irqbalance: RefCell::default(),
            may_enter: Cell::new(true),
        }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("run/netsilo")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.state().join("journal")
    }

    pub(crate) fn journal_length(&self) -> usize {
        std::fs::read(self.journal()).map_or(0, |bytes| bytes.len())
    }

    /// The current contents of all knobs.
    pub(crate) fn knobs(&self) -> Knobs {
        let read = |path: String| {
            (PathBuf::from(&path), std::fs::read(self.root.join(path)).unwrap_or_default())
        };
        knobs().into_iter().map(|(path, _)| read(path)).collect()
    }

    pub(crate) fn set_knobs(&self, knobs: &Knobs) {
        for (path, bytes) in knobs {
            std::fs::write(self.root.join(path), bytes).unwrap();
        }
    }

    /// The paths and texts written since the last call.
    pub(crate) fn take_written(&self) -> Vec<(String, String)> {
        self.written.take()
    }

    fn file_of(place: &KnobAddress) -> KnobAddress {
        match place {
            KnobAddress::Thread(tid) => KnobAddress::File(format!("/proc/{tid}/cpus")),
            KnobAddress::Scheduler(tid) => KnobAddress::File(format!("/proc/{tid}/scheduler")),
            KnobAddress::Irqbalance(pid, _) => KnobAddress::File(format!("/proc/{pid}/banned")),
            KnobAddress::NapiThreaded(napi) => KnobAddress::File(format!("/napis/{napi}/threaded")),
            KnobAddress::Ethtool(netdev, setting) => {
                KnobAddress::File(remedies::file_of(netdev, setting))
            }
            file => file.clone(),
        }
    }

    /// The text of a knob after a write.
    fn settle(place: &KnobAddress, text: &str) -> io::Result<String> {
        let KnobAddress::File(path) = place else { return Ok(text.to_owned()) };
        let name = path.rsplit_once('/').unwrap().1;
        if name == "scheduler" {
            return Ok(text.to_owned());
        }
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if name == "cpuset.cpus" {
            return Ok(format!("{}\n", CpuSet::parse_list(text.trim()).map_err(|_| invalid())?));
        }
        if ROUNDED.contains(&name) {
            let count: u32 = text.trim().parse().map_err(|_| invalid())?;
            return Ok(format!("{}\n", if count == 0 { 0 } else { count.next_power_of_two() }));
        }
        if let Some(settled) = remedies::settle(path, text) {
            return settled;
        }
        let mut cpus = CpuSet::parse_mask(text).map_err(|_| invalid())?;
        if cpus.highest().is_some_and(|cpu| cpu.0 > 7) {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        }
        if name == "rps_cpus" || name == "rps_default_mask" {
            let asked = cpus.clone();
            cpus = cpus.minus(&CpuSet::parse_list(ISOLATED).unwrap());
            // The host's initial value has the isolated cpu: the value was set before the kernel
            // refused isolated cpus.
            if text == "c0\n" {
                cpus = asked;
            } else if cpus.is_empty() && !asked.is_empty() {
                return Err(invalid());
            }
        } else if cpus.is_empty() && name != "xps_cpus" {
            return Err(invalid());
        }
        Ok(format!("{}\n", cpus.to_mask(8)))
    }

    /// The driver chooses the settings of its queues, and the NAPI gets another kthread.
    fn make_queues_anew(&self) {
        let queues = "sys/devices/pci0000:00/0000:00:03.0/net/eth0/queues";
        for irq in 27..30 {
            put(&self.root, &format!("proc/irq/{irq}/smp_affinity"), "80\n");
        }
        for n in 0..2 {
            put(&self.root, &format!("{queues}/rx-{n}/rps_cpus"), "00\n");
            put(&self.root, &format!("{queues}/rx-{n}/rps_flow_cnt"), "0\n");
            put(&self.root, &format!("{queues}/tx-{n}/xps_cpus"), "80\n");
        }
        put(&self.root, "proc/70/cpus", "ff\n");
        put(&self.root, "proc/70/scheduler", "policy=0 nice=0 priority=0\n");
        let stat = self.root.join("proc/70/stat");
        let (start, later) = (self.kthread_start(), self.kthread_start() + 1);
        let text = std::fs::read_to_string(&stat).unwrap();
        std::fs::write(stat, text.replace(&start.to_string(), &later.to_string())).unwrap();
    }

    /// When the kthread of the NAPI was started.
    pub(crate) fn kthread_start(&self) -> u64 {
        let stat = std::fs::read_to_string(self.root.join("proc/70/stat")).unwrap();
        stat.split(' ').rev().nth(2).unwrap().parse().unwrap()
    }

    fn die(&self, this: Death) {
        if self.death.get() != Some(this) {
            return;
        }
        match this {
            Death::Before(_) | Death::After(_) => std::panic::resume_unwind(Box::new(Died)),
            Death::KillBefore(_) | Death::KillAfter(_) => {
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                );
            }
        }
    }
}

impl Kernel for Fake {
    fn netns(&self) -> Option<NetnsId> {
        self.netns.get()
    }

    fn within(&self, _: NetnsId) -> Result<Box<dyn Kernel>, NotEntered> {
        Err(if self.may_enter.get() { NotEntered::Gone } else { NotEntered::Why("EPERM".into()) })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        self.live.read(path)
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        self.live.read_link(path)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.live.names(path)
    }

    fn inode(&self, path: &str) -> io::Result<u64> {
        self.live.inode(path)
    }

    fn get(&self, place: &KnobAddress) -> io::Result<String> {
        match &mut *self.lagging.borrow_mut() {
            Some((lagging, before, reads)) if lagging == place && *reads > 0 => {
                *reads -= 1;
                Ok(before.clone())
            }
            _ => match (place, &*self.irqbalance.borrow()) {
                (KnobAddress::Irqbalance(_, irqs), Some(irqbalance)) => irqbalance.get(irqs),
                _ => self.live.get(&Self::file_of(place)),
            },
        }
    }

    fn napis(&self, ifindex: u32) -> io::Result<Vec<Napi>> {
        self.live.napis(ifindex)
    }

    fn set(&self, place: &KnobAddress, text: &str) -> io::Result<()> {
        let number = self.writes.get();
        self.writes.set(number + 1);
        if self.recording.get() {
            self.trail.borrow_mut().push((self.journal_length(), self.knobs()));
        }
        self.die(Death::Before(number));
        self.die(Death::KillBefore(number));
        if let Some(errno) = self.failing.borrow().get(&number) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        if self.unanswered.get() == Some(number) {
            return Err(NoAnswer::within(Duration::from_secs(30)));
        }
        if let (KnobAddress::Irqbalance(_, irqs), Some(irqbalance)) =
            (place, &*self.irqbalance.borrow())
        {
            irqbalance.set(irqs, text == "on")?;
            self.die(Death::After(number));
            return Ok(());
        }
        if self.lag.get() > 0 {
            let before = self.live.get(&Self::file_of(place))?;
            self.lagging.replace(Some((place.clone(), before, self.lag.get())));
        }
        let place = Self::file_of(place);
        let KnobAddress::File(path) = &place else { unreachable!() };
        let needed = self.needs.borrow().get(path).cloned();
        let is_off = |path: &str| {
            let text = self.live.get(&KnobAddress::File(path.to_owned()));
            text.is_ok_and(|text| text.trim() == "off")
        };
        let text = match &needed {
            Some((needed, reports)) if text.trim() != "off" && is_off(needed) => {
                if *reports {
                    return Err(io::Error::other("the driver did not follow"));
                }
                "off\n"
            }
            _ => text,
        };
        self.live.set(&place, &Self::settle(&place, text)?)?;
        self.written.borrow_mut().push((path.clone(), text.to_owned()));
        if self.resets.get() && remedies::resets_queues(path) {
            self.make_queues_anew();
        }
        self.die(Death::After(number));
        self.die(Death::KillAfter(number));
        Ok(())
    }

    fn may_set(&self, place: &KnobAddress, needs: Capability) -> io::Result<()> {
        self.live.may_set(&Self::file_of(place), needs)
    }

    fn now(&self) -> Duration {
        self.clock.get()
    }

    fn pause(&self, time: Duration) {
        self.clock.set(self.clock.get() + time);
        for (irq, counts) in self.traffic.borrow().iter() {
            put(&self.root, &format!("sys/kernel/irq/{irq}/per_cpu_count"), counts);
        }
    }
}

pub(crate) fn cpus(list: &str) -> Value {
    Value::Cpus(CpuSet::parse_list(list).unwrap())
}

pub(crate) fn irq(irq: u32) -> Target {
    let action = match irq {
        27 => "virtio0-input.0",
        28 => "virtio0-input.1",
        29 => "eth0-a,eth0-b",
        _ => "eth0-more",
    };
    Target::IrqAffinity(knobs::IrqAffinity {
        irq: Irq(irq),
        action: action.into(),
        netdev: Some(eth0()),
    })
}

pub(crate) fn eth0() -> NetdevIdentity {
    NetdevIdentity {
        name: "eth0".into(),
        device_path: Some("/devices/pci0000:00/0000:00:03.0".into()),
        ifindex: None,
    }
}

pub(crate) fn thread() -> Target {
    thread_since(4242)
}

/// The NAPI's kthread, if it was started at this time.
pub(crate) fn thread_since(start_time: u64) -> Target {
    let comm = "napi/eth0-8193".into();
    Target::NapiThread(knobs::NapiThread { pid: 70, comm, start_time })
}

/// A consumer's thread that was renamed since the plan was made.
pub(crate) fn consumer() -> Target {
    Target::ThreadAffinity(knobs::ThreadAffinity {
        pid: 80,
        tid: 81,
        comm: "nginx".into(),
        start_time: 5151,
    })
}

pub(crate) fn cgroup() -> Target {
    Target::CgroupCpuset(knobs::CgroupCpuset { path: "/web.slice".into() })
}

/// Every knob of the host.
pub(crate) fn targets() -> Vec<Target> {
    own_targets().into_iter().chain(remedies::targets()).collect()
}

/// The knobs of the host that are not in [`remedies`].
pub(crate) fn own_targets() -> Vec<Target> {
    let mut all = vec![
        irq(27),
        irq(28),
        irq(29),
        knobs::DefaultSmpAffinity.into(),
        knobs::RpsSockFlowEntries.into(),
    ];
    all.extend([
        knobs::RpsDefaultMask.into(),
        thread(),
        Target::Offload(knobs::Offload { netdev: eth0(), feature: NTUPLE_FILTER.into() }),
        consumer(),
        cgroup(),
    ]);
    for queue in 0..2 {
        all.push(Target::RpsCpus(knobs::RpsCpus { netdev: eth0(), queue }));
        all.push(Target::RpsFlowCnt(knobs::RpsFlowCnt { netdev: eth0(), queue }));
        all.push(Target::XpsCpus(knobs::XpsCpus { netdev: eth0(), queue }));
    }
    all
}

/// A change from the current value.
pub(crate) fn change(kernel: &Fake, target: Target, new: Value) -> Change {
    let old = netsilo_sys::transaction::knob::read(kernel, &target).unwrap().value;
    Change::untyped(target, old, new, "because").unwrap()
}

/// A plan that writes every knob, including values that the kernel rounds.
pub(crate) fn everything(kernel: &Fake) -> Vec<Change> {
    let new = |n: usize, target: &Target| match target {
        Target::RpsFlowCnt(_) | Target::RpsSockFlowEntries(_) => {
            Value::Count(1000 * (n as u32 + 1))
        }
        Target::RpsCpus(_) | Target::RpsDefaultMask(_) => cpus("2-3,7"),
        target => remedies::ours(target, 700).unwrap_or_else(|| cpus("5")),
    };
    let targets = targets().into_iter().enumerate();
    let change = |(n, target): (usize, Target)| change(kernel, target.clone(), new(n, &target));
    ordered(targets.map(change).collect())
}

pub(crate) fn apply(kernel: &Fake, changes: &[Change]) -> Result<Applied, ApplyError> {
    let mut options = TransactionOptions {
        confirm_within: None,
        start_guard: &mut |_| Ok(()),
        wait: Duration::ZERO,
    };
    apply::apply(kernel, &kernel.state(), changes, &mut options, &mut |_| {})
}

/// Applies as the daemon does.
pub(crate) fn follow(kernel: &Fake, changes: &[Change]) -> Result<Applied, ApplyError> {
    let mut options = TransactionOptions {
        confirm_within: None,
        start_guard: &mut |_| Ok(()),
        wait: Duration::ZERO,
    };
    apply::apply_for(Origin::Daemon, kernel, &kernel.state(), changes, &mut options, &mut |_| {})
}

pub(crate) fn compact(kernel: &Fake) -> Result<(), JournalError> {
    Journal::open(kernel, &kernel.state())?.compact(kernel)
}

pub(crate) fn undo(kernel: &Fake, which: UndoScope) -> Result<Vec<Undone>, JournalError> {
    undo::undo(kernel, &kernel.state(), which, false, RestoredBy::Undo, &mut |_, _| {})
}
