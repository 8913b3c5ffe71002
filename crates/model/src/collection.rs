//! Command outputs that other collectors save: a sosreport, or a plain folder.
//!
//! Each parser turns the text of one command into the kernel files or answers that the command
//! read them from, so that the readers of a bundle read them too. No file access, and no
//! conclusions. Text that ends within a line, or lacks a wanted part, is a
//! [`ParseError`] with its line; what a command could not read is absent with the
//! command's reason.

pub mod cpus;
pub mod ethtool;
pub mod links;
pub mod names;
pub mod qdiscs;

use std::collections::BTreeMap;

use crate::parse::ParseError;

/// The lines of an output with their numbers, from 1 on. Fails if the last one was cut.
pub fn whole_lines(text: &str) -> Result<impl Iterator<Item = (usize, &str)>, ParseError> {
    let count = text.lines().count();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(ParseError::new(count, 1, "the file ends within a line"));
    }
    Ok((1..).zip(text.lines()))
}

/// A number of this line.
fn number<N: std::str::FromStr>(line: usize, word: &str) -> Result<N, ParseError> {
    let error = || ParseError::new(line, 1, format!("expected a number, found {word:?}"));
    word.parse().map_err(|_| error())
}

/// The word after another one (`mtu 1500`).
fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1).copied()
}

/// Kernel files of `NAME = value` lines (`sysctl -a`).
pub fn sysctls(text: &str) -> Vec<(String, String)> {
    // a dot within a name is printed as a slash
    let swapped = |c: char| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    let setting = |line: &str| {
        let (name, value) = line.split_once(" = ")?;
        let file: String = name.chars().map(swapped).collect();
        Some((format!("proc/sys/{file}"), format!("{value}\n")))
    };
    text.lines().filter_map(setting).collect()
}

/// Kernel files of `/path:value` lines (`grep -H`). A file of several lines has several.
pub fn grepped(text: &str) -> Vec<(String, String)> {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines() {
        // names of PCI devices contain colons: the path ends before a colon of its last name
        let colon = line.rfind('/').and_then(|last| Some(last + line[last..].find(':')?));
        if let Some((path, value)) = colon.map(|colon| line.split_at(colon)) {
            let file = files.entry(path.trim_start_matches('/')).or_default();
            *file += value.strip_prefix(':').unwrap_or(value);
            file.push('\n');
        }
    }
    files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect()
}

/// The kernel files of `uname -a`: host name, release and machine.
pub fn uname(text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let ["Linux", host, release, .., last] = words[..] else { return Vec::new() };
    // the operating system ends the line
    let machine = if last == "GNU/Linux" { words[words.len() - 2] } else { last };
    let files = [("hostname", host), ("osrelease", release), ("arch", machine)];
    files.map(|(name, value)| (format!("proc/sys/kernel/{name}"), format!("{value}\n"))).to_vec()
}

/// The kernel files of `ps aux`: name and command line of each process. A kernel thread also has a
/// `stat`, which says that it is one, and nothing else that netsilo uses.
pub fn processes(text: &str) -> Vec<(String, String)> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let column = |name: &str| header.iter().position(|it| *it == name);
    let (pid, command) = (column("PID"), column("COMMAND").or_else(|| column("CMD")));
    // the other formats of `ps` print dates of several words before the command
    let Some((pid, command)) = pid.zip(command).filter(|_| column("STARTED").is_none()) else {
        return Vec::new();
    };
    let process = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (pid, args) = (words.get(pid)?.parse::<u32>().ok()?, words.get(command..)?);
        let first = args.first()?;
        // a kernel thread has its name in brackets, a program its path
        let name = first.trim_start_matches('[').trim_end_matches(']');
        let is_kthread = name.len() < first.len();
        let name = if is_kthread { name } else { first.rsplit('/').next()? };
        let mut files = vec![("comm", format!("{name}\n")), ("cmdline", args.join("\0") + "\0")];
        if is_kthread {
            // of field 9 PF_KTHREAD, and no start time
            let stat = format!("{pid} ({name}) S 2 0 0 0 -1 2097152{}\n", " 0".repeat(13));
            files.push(("stat", stat));
        }
        let path = move |file| format!("proc/{pid}/{file}");
        Some(files.into_iter().map(move |(file, text)| (path(file), text)))
    };
    lines.filter_map(process).flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::collection::names::EthtoolPart;
    use crate::parse::pid_stat::pid_stat;
    use crate::parse::schedstat::processor;
    use crate::snapshot::ethtool::Ethtool;

    #[test]
    fn grep_prints_paths_with_colons_in_them() {
        let text = "/sys/devices/pci0000:00/0000:00:03.0/numa_node:0\n/proc/irq/24/node:-1\n";
        let files = grepped(text);
        let pci = "sys/devices/pci0000:00/0000:00:03.0/numa_node";
        let expected = [("proc/irq/24/node", "-1\n"), (pci, "0\n")];
        assert_eq!(files, expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
    }

    #[test]
    fn sysctls_are_files_and_dots_in_names_stay() {
        let files = sysctls("net.ipv4.conf.eth0/104.forwarding = 1\nx\n");
        let path = "proc/sys/net/ipv4/conf/eth0.104/forwarding";
        assert_eq!(files, [(path.to_owned(), "1\n".to_owned())]);
    }

    #[test]
    fn uname_ends_with_the_machine_or_the_operating_system() {
        let text = "Linux web1 6.1.0-9-amd64 #1 SMP x86_64 GNU/Linux\n";
        let values: Vec<String> = uname(text).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["web1\n", "6.1.0-9-amd64\n", "x86_64\n"]);
        assert!(uname("web1\n").is_empty());
    }

    #[test]
    fn processes_have_their_name_and_command_line() {
        let text = "USER PID %CPU COMMAND\nroot 9 0.0 /usr/sbin/irqbalance --foreground\n\
            root 15 0.0 [ksoftirqd/0]\n";
        let files = processes(text);
        assert_eq!(files[0], ("proc/9/comm".to_owned(), "irqbalance\n".to_owned()));
        assert_eq!(files[1].1, "/usr/sbin/irqbalance\0--foreground\0");
        assert_eq!(files[2].1, "ksoftirqd/0\n");
        let stat = pid_stat(&files[4].1).unwrap();
        assert!(stat.kthread && stat.comm == "ksoftirqd/0" && processor(&files[4].1).is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([a-zA-Z:./<>,_0-9-]{0,9}[ \t\n:]){0,60}") {
            for part in EthtoolPart::ALL {
                let _ = ethtool::add(&mut Ethtool::unavailable(""), part, &text);
            }
            let _ = (links::links(&text), qdiscs::qdiscs(&text, |_| Some(1)));
            let _ = (cpus::lscpu(&text), cpus::numactl(&text), uname(&text), processes(&text));
            let _ = (names::item(&text), sysctls(&text).len());
            let _ = grepped(&text);
        }
    }
}
