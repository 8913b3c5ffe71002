//! Which file of a report holds what, by its path in the report.

/// A part of what `ethtool` prints of a netdev, by the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EthtoolPart {
    /// Without an option.
    Link,
    /// `-i`.
    Driver,
    /// `-l`.
    Channels,
    /// `-g`.
    Rings,
    /// `-c`.
    Coalesce,
    /// `-k`.
    Features,
    /// `-x`.
    Rss,
    /// `-n`.
    Rules,
    /// `-S`.
    Stats,
}

impl EthtoolPart {
    /// All parts.
    pub const ALL: [Self; 9] = [
        Self::Link,
        Self::Driver,
        Self::Channels,
        Self::Rings,
        Self::Coalesce,
        Self::Features,
        Self::Rss,
        Self::Rules,
        Self::Stats,
    ];

    /// The option letter and the long names of its option.
    fn option(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Link => ("", &[]),
            Self::Driver => ("i", &["driver"]),
            Self::Channels => ("l", &["show-channels"]),
            Self::Rings => ("g", &["show-ring"]),
            Self::Coalesce => ("c", &["show-coalesce"]),
            Self::Features => ("k", &["show-features", "show-offload"]),
            Self::Rss => ("x", &["show-rxfh-indir", "show-rxfh"]),
            Self::Rules => ("n", &["show-nfc", "show-ntuple"]),
            Self::Stats => ("S", &["statistics"]),
        }
    }

    /// The command that prints it.
    pub fn command(self, netdev: &str) -> String {
        match self.option().0 {
            "" => format!("ethtool {netdev}"),
            option => format!("ethtool -{option} {netdev}"),
        }
    }
}

/// What a file of a report holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// The kernel file of this path, without a slash at its start.
    Kernel(String),
    /// A part of `ethtool` of a netdev, as the file's name writes the netdev.
    Ethtool(EthtoolPart, String),
    /// `ip link` or `ip address`.
    Links,
    /// `tc qdisc`.
    Qdiscs,
    /// `lscpu`, with or without a table.
    Lscpu,
    /// `numactl -H`.
    Numactl,
    /// `uname -a`.
    Uname,
    /// `ps`.
    Processes,
    /// `hostname`.
    Hostname,
    /// `sysctl -a`.
    Sysctl,
    /// Kernel files as `grep -H` prints them.
    Grepped,
}

/// The files of `/proc` that are read, other than those in folders.
const PROC: [&str; 6] = ["cmdline", "cpuinfo", "interrupts", "softirqs", "stat", "uptime"];

/// The files of `/proc/net` that are read.
const PROC_NET: [&str; 8] =
    ["dev", "netstat", "sctp/snmp", "snmp", "snmp6", "sockstat", "softnet_stat", "xfrm_stat"];

/// The files of `/proc/<pid>` that are read.
const PROC_PID: [&str; 5] = ["cmdline", "comm", "schedstat", "stat", "status"];

/// What the file at this path of a report holds; `None` for a file that is not read.
pub fn item(path: &str) -> Option<Item> {
    if let Some(name) = path.strip_prefix("sos_commands/") {
        let (_, name) = name.split_once('/').filter(|(_, name)| !name.contains('/'))?;
        return command(name);
    }
    if path.contains('/') {
        return is_read(path).then(|| Item::Kernel(path.to_owned()));
    }
    let name = [".txt", ".out", ".log", ".json"]
        .iter()
        .find_map(|extension| path.strip_suffix(extension))
        .unwrap_or(path);
    command(name).or_else(|| kernel_file(name))
}

/// Whether this is a kernel file that is read, or a link on the way to one.
fn is_read(path: &str) -> bool {
    let (top, rest) = path.split_once('/').unwrap_or((path, ""));
    let (folder, below) = rest.split_once('/').unwrap_or((rest, ""));
    let is_pid = || !folder.is_empty() && folder.bytes().all(|byte| byte.is_ascii_digit());
    match (top, folder) {
        ("proc", "self" | "net") if below.is_empty() => true,
        ("proc", "net") => PROC_NET.contains(&below),
        ("proc", "irq") => true,
        ("proc", "sys") => below.starts_with("kernel/") || below.starts_with("net/"),
        ("proc", name) if below.is_empty() => PROC.contains(&name),
        ("proc", _) if is_pid() => {
            let net = below.strip_prefix("net/");
            PROC_PID.contains(&below) || net.is_some_and(|name| PROC_NET.contains(&name))
        }
        ("sys", "class") => {
            below.starts_with("net/")
                || ["dmi/id/sys_vendor", "dmi/id/product_name"].contains(&below)
        }
        ("sys", "devices") => is_read_of_device(below),
        ("sys", "kernel") => below.starts_with("debug/irq/"),
        _ => false,
    }
}

/// Whether a file below `/sys/devices` is read.
fn is_read_of_device(path: &str) -> bool {
    const FILES: [&str; 9] = [
        "current_link_speed",
        "current_link_width",
        "driver",
        "features",
        "max_link_speed",
        "max_link_width",
        "numa_node",
        "physfn",
        "subsystem",
    ];
    ["system/cpu/", "system/node/", "cpu_core/", "cpu_atom/", "cpu_lowpower/"]
        .iter()
        .any(|start| path.starts_with(start))
        || path.split('/').any(|name| name == "net" || name == "msi_irqs")
        || path.rsplit('/').next().is_some_and(|name| FILES.contains(&name))
}

/// The words of a command in a file name: `ethtool -S eth0`, `ethtool_-S_eth0`, `ethtool-S-eth0`.
fn words(name: &str) -> Vec<&str> {
    name.split([' ', '_', '-']).filter(|word| !word.is_empty()).collect()
}

