//! The settings of a guest that a placement may change, read and written as files.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use netsilo_lab::Lab;

/// Prints every setting as `file:text`. A file that this kernel lacks is left out.
const READ: &str = "cd /; grep -sH . \
     proc/irq/*/smp_affinity proc/irq/default_smp_affinity proc/sys/net/core/rps_* \
     proc/sys/net/core/busy_* proc/sys/net/core/somaxconn proc/sys/net/ipv4/tcp_fastopen \
     proc/sys/net/ipv4/tcp_max_syn_backlog proc/sys/net/ipv4/tcp_rmem proc/sys/net/ipv4/tcp_wmem \
     proc/sys/kernel/numa_balancing sys/class/net/eth*/queues/*/rps_* \
     sys/class/net/eth*/queues/*/xps_* sys/class/net/eth*/threaded; true";

/// The text of each file, by its path without the first slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Knobs(BTreeMap<String, String>);

impl Knobs {
    /// Reads all settings.
    pub(crate) fn read(lab: &Lab) -> Result<Self> {
        Ok(Self::parse(&lab.sh(READ)?))
    }

    /// Parses lines of `file:text`.
    pub(crate) fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (file, text) = line.split_once(':')?;
            // The kernel separates the numbers of tcp_rmem by tabs.
            Some((file.to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Returns the number of settings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sets the value of each file for whose path `is_meant` returns true. The value must be
    /// written as the kernel prints it.
    pub(crate) fn set(&mut self, is_meant: impl Fn(&str) -> bool, value: &str) {
        let meant = self.0.iter_mut().filter(|(file, _)| is_meant(file));
        meant.for_each(|(_, text)| value.clone_into(text));
    }

    /// Sets the values of these files, whose paths begin with a slash.
    pub(crate) fn change(&mut self, changes: &BTreeMap<String, String>) {
        for (file, value) in changes {
            self.set(|known| file.strip_prefix('/') == Some(known), value);
        }
    }

    /// Writes the settings that differ in the guest, and checks that the kernel has accepted them.
    pub(crate) fn write(&self, lab: &Lab) -> Result<()> {
        let write = |(file, _, value): (&str, &str, &str)| format!("echo '{value}' >/{file}");
        let writes: Vec<String> =
            Self::read(lab)?.changes_to(self).into_iter().map(write).collect();
        lab.sh(&writes.join(" && "))?;
        let after = Self::read(lab)?;
        ensure!(after == *self, "the guest did not take these settings:\n{}", self.lines(&after));
        Ok(())
    }

    /// The settings that differ: file, value here, value there.
    fn changes_to<'a>(&'a self, other: &'a Self) -> Vec<(&'a str, &'a str, &'a str)> {
        let changed = |(file, here): (&'a String, &'a String)| {
            let there = other.0.get(file)?;
            (here != there).then_some((file.as_str(), here.as_str(), there.as_str()))
        };
        self.0.iter().filter_map(changed).collect()
    }

    /// One line for each setting that differs between these and others.
    pub(crate) fn lines(&self, other: &Self) -> String {
        let line = |(file, here, there)| format!("  {file}: {here} became {there}");
        self.changes_to(other).into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The files that differ from others, with their values here.
    pub(crate) fn differences_from(&self, other: &Self) -> BTreeMap<String, String> {
        let changed = self.changes_to(other).into_iter();
        changed.map(|(file, here, _)| (format!("/{file}"), here.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_changed_and_compared() {
        let text = "proc/irq/9/smp_affinity:ff\nproc/sys/net/ipv4/tcp_rmem:4096\t131072\t6291456\n\
                    sys/class/net/eth0/queues/rx-0/rps_cpus:00\n";
        let before = Knobs::parse(text);
        assert_eq!(
            (before.len(), before.0["proc/sys/net/ipv4/tcp_rmem"].as_str()),
            (3, "4096 131072 6291456")
        );
        let mut after = before.clone();
        after.set(|file| file.ends_with("/rps_cpus"), "ff");
        assert_eq!(before.lines(&after), "  sys/class/net/eth0/queues/rx-0/rps_cpus: 00 became ff");
        assert_eq!(
            after.differences_from(&before)["/sys/class/net/eth0/queues/rx-0/rps_cpus"],
            "ff"
        );
        let mut again = before.clone();
        again.change(&after.differences_from(&before));
        assert_eq!(again, after);
        assert_eq!(before.lines(&before), "");
    }
}
