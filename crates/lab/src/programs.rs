//! Debian's programs that tests run in a guest. They are not installed on this machine, because
//! that would start them.

use crate::apt::{Suite, closure};
use crate::cache;
use crate::cache::Cache;
use crate::command::output;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unpacks Debian 12's irqbalance in the cache. Returns its path, which is the same in a guest.
///
/// Its libraries are among those that QEMU needs.
pub fn irqbalance() -> Result<PathBuf> {
    program("irqbalance", "usr/sbin/irqbalance")
}

/// Unpacks Debian sid's irqbalance with its libraries. Returns the start of a command that becomes
/// it in a guest: options may follow.
pub fn newest_irqbalance() -> Result<String> {
    let cache = Cache::open()?;
    let build = || {
        let suite = Suite::new(&cache, "sid")?;
        suite.update(false)?;
        let packages = closure(&suite, "irqbalance", &["lib"])?;
        let version = packages.first().map_or("", |package| package.version.as_str());
        cache.build(&format!("irqbalance-sid/{version}"), |dir| {
            suite.unpack(&packages, dir)?;
            for folder in ["proc", "sys", "run"] {
                std::fs::create_dir_all(dir.join(folder))?;
            }
            // links of the package base-files
            for folder in ["lib", "lib64"] {
                if !dir.join(folder).exists() {
                    std::os::unix::fs::symlink(format!("usr/{folder}"), dir.join(folder))?;
                }
            }
            Ok(())
        })
    };
    let root = build().or_else(|error| cached(&cache, "irqbalance-sid", error))?;
    let root = root.display();
    let mounts = format!("for d in proc sys run; do mount --rbind /$d {root}/$d; done");
    let become_it = format!(r#"exec chroot {root} /usr/sbin/irqbalance "$@""#);
    Ok(format!("exec unshare -m sh -c '{mounts}; {become_it}' sh"))
}

/// Unpacks Debian 12's `udevadm` in the same way.
pub fn udevadm() -> Result<PathBuf> {
    program("udev", "bin/udevadm")
}

/// Unpacks Debian 12's tuned in the same way. Returns the folder of its Python modules.
pub fn tuned() -> Result<PathBuf> {
    Ok(unpacked("tuned")?.join("usr/lib/python3/dist-packages"))
}

/// A program with the libraries that this machine may lack.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    libraries: PathBuf,
}

impl Program {
    /// The command of a shell that runs it.
    pub fn command(&self) -> String {
        format!("LD_LIBRARY_PATH={} {}", self.libraries.display(), self.path.display())
    }
}

/// Unpacks Debian 12's redis. Returns the server and `redis-benchmark`.
pub fn redis() -> Result<(Program, Program)> {
    let root = with_libraries("redis-server", &["redis-tools"])?;
    Ok((in_root(&root, "usr/bin/redis-server"), in_root(&root, "usr/bin/redis-benchmark")))
}

/// Unpacks Debian 12's nginx.
pub fn nginx() -> Result<Program> {
    Ok(in_root(&with_libraries("nginx", &[])?, "usr/sbin/nginx"))
}

/// Unpacks Debian 12's wrk, a load generator for HTTP.
pub fn wrk() -> Result<Program> {
    Ok(in_root(&with_libraries("wrk", &[])?, "usr/bin/wrk"))
}

/// Unpacks Debian 12's memcached.
pub fn memcached() -> Result<Program> {
    Ok(in_root(&with_libraries("memcached", &[])?, "usr/bin/memcached"))
}

/// Unpacks Debian 12's nsd, a DNS server.
pub fn nsd() -> Result<Program> {
    Ok(in_root(&with_libraries("nsd", &[])?, "usr/sbin/nsd"))
}

/// Unpacks Debian 12's dnsperf, a load generator for DNS.
pub fn dnsperf() -> Result<Program> {
    Ok(in_root(&with_libraries("dnsperf", &[])?, "usr/bin/dnsperf"))
}

/// Unpacks Debian 12's iperf3.
pub fn iperf3() -> Result<Program> {
    Ok(in_root(&with_libraries("iperf3", &[])?, "usr/bin/iperf3"))
}

fn in_root(root: &Path, path: &str) -> Program {
    Program { path: root.join(path), libraries: root.join("usr/lib/x86_64-linux-gnu") }
}

/// Unpacks a package with its libraries and these other packages. The C library and the compiler's
/// libraries are this machine's.
fn with_libraries(package: &str, others: &[&str]) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let build = || {
        let suite = Suite::new(&cache, "bookworm")?;
        suite.update(false)?;
        let first =
            suite.package(package)?.with_context(|| format!("bookworm has no {package}"))?;
        // A colon would end a path in LD_LIBRARY_PATH.
        let version = first.version.replace(':', "_");
        cache.build(&format!("with-libraries/{package}/{version}"), |dir| {
            let mut prefixes = vec!["lib"];
            prefixes.extend(others);
            let mut packages = closure(&suite, package, &prefixes)?;
            let own = ["libc6", "libgcc-s1", "libstdc++6", "libcrypt1"];
            packages.retain(|package| !own.contains(&package.name.as_str()));
            suite.unpack(&packages, dir)
        })
    };
    build().or_else(|error| cached(&cache, &format!("with-libraries/{package}"), error))
}

fn program(package: &str, path: &str) -> Result<PathBuf> {
    let program = unpacked(package)?.join(path);
    let libraries = output(Command::new("ldd").arg(&program))?;
    if libraries.contains("not found") {
        bail!(
            "{} lacks libraries: scripts/setup installs them with qemu-system-x86: {libraries}",
            program.display()
        );
    }
    Ok(program)
}

/// Unpacks the newest version of a package. Without a network, uses the cached one.
fn unpacked(package: &str) -> Result<PathBuf> {
    let cache = Cache::open()?;
    download(&cache, package).or_else(|error| cached(&cache, package, error))
}

/// The newest version in the cache, if fetching failed.
fn cached(cache: &Cache, package: &str, error: anyhow::Error) -> Result<PathBuf> {
    let versions = cache::oldest_first(&cache.path(package));
    let Some(root) = versions.into_iter().rfind(|path| path.is_dir()) else { return Err(error) };
    crate::message::note(&format!("{package}: using the cached version: {error:#}"));
    Ok(root)
}

fn download(cache: &Cache, package: &str) -> Result<PathBuf> {
    let suite = Suite::new(cache, "bookworm")?;
    suite.update(false)?;
    let package =
        suite.package(package)?.with_context(|| format!("bookworm has no package {package}"))?;
    let place = format!("{}/{}", package.name, package.version);
    cache.build(&place, |dir| suite.unpack(std::slice::from_ref(&package), dir))
}