fn command(name: &str) -> Option<Item> {
    if let Some(rest) = name.strip_prefix("ethtool") {
        return ethtool(rest);
    }
    let words = words(name);
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(word));
    Some(match *words.first()? {
        "ip" if has(&["link", "addr", "address"]) && !has(&["macsec", "exec", "o"]) => Item::Links,
        "tc" if has(&["qdisc"]) => Item::Qdiscs,
        "lscpu" => Item::Lscpu,
        "numactl" if has(&["H", "hardware"]) => Item::Numactl,
        "ps" => Item::Processes,
        "uname" => Item::Uname,
        "hostname" if words.len() == 1 => Item::Hostname,
        "sysctl" => Item::Sysctl,
        "grep" => Item::Grepped,
        _ => return None,
    })
}

/// The rest of a name that begins with `ethtool`.
fn ethtool(rest: &str) -> Option<Item> {
    let spaces = [' ', '_'];
    let rest =
        rest.strip_prefix(|c| spaces.contains(&c) || c == '-').filter(|it| !it.is_empty())?;
    let rest = rest.trim_start_matches(spaces);
    let option = rest.trim_start_matches('-');
    let is_long = rest.starts_with("--");
    let ends = |c: char| spaces.contains(&c) || (c == '-' && !is_long);
    let with_option = option.split_once(ends).filter(|(option, _)| is_long || option.len() == 1);
    let Some((option, netdev)) = with_option else {
        return (!rest.starts_with('-')).then(|| Item::Ethtool(EthtoolPart::Link, rest.to_owned()));
    };
    let is_it = |part: &EthtoolPart| {
        let (letter, long) = part.option();
        if is_long { long.contains(&option) } else { letter == option }
    };
    let part = EthtoolPart::ALL.into_iter().find(is_it)?;
    let netdev = netdev.trim_start_matches(spaces);
    (!netdev.is_empty()).then(|| Item::Ethtool(part, netdev.to_owned()))
}

/// A kernel file in a plain folder: `interrupts`, `proc_interrupts`, `cat_proc_net_softnet_stat`.
fn kernel_file(name: &str) -> Option<Item> {
    let name = words(name).join("_");
    let name = name.strip_prefix("cat_").unwrap_or(&name);
    let name = name.strip_prefix("proc_").unwrap_or(name);
    let in_net = name.strip_prefix("net_");
    let known = match in_net {
        Some(name) => PROC_NET.contains(&name).then(|| format!("proc/net/{name}")),
        None if name == "softnet_stat" => Some("proc/net/softnet_stat".to_owned()),
        None => PROC.contains(&name).then(|| format!("proc/{name}")),
    };
    known.map(Item::Kernel)
}

/// The netdev as collectors write it in a file name: they replace other characters by `_`.
pub fn in_file_name(netdev: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    netdev.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_by_its_words_however_they_are_joined() {
        use EthtoolPart as Part;
        let of = |part, netdev: &str| Some(Item::Ethtool(part, netdev.to_owned()));
        for name in ["ethtool_-S_eth0", "ethtool -S eth0", "ethtool-S-eth0.txt", "ethtool_S_eth0"] {
            assert_eq!(item(name), of(Part::Stats, "eth0"), "{name}");
        }
        let sos = "sos_commands/networking/";
        assert_eq!(item(&format!("{sos}ethtool_-x_bond0.104")), of(Part::Rss, "bond0.104"));
        assert_eq!(item(&format!("{sos}ethtool_eth0")), of(Part::Link, "eth0"));
        assert_eq!(item(&format!("{sos}ethtool_--show-ntuple_eth0")), of(Part::Rules, "eth0"));
        assert_eq!(item("ethtool_-l_wan_up-0"), of(Part::Channels, "wan_up-0"));
        for other in ["ethtool_-P_eth0", "ethtool_--show-fec_eth0", "namespaces/x/ethtool_-S_e0"] {
            assert_eq!(item(&format!("{sos}{other}")), None, "{other}");
        }
        assert_eq!(item("ip -s -s -d link.txt"), Some(Item::Links));
        assert_eq!(item("ip_-j_-d_-s_link.json"), Some(Item::Links));
        assert_eq!(item(&format!("{sos}ip_-s_-s_neigh_show")), None);
        assert_eq!(item(&format!("{sos}tc_-s_qdisc_show")), Some(Item::Qdiscs));
        assert_eq!(item("sos_commands/numa/numactl_--hardware"), Some(Item::Numactl));
        let kernel = |path: &str| Some(Item::Kernel(path.to_owned()));
        for name in ["interrupts", "proc_interrupts", "cat_proc_interrupts.txt"] {
            assert_eq!(item(name), kernel("proc/interrupts"), "{name}");
        }
        assert_eq!(item("proc_net_softnet_stat"), kernel("proc/net/softnet_stat"));
        assert_eq!(item("netstat"), None, "the command's output");
    }

    #[test]
    fn of_kernel_files_only_known_ones_are_read() {
        let read = |path: &str| item(path).is_some();
        let virtio = "sys/devices/pci0000:00/0000:00:03.0/virtio0";
        assert!(read(&format!("{virtio}/net/eth0/statistics/rx_bytes")));
        assert!(read("proc/irq/24/smp_affinity_list") && read("proc/self"));
        assert!(read("proc/77/net/softnet_stat") && read("proc/sys/net/core/netdev_budget"));
        assert!(!read("proc/77/environ") && !read("proc/77/net/tcp") && !read("etc/shadow"));
        assert!(!read("sys/fs/cgroup/cpuset.cpus") && !read(&format!("{virtio}/uevent")));
    }
}
