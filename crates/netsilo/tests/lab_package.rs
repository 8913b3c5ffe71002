//! The .deb and the .rpm in a guest whose first process is systemd: installed, upgraded, downgraded
//! and removed while the daemon runs. Those of arm64 in a guest of arm64.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]
#![allow(clippy::print_stdout, reason = "a newcomer's figures, for evidence/long-runs.md")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use netsilo_lab::{Arch, Init, Kernel, Lab, NicModel, Spec, until};

const TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");

/// Mounts writable folders in memory where packages are installed. In a container, policy-rc.d
/// forbids packages to start services.
const WRITABLE: &str = "modprobe overlay
    for dir in usr etc var; do
        mkdir -p /run/upper/$dir /run/work/$dir
        mount -t overlay overlay -o \
            lowerdir=/$dir,upperdir=/run/upper/$dir,workdir=/run/work/$dir /$dir
    done
    rm -f /usr/sbin/policy-rc.d";

/// The package of netsilo with this ending that `scripts/package` has made.
fn package(ending: &str) -> PathBuf {
    package_in("out", ending)
}

/// The one in this folder of packages.
fn package_in(folder: &str, ending: &str) -> PathBuf {
    let out = Path::new(TARGET).join("package").join(folder);
    let files = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with(ending) && !name.starts_with("netsilo-bench")
    };
    let found: Vec<PathBuf> = files.filter(is_it).collect();
    assert_eq!(found.len(), 1, "scripts/package makes one .{ending} in {}", out.display());
    Path::canonicalize(&found[0]).unwrap()
}

/// The commands of a package manager.
struct Manager {
    install: String,
    upgrade: String,
    downgrade: String,
    remove: &'static str,
    /// The file with `UNDO_ON_REMOVE`.
    settings: &'static str,
}

struct Guest(Lab);

