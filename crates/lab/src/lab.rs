//! A booted guest with its peers.

use crate::address;
use crate::arch::Arch;
use crate::arch::ArmRoot;
use crate::cache::Cache;
use crate::command::Shown;
use crate::emulator;
use crate::emulator::Accel;
use crate::emulator::Emulator;
use crate::exact;
use crate::guest::Guest;
use crate::guest::Job;
use crate::hang;
use crate::initrd;
use crate::kernels;
use crate::kernels::Image;
use crate::message::note;
use crate::namespaces::GuestNamespaces;
use crate::namespaces::Peer;
use crate::namespaces::content;
use crate::namespaces::unnamed_file;
use crate::output::Output;
use crate::qemu;
use crate::qmp::Qmp;
use crate::setup;
use crate::spec::Nic;
use crate::spec::NicModel;
use crate::spec::Spec;
use crate::spec::Threads;
use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a guest with KVM may take to answer before KVM counts as unusable.
const KVM_PATIENCE: Duration = Duration::from_secs(10);
/// The same under emulation. 32 parallel CPUs take half a minute on an idle machine.
const TCG_PATIENCE: Duration = Duration::from_secs(240);

/// A running guest. Dropping it removes guest, peers and taps before `drop` returns.
#[derive(Debug)]
pub struct Lab {
    guest: Arc<Guest>,
    qmp: Mutex<Qmp>,
    peers: Vec<Peer>,
    console: File,
    accel: Accel,
    boot_time: Duration,
    title: String,
    nics: Vec<Nic>,
    _machine: Machine,
}

/// QEMU and its namespaces. Dropping it ends both, even if a [`Peer`] still exists.
#[derive(Debug)]
struct Machine {
    qemu: Child,
    namespaces: Arc<GuestNamespaces>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.namespaces.end();
        let _ = self.qemu.wait();
    }
}

impl Lab {
    /// Boots a guest according to `spec`. Prints on standard error what was booted and how long it
    /// took.
    pub fn boot(spec: &Spec) -> Result<Self> {
        spec.check()?;
        let cache = Cache::open()?;
        let image = kernels::fetch(&cache, spec.kernel, spec.arch, false, &note)?;
        let least = spec.min_qemu_major();
        spec.disk.as_deref().map_or(Ok(()), setup::make_disk)?;
        let emulator = emulator::find(&cache, spec.arch, least, &note)?;
        let arm = if spec.arch == Arch::Arm64 { Some(ArmRoot::find()?) } else { None };
        let initrd = initrd::build(&cache, &image, arm.as_ref())?;
        drop(cache);
        let accels = emulator::accels(spec.arch)?;
        let mut failure = anyhow!("no way to run a guest");
        for (n, accel) in accels.iter().enumerate() {
            let patience = if *accel == Accel::Kvm { KVM_PATIENCE } else { TCG_PATIENCE };
            let began = Instant::now();
            match Self::start(spec, *accel, patience, &emulator, &image, &initrd, arm.as_ref()) {
                Ok(lab) => {
                    note(&format!("{}, booted in {:.1} s", lab.title, lab.boot_time.as_secs_f64()));
                    return Ok(lab);
                }
                Err(error) => failure = error,
            }
            let ended = began.elapsed() < patience;
            match accels.get(n + 1) {
                Some(_) if *accel == Accel::Kvm => {
                    note(&format!("KVM does not work here, using emulation: {failure:#}"));
                }
                Some(_) if ended => {
                    note(&format!("the guest did not boot, once more: {failure:#}"))
                }
                _ => break,
            }
        }
        Err(failure.context(format!("cannot boot kernel {}", spec.kernel)))
    }

