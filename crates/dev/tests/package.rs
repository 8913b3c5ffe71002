//! The packages that `scripts/package` has made: their checkers, and fresh roots of Debian in which
//! they are installed, upgraded and removed.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The package of netsilo in `target/package/out` with this ending.
fn packed(ending: &str) -> PathBuf {
    package_of("netsilo", ending)
}

/// The package of a program in that folder, with this ending.
fn package_of(program: &str, ending: &str) -> PathBuf {
    let out = Path::new(WORKSPACE).join("target/package/out");
    let files = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        let is_bench = name.starts_with("netsilo-bench");
        name.ends_with(ending) && is_bench == (program == "netsilo-bench")
    };
    let files: Vec<PathBuf> = files.filter(is_it).collect();
    assert_eq!(
        files.len(),
        1,
        "scripts/package makes one {ending} of {program} in {}",
        out.display()
    );
    files[0].canonicalize().unwrap()
}

/// Runs a program, which must succeed, and returns what it prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

/// A fresh minimal root of a Debian suite, with these packages.
struct Root(tempfile::TempDir);

impl Root {
    fn new(suite: &str, packages: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = netsilo_lab::apt_source(suite).unwrap();
        let path = dir.path().to_str().unwrap();
        let packages = format!("--include={packages}");
        run("mmdebstrap", &["--quiet", "--variant=apt", &packages, suite, path, source.trim()]);
        Self(dir)
    }

    /// Runs a script in the root, with a separate `/proc` and the machine's `/sys`, read-only.
    fn sh(&self, script: &str) -> String {
        let around = format!(
            "mount -t proc proc {0}/proc && mount --rbind /sys {0}/sys && \
             mount -o remount,bind,ro {0}/sys && exec chroot {0} sh -ec \"$1\"",
            self.0.path().display()
        );
        let script = format!("export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C\n{script}");
        let unshare = ["--mount", "--pid", "--fork", "sh", "-ec", &around, "sh", &script];
        run("unshare", &unshare)
    }

    fn take(&self, file: &Path) {
        std::fs::copy(file, self.0.path().join("root").join(file.file_name().unwrap())).unwrap();
    }

    /// All files except those of dpkg, rpm, apt and their logs.
    fn files(&self) -> BTreeSet<String> {
        let find = "find / -xdev \\( -path /proc -o -path /sys -o -path /var/lib/dpkg -o -path \
                    /var/lib/rpm -o -path /var/log -o -path /var/cache -o -path /root \\) -prune \
                    -o -print";
        self.sh(find).lines().map(str::to_owned).collect()
    }
}

#[test]
#[ignore = "needs the packages: make test-long"]
fn checkers_of_packages_find_no_error() {
    let filters = format!("{WORKSPACE}/dist/rpm/rpmlint.toml");
    for program in ["netsilo", "netsilo-bench"] {
        let [deb, rpm] = [".deb", ".rpm"].map(|ending| package_of(program, ending));
        let deb = run("lintian", &["--fail-on", "error", deb.to_str().unwrap()]);
        assert!(!deb.contains("E: "), "{deb}");
        let rpm = run("rpmlint", &["-c", &filters, rpm.to_str().unwrap()]);
        assert!(rpm.contains(" 0 errors"), "{rpm}");
    }
    let program = run("tar", &["-tzvf", packed(".tar.gz").to_str().unwrap()]);
    for file in ["/netsilo.8.gz", "/INSTALL.md", "/docs/howto/proxy.md"] {
        assert!(program.contains(file), "{file}: {program}");
    }
}