impl Guest {
    /// Boots a guest that sees these folders.
    fn boot(shares: Vec<PathBuf>) -> Self {
        let spec =
            Spec { init: Init::Systemd, shares, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) };
        let guest = Self(Lab::boot(&spec).unwrap());
        guest.0.sh(WRITABLE).unwrap();
        guest
    }

    fn state(&self) -> String {
        self.0.run("systemctl is-active netsilo").unwrap().text().trim().to_owned()
    }

    fn pid(&self) -> String {
        self.0.sh("systemctl show -P MainPID netsilo").unwrap()
    }

    fn affinity(&self) -> String {
        self.0.sh("cat /proc/irq/default_smp_affinity").unwrap()
    }

    fn start(&self) {
        self.0.sh("systemctl start netsilo").unwrap();
        let written = until("the daemon writes", || self.affinity(), |mask| mask.trim() == "0c");
        written.unwrap_or_else(|error| {
            unreachable!("{error}\n{}", self.0.sh("journalctl -b -u netsilo").unwrap())
        });
    }

    /// Runs a command, and returns all that it prints.
    fn run(&self, command: &str) -> String {
        let output = self.0.run(command).unwrap();
        assert_eq!(output.status, 0, "{command}: {}", output.text());
        output.text().into_owned()
    }

    /// The daemon writes, another version of the package takes its place, and `undo` restores what
    /// the first one wrote.
    fn another_version_restores(&self, install: &str, before: &str) {
        self.start();
        let old = self.pid();
        self.run(install);
        assert_eq!(self.state(), "active", "the daemon is started again");
        assert_ne!(self.pid(), old, "the other program runs");
        assert!(self.0.sh("cat /etc/netsilo/conf.d/test.toml").unwrap().contains("1s"));
        self.0.sh("systemctl stop netsilo").unwrap();
        assert_eq!(self.affinity().trim(), "0c");
        self.run("netsilo undo");
        assert_eq!(self.affinity(), before, "restored");
    }

    /// After a downgrade from a version with another format of the journal, the journal stays for
    /// that version.
    fn leaves_a_newer_journal(&self) {
        let lab = &self.0;
        lab.sh("systemctl stop netsilo; cd /run/netsilo; cp -p journal journal.mine
                sed -i '1s/\"version\":1,\"netsilo\":\"[^\"]*\"/\"version\":9,\"netsilo\":\"9.0.0\"/' \
                    journal
                cp journal journal.newer")
            .unwrap();
        let undo = lab.run("netsilo undo 2>&1").unwrap();
        assert_ne!(undo.status, 0);
        assert!(undo.text().contains("use netsilo 9.0.0 or newer"), "{}", undo.text());
        // The daemon observes, and writes nothing.
        lab.sh("systemctl start netsilo").unwrap();
        let log = || lab.sh("journalctl -b -u netsilo").unwrap();
        let names_it = |log: &String| log.contains("use netsilo 9.0.0 or newer");
        until("the daemon names the version that reads the journal", log, names_it).unwrap();
        lab.sh("systemctl stop netsilo; cd /run/netsilo; cmp journal journal.newer
                mv journal.mine journal; rm journal.newer; systemctl start netsilo")
            .unwrap();
    }

    /// Installs, upgrades and removes the package twice. The second time, removing it restores the
    /// settings.
    fn upgrades_and_removes(&self, manager: &Manager) {
        let lab = &self.0;
        let before = self.affinity();
        self.run(&manager.install);
        assert_eq!(self.state(), "inactive", "installing starts nothing");
        lab.sh("netsilo run --check-config && man -w netsilo netsilo-apply netsilo.toml").unwrap();
        lab.sh("mkdir /etc/netsilo/conf.d
                printf 'interval = \"1s\"\\n[goal]\\ndefault-smp-affinity = \"2-3\"\\n' \
                    >/etc/netsilo/conf.d/test.toml")
            .unwrap();
        for install in [&manager.upgrade, &manager.downgrade] {
            self.another_version_restores(install, &before);
        }
        self.start();
        self.leaves_a_newer_journal();

        let said = self.run(manager.remove);
        let advice = format!("UNDO_ON_REMOVE=yes in {}", manager.settings);
        assert!(said.contains(&advice), "{said}");
        assert_eq!(self.affinity().trim(), "0c", "settings stay unless asked otherwise");
        assert_ne!(self.state(), "active");
        assert_ne!(lab.run("command -v netsilo").unwrap().status, 0);

        self.run(&manager.install);
        lab.sh(&format!("sed -i s/=no/=yes/ {}", manager.settings)).unwrap();
        self.start();
        self.run(manager.remove);
        assert_eq!(self.affinity(), before, "restored");
    }
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_daemon_runs_before_and_after_an_upgrade_and_removing_restores_if_asked() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let deb = package("deb");
    let folder = tempfile::tempdir().unwrap();
    let newer = newer_deb(&deb, folder.path());
    let shares = [deb.parent().unwrap(), folder.path()].map(Path::to_owned);
    let guest = Guest::boot(shares.to_vec());
    let dpkg = "DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io";
    let install = format!("{dpkg} -i {}", deb.display());
    guest.upgrades_and_removes(&Manager {
        upgrade: format!("{dpkg} -i {}", newer.display()),
        downgrade: install.clone(),
        install,
        remove: "dpkg --force-unsafe-io -r netsilo",
        settings: "/etc/default/netsilo",
    });
    let lab = &guest.0;
    lab.sh("mkdir -p /var/lib/netsilo; echo x >/var/lib/netsilo/costs.json").unwrap();
    guest.run("dpkg --force-unsafe-io -P netsilo");
    let left = lab.sh("ls -d /etc/netsilo/netsilo.toml /etc/default/netsilo /var/lib/netsilo \
                       /usr/lib/systemd/system/netsilo.service 2>/dev/null; true");
    assert_eq!(left.unwrap(), "");
}

/// The same program as a package with a higher version.
fn newer_deb(deb: &Path, folder: &Path) -> PathBuf {
    let newer = folder.join("newer.deb");
    let script =
        "dpkg-deb -R \"$0\" \"$1/tree\"; sed -i 's/^Version: /&1:/' \"$1/tree/DEBIAN/control\"
                  dpkg-deb --root-owner-group -b \"$1/tree\" \"$2\"; rm -rf \"$1/tree\"";
    let mut made = Command::new("sh");
    made.args(["-ec", script]).args([deb, folder, &newer]);
    assert!(made.status().unwrap().success());
    newer
}

/// The root of the guest is Debian's, unpacked and not configured, so its packages are in no
/// database: the program shows that what it needs is there.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_packages_of_arm64_are_installed_run_and_leave_nothing() {
    const FILES: &str = "find /etc /usr /var -xdev \\( -path /var/lib/dpkg -o -path /var/lib/rpm \
                         -o -path /var/log -o -path /var/cache \\) -prune -o -print";
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let spec = Spec { arch: Arch::Arm64, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) };
    // where the guest sees the programs
    let programs = Path::new(TARGET).canonicalize().unwrap();
    let shared = programs.join("aarch64/aarch64-unknown-linux-gnu/debug/packages");
    std::fs::create_dir_all(&shared).unwrap();
    for ending in ["deb", "rpm"] {
        let package = package_in("out-aarch64", ending);
        std::fs::copy(package, shared.join("netsilo").with_extension(ending)).unwrap();
    }
    let guest = Guest(Lab::boot(&spec).unwrap());
    let lab = &guest.0;
    lab.sh(WRITABLE).unwrap();
    lab.sh("mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates; touch /var/lib/dpkg/status")
        .unwrap();
    let files = || -> BTreeSet<String> { guest.run(FILES).lines().map(str::to_owned).collect() };
    let seen = programs.join("debug/packages/netsilo");
    let dpkg = "DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io --force-depends";
    let rpm = "rpm --force-debian --nodeps";
    let installed = |install: String, remove: &str, left: &[&str]| {
        let before = files();
        guest.run(&install);
        let version = guest.run("/usr/bin/netsilo --version");
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        let shown = guest.run("/usr/bin/netsilo show --interval 100ms");
        assert!(shown.contains("eth0"), "{shown}");
        guest.run("/usr/bin/netsilo run --check-config");
        guest.run(remove);
        let now = files();
        let stays: Vec<_> = now.difference(&before).filter(|it| it.contains("netsilo")).collect();
        assert_eq!(stays, left, "{install}");
    };
    let purge = format!("{dpkg} -P netsilo");
    installed(format!("{dpkg} -i {}.deb", seen.display()), &purge, &[]);
    installed(format!("{rpm} -i {}.rpm", seen.display()), &format!("{rpm} -e netsilo"), &[]);
}

