//! A synthetic host of any size as a tree for `Root::at`: for benchmarks, and tests beyond 256
//! CPUs.

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::netdev_genl::{Direction, Napi, NetdevGenl, Queue};

/// The size of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BigHost {
    /// CPUs: two threads per core, eight cores per last-level cache, 128 CPUs per node.
    pub(crate) cpus: u32,
    /// Interrupts. Each rx queue has one; the others belong to no device.
    pub(crate) irqs: u32,
    /// Netdevs.
    pub(crate) netdevs: u32,
    /// Rx and tx queues of each.
    pub(crate) queues: u32,
}

const FIRST_IRQ: u32 = 30;
const FIRST_NAPI: u32 = 8193;

impl BigHost {
    /// `/proc/interrupts` as the kernel prints it.
    pub(crate) fn interrupts(&self) -> String {
        self.interrupts_at(0)
    }

    /// The text `seconds` later, with the same length.
    fn interrupts_at(&self, seconds: u64) -> String {
        let mut text = String::from("            ");
        let mut put = |args: std::fmt::Arguments<'_>| text.write_fmt(args).unwrap_or_default();
        for cpu in 0..self.cpus {
            put(format_args!("{:<11}", format!("CPU{cpu}")));
        }
        put(format_args!("\n"));
        for n in 0..self.irqs {
            put(format_args!("{:>4}:", FIRST_IRQ + n));
            for cpu in 0..self.cpus {
                let more = if count(cpu, n) > 0 { seconds * 500 } else { 0 };
                put(format_args!(" {:>10}", count(cpu, n) + more));
            }
            put(format_args!(" PCI-MSIX-{}  {n:>4}-edge      {}\n", self.bus(n), self.action(n)));
        }
        for (row, name) in [("LOC", "Local timer interrupts"), ("CAL", "Function call interrupts")]
        {
            put(format_args!(" {row}:"));
            for cpu in 0..self.cpus {
                put(format_args!(" {:>10}", cpu + 1));
            }
            put(format_args!("   {name}\n"));
        }
        put(format_args!(" ERR:          0\n"));
        text
    }

    /// `/proc/stat`, with the sum over all CPUs first.
    fn stat_at(&self, seconds: u64) -> String {
        const START: u64 = 1_000_000_000;
        let times = |cpus: u64, softirq: u64| {
            let [user, system, idle] = [20, 10, 50].map(|ticks| START + cpus * seconds * ticks);
            format!("{user} 0 {system} {idle} 0 0 {} 0 0 0", START + seconds * softirq)
        };
        let each =
            (0..self.cpus).map(|cpu| format!("cpu{cpu} {}\n", times(1, u64::from(cpu % 4) * 5)));
        format!(
            "cpu  {}\n{}intr 0\nctxt 0\n",
            times(u64::from(self.cpus), 0),
            each.collect::<String>()
        )
    }

