//! The .deb in a guest whose first process is systemd: installed, upgraded, removed and purged
//! while the daemon runs.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::path::{Path, PathBuf};

use netsilo_lab::{Init, Kernel, Lab, NicModel, Spec, until};

const OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/package/out");

/// Makes the folders writable in memory that dpkg writes to. In a container, policy-rc.d forbids
/// packages to start services.
const WRITABLE: &str = "modprobe overlay
    for dir in usr etc var; do
        mkdir -p /run/upper/$dir /run/work/$dir
        mount -t overlay overlay -o \
            lowerdir=/$dir,upperdir=/run/upper/$dir,workdir=/run/work/$dir /$dir
    done
    rm -f /usr/sbin/policy-rc.d";

/// The package that `scripts/package` has made.
fn package() -> PathBuf {
    let files = std::fs::read_dir(OUT).unwrap().map(|entry| entry.unwrap().path());
    let is_deb = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let debs: Vec<PathBuf> = files.filter(is_deb).collect();
    assert_eq!(debs.len(), 1, "scripts/package makes one .deb in {OUT}");
    Path::canonicalize(&debs[0]).unwrap()
}

struct Guest(Lab);

impl Guest {
    fn dpkg(&self, arguments: &str) -> String {
        let command = format!("DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io {arguments}");
        let output = self.0.run(&command).unwrap();
        assert_eq!(output.status, 0, "{arguments}: {}", output.text());
        output.text().into_owned()
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
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_daemon_runs_before_and_after_an_upgrade_and_removing_restores_if_asked() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let deb = package();
    let shares = vec![deb.parent().unwrap().to_owned()];
    let spec =
        Spec { init: Init::Systemd, shares, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) };
    let guest = Guest(Lab::boot(&spec).unwrap());
    let (lab, deb) = (&guest.0, deb.display());
    lab.sh(WRITABLE).unwrap();
    let before = guest.affinity();

    guest.dpkg(&format!("-i {deb}"));
    assert_eq!(guest.state(), "inactive", "installing starts nothing");
    lab.sh("netsilo check-config && man -w netsilo netsilo-apply netsilo.toml").unwrap();
    lab.sh("mkdir /etc/netsilo/conf.d
            printf 'interval = \"1s\"\\n[goal]\\ndefault-smp-affinity = \"2-3\"\\n' \
                >/etc/netsilo/conf.d/test.toml")
        .unwrap();
    guest.start();

    let old = guest.pid();
    guest.dpkg(&format!("-i {deb}"));
    assert_eq!(guest.state(), "active", "an upgrade starts the daemon again");
    assert_ne!(guest.pid(), old, "the new program runs");
    assert!(lab.sh("cat /etc/netsilo/conf.d/test.toml").unwrap().contains("1s"));

    let said = guest.dpkg("-r netsilo");
    assert!(said.contains("UNDO_ON_REMOVE=yes"), "{said}");
    assert_eq!(guest.affinity().trim(), "0c", "settings stay unless asked otherwise");
    assert_ne!(guest.state(), "active");
    assert_ne!(lab.run("command -v netsilo").unwrap().status, 0);

    guest.dpkg(&format!("-i {deb}"));
    lab.sh("sed -i s/=no/=yes/ /etc/default/netsilo").unwrap();
    guest.start();
    guest.dpkg("-r netsilo");
    assert_eq!(guest.affinity(), before, "restored");

    lab.sh("mkdir -p /var/lib/netsilo; echo x >/var/lib/netsilo/costs.json").unwrap();
    guest.dpkg("-P netsilo");
    let left = lab.sh("ls -d /etc/netsilo/netsilo.toml /etc/default/netsilo /var/lib/netsilo \
                       /usr/lib/systemd/system/netsilo.service 2>/dev/null; true");
    assert_eq!(left.unwrap(), "");
}
