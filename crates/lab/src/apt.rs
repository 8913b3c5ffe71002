//! Unpacks packages of any Debian suite into a folder. Installs nothing and adds no apt source.
//!
//! Mirror and keyring come from the machine's apt sources. Each suite has its own apt state.

use crate::arch::Arch;
use crate::cache::Cache;
use crate::command::Shown;
use crate::command::output;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options that hide the machine's own sources, pins and installed packages, and fetch only the
/// indexes that are read.
const OPTIONS: [&str; 12] = [
    "Dir::Etc::sourceparts=-",
    "Dir::Etc::preferences=/dev/null",
    "Dir::Etc::preferencesparts=-",
    "Dir::State::status=/dev/null",
    "Acquire::Languages=none",
    "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    "Acquire::GzipIndexes=true",
    "Acquire::Retries=2",
    "Acquire::http::Timeout=20",
    // A mirror that is some weeks behind has an expired but correct signature, which is sufficient
    // here.
    "Acquire::Check-Valid-Until=false",
    // Without this, `apt-get update` keeps an outdated index and reports success.
    "APT::Update::Error-Mode=any",
    // The user `_apt` may lack access to the cache.
    "APT::Sandbox::User=root",
];

/// One Debian suite of one architecture, with its own apt state in the cache.
#[derive(Debug)]
pub(crate) struct Suite<'a> {
    name: &'static str,
    arch: Arch,
    dir: PathBuf,
    cache: &'a Cache,
}

/// One version of a package, from its suite's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) depends: Vec<String>,
}

impl<'a> Suite<'a> {
    /// A suite for amd64.
    pub(crate) fn new(cache: &'a Cache, name: &'static str) -> Result<Self> {
        Self::of(cache, name, Arch::Amd64)
    }

    pub(crate) fn of(cache: &'a Cache, name: &'static str, arch: Arch) -> Result<Self> {
        let dir = cache.path(format!("apt/{}", arch.cached(name)));
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder))
                .context("cannot create an apt state in the lab's cache")?;
        }
        fs::write(dir.join("sources.list"), source(name)?)
            .context("cannot write the lab's sources.list")?;
        Ok(Self { name, arch, dir, cache })
    }

    /// Fetches the suite's index unless it is less than a day old or `force` is set.
    pub(crate) fn update(&self, force: bool) -> Result<()> {
        let stamp = format!("apt/{}/updated", self.arch.cached(self.name));
        if self.cache.is_fresh(&stamp) && !force {
            return Ok(());
        }
        let bar = spinner(format!("fetching the package index of {}", self.name));
        output(self.apt("apt-get").arg("update"))
            .with_context(|| format!("cannot fetch the package index of {}", self.name))?;
        bar.finish_and_clear();
        self.cache.touch(&stamp)
    }

    /// Returns the package's candidate version in this suite, or `None` if there is none.
    pub(crate) fn package(&self, name: &str) -> Result<Option<Package>> {
        let known = output(self.apt("apt-cache").args(["pkgnames", name]))?;
        if !known.lines().any(|line| line == name) {
            return Ok(None);
        }
        let shown = output(self.apt("apt-cache").args(["show", "--no-all-versions", name]))?;
        parse(&shown)
            .map(Some)
            .with_context(|| format!("apt-cache shows no name and version of {name}"))
    }

    /// Downloads these packages and unpacks them into `into`.
    pub(crate) fn unpack(&self, packages: &[Package], into: &Path) -> Result<()> {
        let debs = into.join(".debs");
        fs::create_dir(&debs).with_context(|| format!("cannot create {}", debs.display()))?;
        let bar = ProgressBar::new(packages.len() as u64);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {bar:20} {pos}/{len} {msg} {elapsed}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        for package in packages {
            bar.set_message(format!("{} {}", package.name, package.version));
            let wanted = format!("{}={}", package.name, package.version);
            let mut download = self.apt("apt-get");
            download.current_dir(&debs).args(["download", &wanted]);
            output(&mut download).with_context(|| format!("cannot download {wanted}"))?;
            for deb in crate::cache::oldest_first(&debs) {
                output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(into))
                    .with_context(|| format!("cannot unpack {wanted}"))?;
                fs::remove_file(&deb)?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        fs::remove_dir(&debs)?;
        Ok(())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = |folder: &str| self.dir.join(folder).shown();
        command.arg("-q");
        let own = [
            format!("APT::Architecture={}", self.arch.name()),
            format!("Dir::State={}", dir("state")),
            format!("Dir::Cache={}", dir("cache")),
            format!("Dir::Etc::sourcelist={}", dir("sources.list")),
        ];
        for option in own.iter().map(String::as_str).chain(OPTIONS) {
            command.args(["-o", option]);
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn parse(shown: &str) -> Option<Package> {
    let field = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::to_owned)
    };
    let depends = field("Depends").unwrap_or_default();
    let depends = depends.split([',', '|']).filter_map(|one| one.split_whitespace().next());
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
        depends: depends.map(str::to_owned).collect(),
    })
}

/// A line of sources.list for `suite`, with the machine's own mirror and keyring.
pub fn source(suite: &str) -> Result<String> {
    let kind = if suite.ends_with("-security") { "debian-security" } else { "debian" };
    let own = own_sources();
    let mirrors = || {
        own.split_whitespace()
            .map(|word| word.trim_end_matches('/'))
            .filter(|word| word.starts_with("http"))
    };
    let sibling = || mirrors().find_map(|word| word.strip_suffix("/debian"));
    let named = std::env::var("NETSILO_LAB_MIRROR").ok();
    let mirror = mirrors().find(|word| word.ends_with(&format!("/{kind}"))).map(str::to_owned);
    let mirror = mirror
        .or_else(|| sibling().map(|base| format!("{base}/{kind}")))
        .or_else(|| named.map(|base| format!("{}/{kind}", base.trim_end_matches('/'))))
        .context("apt's sources name no Debian mirror: set NETSILO_LAB_MIRROR=http://HOST")?;
    let keyring = own
        .split([' ', '\n', '\t', '[', ']', '='])
        .find(|word| word.starts_with('/') && word.contains("debian-archive"))
        .unwrap_or("/usr/share/keyrings/debian-archive-keyring.gpg");
    Ok(format!("deb [signed-by={keyring}] {mirror} {suite} main\n"))
}

/// Returns all lines of the machine's apt sources that are not comments.
fn own_sources() -> String {
    let parts = crate::cache::oldest_first(Path::new("/etc/apt/sources.list.d"));
    let files = std::iter::once(PathBuf::from("/etc/apt/sources.list")).chain(parts);
    let texts = files.filter_map(|path| fs::read_to_string(path).ok());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Returns `first` and its direct and indirect dependencies whose name has one of `prefixes`.
pub(crate) fn closure(suite: &Suite<'_>, first: &str, prefixes: &[&str]) -> Result<Vec<Package>> {
    let Some(first) = suite.package(first)? else {
        bail!("{} has no package {first}", suite.name);
    };
    let mut found = vec![first];
    let mut next = 0;
    while let Some(package) = found.get(next) {
        for name in package.depends.clone() {
            let new = !found.iter().any(|known| known.name == name);
            if new && prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                found.extend(suite.package(&name)?);
            }
        }
        next += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_are_parsed_without_versions_and_with_each_alternative() {
        let shown =
            "Package: a\nVersion: 1:2.0-3\nDepends: b (= 1), c | d (>= 2)\nDescription: x\n";
        let package = parse(shown).unwrap();
        assert_eq!(package.version, "1:2.0-3");
        assert_eq!(package.depends, ["b", "c", "d"]);
    }
}