    /// Advances time in a written tree: updates `/proc/interrupts` and `/proc/stat` in place.
    #[allow(dead_code, reason = "not every user advances time")]
    pub(crate) fn pass(&self, dir: &Path, seconds: u64) -> io::Result<()> {
        for (path, text) in
            [("proc/interrupts", self.interrupts_at(seconds)), ("proc/stat", self.stat_at(seconds))]
        {
            fs::OpenOptions::new().write(true).open(dir.join(path))?.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the tree.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let put = |path: &str, contents: &str| put(dir, path, contents);
        put("proc/interrupts", &self.interrupts())?;
        put("proc/stat", &self.stat_at(0))?;
        put("proc/softirqs", &self.softirqs())?;
        put("proc/net/softnet_stat", &(0..self.cpus).map(softnet).collect::<String>())?;
        put("proc/irq/default_smp_affinity", &self.mask())?;
        self.write_cpus(dir, &put)?;
        self.write_devices(dir)?;
        for n in 0..self.irqs {
            let at = format!("proc/irq/{}", FIRST_IRQ + n);
            put(&format!("{at}/smp_affinity_list"), &format!("0-{}\n", self.cpus - 1))?;
            put(&format!("{at}/smp_affinity"), &self.mask())?;
            put(&format!("{at}/effective_affinity_list"), &format!("{}\n", n % self.cpus))?;
            put(&format!("{at}/affinity_hint"), &self.mask())?;
            put(&format!("{at}/node"), "0\n")?;
            let at = format!("sys/kernel/irq/{}", FIRST_IRQ + n);
            let counts: Vec<String> = (0..self.cpus).map(|cpu| count(cpu, n).to_string()).collect();
            put(&format!("{at}/per_cpu_count"), &(counts.join(",") + "\n"))?;
            put(&format!("{at}/actions"), &(self.action(n) + "\n"))?;
        }
        put("netdev_genl.json", &serde_json::to_string(&Reading::Value(self.netlink()))?)?;
        (0..self.netdevs).try_for_each(|dev| self.write_netdev(dir, dev))
    }

    fn write_cpus(
        &self,
        dir: &Path,
        put: &impl Fn(&str, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        let cpus = "sys/devices/system/cpu";
        for name in ["online", "present", "possible"] {
            put(&format!("{cpus}/{name}"), &format!("0-{}\n", self.cpus - 1))?;
        }
        let block = |cpu: u32, size: u32| {
            let first = cpu / size * size;
            format!("{first}-{}\n", (first + size - 1).min(self.cpus - 1))
        };
        for cpu in 0..self.cpus {
            let at = format!("{cpus}/cpu{cpu}");
            put(&format!("{at}/topology/core_cpus_list"), &block(cpu, 2))?;
            put(&format!("{at}/topology/package_cpus_list"), &block(cpu, 256))?;
            put(&format!("{at}/topology/physical_package_id"), &format!("{}\n", cpu / 256))?;
            put(&format!("{at}/topology/core_siblings"), &self.block_mask(cpu, 256))?;
            fs::create_dir_all(dir.join(format!("{at}/node{}", cpu / 128)))?;
            for (index, level, kind, size) in [
                (0, 1, "Data", 2),
                (1, 1, "Instruction", 2),
                (2, 2, "Unified", 2),
                (3, 3, "Unified", 16),
            ] {
                put(&format!("{at}/cache/index{index}/level"), &format!("{level}\n"))?;
                put(&format!("{at}/cache/index{index}/type"), &format!("{kind}\n"))?;
                put(&format!("{at}/cache/index{index}/shared_cpu_list"), &block(cpu, size))?;
                put(
                    &format!("{at}/cache/index{index}/shared_cpu_map"),
                    &self.block_mask(cpu, size),
                )?;
            }
        }
        for node in 0..self.cpus.div_ceil(128) {
            let at = format!("sys/devices/system/node/node{node}");
            put(&format!("{at}/cpulist"), &block(node * 128, 128))?;
            put(&format!("{at}/cpumap"), &self.block_mask(node * 128, 128))?;
            put(&format!("{at}/distance"), &"10 ".repeat(self.cpus.div_ceil(128) as usize))?;
        }
        Ok(())
    }

    /// The PCI devices of the interrupts, where irqbalance looks for them.
    fn write_devices(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir.join("sys/bus/pci/devices"))?;
        for n in 0..self.irqs {
            let device = format!("sys/devices/pci0000:00/{}", self.bus(n));
            put(dir, &format!("{device}/msi_irqs/{}", FIRST_IRQ + n), "msix\n")?;
            let class = if n / self.queues < self.netdevs { "0x020000\n" } else { "0x010802\n" };
            for (name, value) in [
                ("class", class),
                ("numa_node", "0\n"),
                ("vendor", "0x8086\n"),
                ("device", "0x1592\n"),
            ] {
                put(dir, &format!("{device}/{name}"), value)?;
            }
            let link = dir.join(format!("sys/bus/pci/devices/{}", self.bus(n)));
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(format!("../../../../{device}"), link)?;
            }
        }
        Ok(())
    }