    fn start(
        spec: &Spec,
        accel: Accel,
        patience: Duration,
        emulator: &Emulator,
        image: &Image,
        initrd: &Path,
        arm: Option<&ArmRoot>,
    ) -> Result<Self> {
        let started = Instant::now();
        let namespaces = Arc::new(GuestNamespaces::new()?);
        setup::make_taps(&namespaces, spec)?;
        let (lab_end, guest_end) = UnixStream::pair()?;
        let (lab_qmp, qemu_qmp) = UnixStream::pair()?;
        let console = unnamed_file()?;
        let qemu = namespaces
            .command(&emulator.program.shown())
            .args(qemu::arguments(spec, accel, emulator, image, initrd, arm))
            .stdin(Stdio::from(OwnedFd::from(guest_end)))
            .stdout(Stdio::from(OwnedFd::from(qemu_qmp)))
            .stderr(console.try_clone()?)
            .spawn()
            .context("cannot run QEMU")?;
        let machine = Machine { qemu, namespaces: Arc::clone(&namespaces) };
        let with_console = |error: anyhow::Error| {
            error.context(format!("the guest's console: {}", tail(&console)))
        };
        let qmp = Qmp::new(lab_qmp).map_err(with_console)?;
        // QEMU has opened the taps, so each can move to its peer.
        let peers = setup::make_peers(&namespaces, spec)?;
        let guest = Guest::new(lab_end)?;
        match guest.wait_ready(patience) {
            Ok(true) => {}
            Ok(false) => {
                return Err(with_console(anyhow!("no answer from the guest in {patience:?}")));
            }
            Err(error) => return Err(with_console(error)),
        }
        let script = setup::guest_script(spec, &shares(&spec.shares)?, arm);
        let set_up = guest.spawn(&script)?.wait(TCG_PATIENCE).and_then(Output::ok);
        set_up.context("cannot set up the guest").map_err(with_console)?;
        let boot_time = started.elapsed();
        let title = title(spec, accel, emulator, image);
        Ok(Self {
            guest,
            qmp: Mutex::new(qmp),
            peers,
            console,
            accel,
            boot_time,
            title,
            nics: spec.nics.clone(),
            _machine: machine,
        })
    }

    /// Runs a shell command in the guest until it ends, for at most [`crate::time::RUN_TIMEOUT`].
    pub fn run(&self, command: &str) -> Result<Output> {
        self.run_for(command, crate::time::RUN_TIMEOUT)
    }

    /// Runs a shell command in the guest until it ends. After `timeout`, kills it and returns an
    /// error. If the guest has hung, the error says so and shows where its CPUs are.
    pub fn run_for(&self, command: &str, timeout: Duration) -> Result<Output> {
        let output = self.spawn(command)?.wait(timeout).map_err(|error| match self.hang() {
            Some(hang) => error.context(hang),
            None => error,
        });
        output.with_context(|| format!("in the guest: {}", crate::message::one_line(command)))
    }

    /// Runs a shell command in the guest and returns its standard output. Fails if the command
    /// fails.
    pub fn sh(&self, command: &str) -> Result<String> {
        let done = self.run(command)?.ok();
        let done =
            done.with_context(|| format!("in the guest: {}", crate::message::one_line(command)))?;
        Ok(done.text().into_owned())
    }

    /// Runs a shell command in the guest and parses the JSON that it prints, whatever its exit
    /// status.
    pub fn json<T: DeserializeOwned>(&self, command: &str) -> Result<T> {
        let Output { status, stdout, stderr } = self.run(command)?;
        serde_json::from_slice(&stdout).with_context(|| {
            let output = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
            format!(
                "in the guest: {}: invalid JSON, exit status {status}: {output}",
                crate::message::one_line(command)
            )
        })
    }

    /// Starts a program of [`exact`] in the guest, for example `echo --port 7000`.
    pub fn exact(&self, words: &str) -> Result<Job> {
        self.spawn(&exact::command(words)?)
    }

    /// Starts a shell command in the guest.
    pub fn spawn(&self, command: &str) -> Result<Job> {
        self.guest.spawn(command)
    }

    /// Returns the peer at the other end of `eth<nic>`.
    pub fn peer(&self, nic: usize) -> Result<&Peer> {
        self.peers.get(nic).with_context(|| format!("the guest has no eth{nic}"))
    }

    /// Returns the address of `eth<nic>`, in a /24 shared with its peer.
    pub fn guest_address(nic: u8) -> Ipv4Addr {
        address::guest(nic)
    }