#[test]
#[ignore = "needs the packages and minutes: make test-long"]
fn the_deb_is_installed_upgraded_removed_and_purged_in_fresh_roots() {
    let deb = packed(".deb");
    // the same package with a higher version
    let work = tempfile::tempdir().unwrap();
    let (tree, newer) = (work.path().join("tree"), work.path().join("newer.deb"));
    let paths = [&deb, &tree, &newer].map(|path| path.to_str().unwrap());
    run("dpkg-deb", &["-R", paths[0], paths[1]]);
    let control = tree.join("DEBIAN/control");
    run("sed", &["-i", "s/^Version: .*/&.1/", control.to_str().unwrap()]);
    run("dpkg-deb", &["--root-owner-group", "-b", paths[1], paths[2]]);
    for (suite, needs) in [("bookworm", "libelf1"), ("trixie", "libelf1t64")] {
        let root = Root::new(suite, needs);
        root.take(&deb);
        root.take(&newer);
        let before = root.files();
        root.sh("dpkg -i /root/netsilo_*.deb");
        let doctor = root.sh("netsilo doctor");
        assert!(doctor.contains("kernel "), "{suite}: {doctor}");
        root.sh("netsilo run --check-config && echo '# mine' >>/etc/netsilo/netsilo.toml");
        root.sh("dpkg -i /root/newer.deb && grep '# mine' /etc/netsilo/netsilo.toml");
        assert!(root.sh("dpkg -s netsilo").contains("-1.1\n"), "{suite}");
        root.sh("dpkg -r netsilo && test -e /etc/netsilo/netsilo.toml && ! command -v netsilo");
        root.sh("mkdir -p /var/lib/netsilo && dpkg -P netsilo");
        let left: Vec<String> = root.files().difference(&before).cloned().collect();
        assert_eq!(left, Vec::<String>::new(), "{suite}");
    }
}

#[test]
#[ignore = "needs the packages and minutes: make test-long"]
fn the_rpm_is_installed_upgraded_and_erased_in_a_fresh_root() {
    let rpm = packed(".rpm");
    // the same package with a higher release
    let work = tempfile::tempdir().unwrap();
    let newer = work.path().join("newer.rpm");
    let arguments = ["generate-rpm", "--profile", "dist", "--package", "crates/netsilo"];
    let release = ["--set-metadata", "release = \"2\"", "--output", newer.to_str().unwrap()];
    let release = [&release[..], &["--auto-req", "dist/rpm/requires"]].concat();
    let made = Command::new("cargo").current_dir(WORKSPACE).args(arguments).args(release).status();
    assert!(made.unwrap().success());
    let root = Root::new("bookworm", "libelf1,rpm");
    root.take(&rpm);
    root.take(&newer);
    // The packages of the root are not in the database of rpm, so each library that the package
    // requires must be there by its name.
    let needs = root.sh("rpm --force-debian -qpR /root/netsilo-*.rpm");
    let libraries: BTreeSet<&str> =
        needs.lines().filter_map(|line| line.split_once(".so.").map(|_| line)).collect();
    assert!(libraries.iter().any(|name| name.starts_with("libelf.so.1")), "{needs}");
    for library in libraries {
        let name = library.split('(').next().unwrap_or(library);
        root.sh(&format!("ldconfig -p | grep -q '{name} '"));
    }
    let before = root.files();
    root.sh("rpm --force-debian --nodeps -i /root/netsilo-*.rpm");
    root.sh("rpm --force-debian --nodeps -V netsilo");
    assert!(root.sh("netsilo explain nic-drops").contains("nic-drops"));
    assert!(root.sh("netsilo doctor").contains("kernel "));
    root.sh("netsilo run --check-config && echo '# mine' >>/etc/netsilo/netsilo.toml");
    root.sh("rpm --force-debian --nodeps -U /root/newer.rpm");
    root.sh("grep '# mine' /etc/netsilo/netsilo.toml");
    let release = root.sh("rpm --force-debian -q --qf '%{RELEASE}' netsilo");
    assert_eq!(release, "2");
    root.sh("rpm --force-debian -e netsilo && ! command -v netsilo");
    // Debian's root lacks shared folders such as /etc/sysconfig, and rpm leaves them.
    let is_ours = |path: &&String| path.contains("netsilo");
    let left: Vec<String> = root.files().difference(&before).filter(is_ours).cloned().collect();
    // a changed configuration is kept
    assert_eq!(left, ["/etc/netsilo", "/etc/netsilo/netsilo.toml.rpmsave"]);
}

#[test]
#[ignore = "needs the packages and a minute: make test-long"]
fn the_program_of_the_tarball_runs_in_a_fresh_root() {
    let root = Root::new("bookworm", "libelf1");
    let tarball = packed(".tar.gz");
    root.take(&tarball);
    run(
        "tar",
        &["-xzf", tarball.to_str().unwrap(), "-C", &format!("{}/root", root.0.path().display())],
    );
    let text =
        root.sh("cd /root/netsilo-*-linux && ./netsilo run --check-config --config netsilo.toml");
    assert!(text.contains("1 file: no error"), "{text}");
}