    fn write_netdev(&self, dir: &Path, dev: u32) -> io::Result<()> {
        let device = format!("sys/devices/pci0000:00/{}", self.bus(dev * self.queues));
        let at = format!("{device}/net/eth{dev}");
        let put = |path: &str, contents: &str| put(dir, &format!("{at}/{path}"), contents);
        put("ifindex", &format!("{}\n", dev + 2))?;
        for (name, value) in
            [("flags", "0x1003"), ("mtu", "1500"), ("carrier", "1"), ("speed", "100000")]
        {
            put(name, value)?;
        }
        for name in ["rx_packets", "rx_bytes", "rx_dropped", "tx_packets", "tx_bytes"] {
            put(&format!("statistics/{name}"), "1\n")?;
        }
        for queue in 0..self.queues {
            put(&format!("queues/rx-{queue}/rps_cpus"), "0\n")?;
            put(&format!("queues/rx-{queue}/rps_flow_cnt"), "0\n")?;
            put(&format!("queues/tx-{queue}/xps_cpus"), "0\n")?;
            let irq = FIRST_IRQ + dev * self.queues + queue;
            self::put(dir, &format!("{device}/msi_irqs/{irq}"), "msix\n")?;
        }
        fs::create_dir_all(dir.join("sys/class/net"))?;
        std::os::unix::fs::symlink(
            format!("../../../{at}"),
            dir.join(format!("sys/class/net/eth{dev}")),
        )?;
        std::os::unix::fs::symlink("../..", dir.join(format!("{at}/device")))?;
        std::os::unix::fs::symlink(
            "../../../bus/pci/drivers/ice",
            dir.join(format!("{device}/driver")),
        )
    }

    /// Queues and NAPIs, one of each per interrupt.
    fn netlink(&self) -> NetdevGenl {
        let vectors =
            || (0..self.netdevs).flat_map(|dev| (0..self.queues).map(move |queue| (dev, queue)));
        let irq = |(dev, queue): (u32, u32)| FIRST_IRQ + dev * self.queues + queue;
        let queue = |(dev, queue)| Queue {
            ifindex: dev + 2,
            id: queue,
            direction: Direction::Rx,
            napi_id: Some(FIRST_NAPI + irq((dev, queue))),
            owners: Vec::new(),
        };
        let napi = |(dev, queue)| Napi {
            ifindex: dev + 2,
            id: FIRST_NAPI + irq((dev, queue)),
            irq: Some(irq((dev, queue))),
            pid: None,
            defer_hard_irqs: None,
            gro_flush_timeout_nsecs: None,
            irq_suspend_timeout_nsecs: None,
            threaded: None,
        };
        NetdevGenl { queues: vectors().map(queue).collect(), napis: vectors().map(napi).collect() }
    }

    fn softirqs(&self) -> String {
        let mut text: String = (0..self.cpus).map(|cpu| format!("       CPU{cpu}")).collect();
        for name in [
            "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
            "RCU",
        ] {
            let row: String = (0..self.cpus).map(|cpu| format!(" {:>10}", cpu * 3)).collect();
            text.push_str(&format!("\n{name:>12}:{row}"));
        }
        text + "\n"
    }

    fn mask(&self) -> String {
        vec!["ffffffff"; self.cpus.div_ceil(32) as usize].join(",") + "\n"
    }

    /// The mask of the block of `size` CPUs that contains `cpu`.
    fn block_mask(&self, cpu: u32, size: u32) -> String {
        let first = cpu / size * size;
        let block: CpuSet = (first..(first + size).min(self.cpus)).map(CpuId).collect();
        block.to_mask(self.cpus) + "\n"
    }

    fn action(&self, n: u32) -> String {
        match n / self.queues {
            dev if dev < self.netdevs => format!("ice-eth{dev}-TxRx-{}", n % self.queues),
            _ => format!("nvme{}q{}", n / 128, n % 128),
        }
    }

    fn bus(&self, n: u32) -> String {
        format!("0000:{:02x}:00.0", n / self.queues % 256)
    }
}

/// How often a CPU received an interrupt. One CPU in sixteen received it.
fn count(cpu: u32, n: u32) -> u64 {
    if (cpu + n).is_multiple_of(16) { u64::from(n) * 1000 + u64::from(cpu) } else { 0 }
}

fn softnet(cpu: u32) -> String {
    format!("0000000f {}{cpu:08x} 00000000 00000000\n", "00000000 ".repeat(11))
}

fn put(dir: &Path, path: &str, contents: &str) -> io::Result<()> {
    let at = dir.join(path);
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(at, contents)
}