    /// Returns the address of the peer of `eth<nic>`.
    pub fn peer_address(nic: u8) -> Ipv4Addr {
        address::peer(nic)
    }

    /// Connects or disconnects the cable of `eth<nic>`.
    pub fn set_link(&self, nic: usize, up: bool) -> Result<()> {
        let mut qmp = self.qmp.lock().unwrap_or_else(PoisonError::into_inner);
        qmp.execute("set_link", json!({ "name": format!("nic{nic}"), "up": up }))?;
        Ok(())
    }

    /// Pulls the card of `eth<nic>` out of its slot. Its peer stays.
    pub fn unplug(&self, nic: usize) -> Result<()> {
        let mut qmp = self.qmp.lock().unwrap_or_else(PoisonError::into_inner);
        qmp.execute("device_del", json!({ "id": format!("nic{nic}") }))?;
        Ok(())
    }

    /// Puts the card of `eth<nic>` into its slot again, once the guest has let go of it.
    pub fn plug(&self, nic: usize) -> Result<()> {
        let card = self.nics.get(nic).with_context(|| format!("the guest has no eth{nic}"))?;
        let mut qmp = self.qmp.lock().unwrap_or_else(PoisonError::into_inner);
        qmp.execute("device_add", qemu::card(nic, *card))?;
        Ok(())
    }

    /// Returns how the guest's CPUs run. Under emulation, counts are valid but times are not.
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// Returns the time from start until the guest had addresses, without downloads.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns kernel, emulator and shape in one line.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Whether the guest does not answer any more. If so, returns a message with its console and
    /// its CPUs.
    pub fn hang(&self) -> Option<String> {
        let answer = self.spawn("true").and_then(|job| job.wait(crate::time::SIGN_OF_LIFE));
        if answer.is_ok() {
            return None;
        }
        let mut qmp = self.qmp.lock().unwrap_or_else(PoisonError::into_inner);
        let cpus = hang::cpus(&mut qmp).unwrap_or_else(|error| format!("{error:#}"));
        Some(format!("the guest has hung; its console: {}\n{cpus}", tail(&self.console)))
    }

    /// Returns everything that the guest's console and QEMU printed.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&content(&self.console).unwrap_or_default()).into_owned()
    }
}

fn title(spec: &Spec, accel: Accel, emulator: &Emulator, image: &Image) -> String {
    let how = match (accel, spec.threads) {
        (Accel::Kvm, _) => "KVM",
        (Accel::Tcg, Threads::Single) => "emulated, one CPU at a time",
        (Accel::Tcg, Threads::Multi) => "emulated, CPUs in parallel",
    };
    let mut nics: Vec<&str> = spec.nics.iter().map(|nic| nic.model).map(NicModel::driver).collect();
    if nics.is_empty() {
        nics.push("no nic");
    }
    let nics = nics.join(" + ");
    format!(
        "kernel {} ({}), {} CPUs, {nics}, QEMU {} ({how})",
        image.release, image.version, spec.cpus, emulator.version
    )
}

/// Returns the folders that the guest's own /tmp and /run would hide: the requested ones, the
/// current one, and the program's.
fn shares(wanted: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let program = std::env::current_exe()?;
    let built_in =
        program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists()).or(program.parent());
    let own = [std::env::current_dir().ok(), built_in.map(Path::to_owned)];
    let all = wanted.iter().cloned().chain(own.into_iter().flatten());
    let mut hidden: Vec<PathBuf> = all
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| {
            ["/tmp", "/run"].iter().any(|own| path.starts_with(own) && path != Path::new(own))
        })
        .collect();
    hidden.sort();
    hidden.dedup_by(|inner, outer| inner.starts_with(outer));
    Ok(hidden)
}

fn tail(console: &File) -> String {
    let text = String::from_utf8_lossy(&content(console).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.contains("TCG doesn't support"))
        .collect();
    let last = lines.iter().rev().take(12).rev().copied().collect::<Vec<_>>().join("\n  ");
    if last.is_empty() { "(silent)".to_owned() } else { format!("\n  {last}") }
}