/// How many words per minute a newcomer reads.
const READ_PER_MINUTE: f64 = 200.0;

/// What a newcomer has done so far.
#[derive(Default)]
struct Trial {
    seconds: f64,
    words: usize,
    /// What the commands printed.
    printed: Vec<String>,
    /// Lines that were already read. They include the plan, which `apply` shows again.
    lines: BTreeSet<String>,
}

impl Trial {
    /// Adds a step to the table that is printed.
    fn step(&mut self, what: &str, seconds: f64, text: &str) {
        let new = text.lines().filter(|line| self.lines.insert(line.trim().to_owned()));
        let words: usize = new.map(|line| line.split_whitespace().count()).sum();
        println!("| {what} | {seconds:.1} | {words} |");
        self.seconds += seconds;
        self.words += words;
    }

    /// Runs a command for the newcomer, who reads all its output.
    fn run(&mut self, lab: &Lab, command: &str) -> String {
        let started = Instant::now();
        let output = lab.run(command).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        // 11: check has found something
        assert!([0, 11].contains(&output.status), "{command}: {}", output.text());
        self.step(&format!("`{command}`"), seconds, &output.text());
        self.printed.push(output.text().into_owned());
        output.text().into_owned()
    }
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn a_newcomer_installs_it_sees_a_finding_plans_applies_with_a_timer_and_undoes() {
    const AFFINITIES: &str = "grep -H . /proc/irq/*/smp_affinity";
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let deb = package("deb");
    let guest = Guest::boot(vec![deb.parent().unwrap().to_owned()]);
    let lab = &guest.0;
    // all queues on CPU 0, their readers on the other socket
    lab.sh("for irq in $(grep -lE 'virtio[0-9]+-input' /sys/kernel/irq/*/actions | cut -d/ -f5)
            do echo 0 >/proc/irq/$irq/smp_affinity_list; done")
        .unwrap();
    let receive =
        "receive --mode udp-unconnected --cpus 6,7 --port 7000 --ports 16 --flows 16 --idle 300";
    let reader = lab.exact(receive).unwrap();
    let flows = "--port 7000 --ports 16 --flows 16 --bytes 400000000 --size 64 --rate 1000";
    let send = format!("send --udp --dest {} {flows}", Lab::guest_address(0));
    let sender = lab.peer(0).unwrap().exact(&send).unwrap();
    let before = lab.sh(AFFINITIES).unwrap();

    let mut trial = Trial::default();
    println!("| step | seconds | words to read |\n|---|---|---|");
    let sections = include_str!("../../../README.md").split("\n## ");
    let wanted = ["# netsilo", "Is it safe?", "Install", "Three commands"];
    let read = sections.filter(|text| wanted.iter().any(|title| text.starts_with(title)));
    let read: Vec<&str> = read.collect();
    assert_eq!(read.len(), wanted.len());
    trial.step("README.md: what it is, is it safe, install, three commands", 0.0, &read.join("\n"));
    trial.run(lab, &format!("dpkg --force-unsafe-io -i {}", deb.display()));
    let check = trial.run(lab, "netsilo check");
    // the finding depends on how much of an emulated CPU the load takes
    let found = ["[queues-share-core]", "[far-from-consumers]"].iter().any(|id| check.contains(id));
    assert!(found, "{check}");
    let plan = trial.run(lab, "netsilo plan");
    assert!(plan.contains("-> "), "{plan}");
    let applied = trial.run(lab, "netsilo apply --yes --confirm-within 60s");
    assert!(applied.contains("run `netsilo confirm` within 1m"), "{applied}");
    trial.run(lab, "netsilo confirm");
    assert_ne!(lab.sh(AFFINITIES).unwrap(), before);
    trial.run(lab, "netsilo undo");
    assert_eq!(lab.sh(AFFINITIES).unwrap(), before, "restored");
    sender.stop().unwrap();
    reader.stop().unwrap();

    let reading = trial.words as f64 / READ_PER_MINUTE;
    let minutes = trial.seconds / 60.0 + reading;
    println!("{minutes:.1} minutes, {reading:.1} of them to read {} words", trial.words);
    println!("\n{}", trial.printed.join("\n"));
    assert!(reading <= 4.0, "{} words take too long to read", trial.words);
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_daemon_and_the_settings_survive_the_rpm_in_the_same_way() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let rpm = package("rpm");
    let newer = tempfile::tempdir().unwrap();
    // the same package with a higher release
    let arguments = ["generate-rpm", "--profile", "dist", "--package", "crates/netsilo"];
    let made = Command::new("cargo")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(arguments)
        .args(["--set-metadata", "release = \"2\"", "--output"])
        .arg(newer.path().join("newer.rpm"))
        .status();
    assert!(made.unwrap().success());
    let guest = Guest::boot(vec![rpm.parent().unwrap().to_owned(), newer.path().to_owned()]);
    // Debian's packages are not in the database of rpm
    let run = "rpm --force-debian --nodeps";
    guest.upgrades_and_removes(&Manager {
        install: format!("{run} -i {}", rpm.display()),
        upgrade: format!("{run} -U {}/newer.rpm", newer.path().display()),
        downgrade: format!("{run} -U --oldpackage {}", rpm.display()),
        remove: "rpm --force-debian -e netsilo",
        settings: "/etc/sysconfig/netsilo",
    });
    let left = guest.0.sh("ls -d /usr/bin/netsilo /etc/netsilo/netsilo.toml \
                           /usr/lib/systemd/system/netsilo.service 2>/dev/null; true");
    assert_eq!(left.unwrap(), "");
}
