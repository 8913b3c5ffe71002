//! Builds QEMU's command line for a spec. Reads and writes nothing.

use crate::arch::Arch;
use crate::arch::ArmRoot;
use crate::command::Shown;
use crate::emulator::Accel;
use crate::emulator::Emulator;
use crate::kernels::Image;
use crate::spec::Init;
use crate::spec::Nic;
use crate::spec::NicModel;
use crate::spec::Spec;
use crate::spec::Threads;
use serde_json::{Value, json};
use std::path::Path;

/// `nowatchdog`, `no_timer_check` and `tsc=unstable` are needed because emulated CPUs stall longer
/// than those checks allow.
const KERNEL_ARGS: &str = "quiet panic=-1 tsc=unstable nokaslr mitigations=off \
                           random.trust_cpu=on nowatchdog no_timer_check net.ifnames=0 \
                           ipv6.disable=1 cryptomgr.notests";

/// The host's root is read-only, and its file systems and terminals are not those of the guest.
const SYSTEMD_ARGS: &str = "lab.init=systemd systemd.machine_id=6e6574736c696f6c61620000000000ff \
                            systemd.show_status=no systemd.getty_auto=no systemd.gpt_auto=no \
                            fstab=no";

/// Returns the MAC address of card `index`, by which the guest identifies it.
pub(crate) fn mac(index: usize) -> String {
    format!("52:54:00:6e:73:{index:02x}")
}

/// Returns all arguments. The command channel is file descriptor 0, QMP is 1, console and errors go
/// to 2.
pub(crate) fn arguments(
    spec: &Spec,
    accel: Accel,
    emulator: &Emulator,
    image: &Image,
    initrd: &Path,
    arm: Option<&ArmRoot>,
) -> Vec<String> {
    let mut line = Line::default();
    for firmware in &emulator.firmware {
        line.add("-L", firmware.shown());
    }
    // TSX is not emulated; with it QEMU prints warnings.
    let (machine, cpu, console) = match spec.arch {
        Arch::Amd64 => ("q35", "Skylake-Server,-hle,-rtm", "ttyS0"),
        Arch::Arm64 => ("virt,gic-version=3", "neoverse-n1", "ttyAMA0"),
    };
    line.add("-machine", machine);
    match accel {
        Accel::Kvm => line.add("-accel", "kvm").add("-cpu", "host"),
        Accel::Tcg => {
            let threads = if spec.threads == Threads::Single { "single" } else { "multi" };
            line.add("-accel", format!("tcg,thread={threads}")).add("-cpu", cpu)
        }
    };
    let (cores, threads) = spec.cores_and_threads();
    // Where cores have no threads, as many of them are a cluster.
    let shape = match spec.arch {
        Arch::Amd64 => format!("cores={cores},threads={threads}"),
        Arch::Arm64 => format!("clusters={cores},cores={threads}"),
    };
    line.add("-smp", format!("{},sockets=2,{shape}", spec.cpus));
    line.add("-m", spec.memory_mib.to_string());
    for node in 0..2 {
        let (first, last) = (node * spec.cpus / 2, (node + 1) * spec.cpus / 2 - 1);
        line.add(
            "-object",
            format!("memory-backend-ram,id=mem{node},size={}M", spec.memory_mib / 2),
        );
        line.add("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev=mem{node}"));
    }
    line.add("-numa", "dist,src=0,dst=1,val=21");
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        line.0.push(flag.to_owned());
    }
    line.add("-display", "none");
    line.add("-chardev", "file,id=console,path=/dev/fd/2,append=on")
        .add("-serial", "chardev:console");
    line.add("-chardev", "socket,id=qmp,fd=1").add("-mon", "chardev=qmp,mode=control");
    line.add("-kernel", image.bootable().shown()).add("-initrd", initrd.shown());
    let drivers: Vec<&str> = spec.nics.iter().map(|nic| nic.model.driver()).collect();
    // The guest's init reads `lab.drivers`.
    let mut ours =
        vec![format!("console={console} {KERNEL_ARGS} lab.drivers={}", drivers.join(","))];
    if spec.init == Init::Systemd {
        ours.push(SYSTEMD_ARGS.to_owned());
    }
    if spec.disk.is_some() {
        ours.push("lab.disk=/dev/vda".to_owned());
    }
    if spec.iommu {
        // Before the devices behind it.
        line.add("-device", "intel-iommu,intremap=off");
        ours.push("intel_iommu=on".to_owned());
    }
    line.add("-append", [ours.as_slice(), spec.kernel_args.as_slice()].concat().join(" "));
    line.add("-device", "virtio-serial-pci").add("-chardev", "socket,id=lab,fd=0");
    line.add("-device", "virtserialport,chardev=lab,name=lab");
    if let Some(disk) = &spec.disk {
        let file = disk.shown().replace(',', ",,");
        line.add("-drive", format!("if=none,id=disk,format=raw,file={file}"));
        line.add("-device", "virtio-blk-pci,drive=disk");
    }
    if spec.nvme {
        line.add("-blockdev", "driver=null-co,size=67108864,read-zeroes=on,node-name=nvme");
        line.add("-device", "nvme,drive=nvme,serial=lab");
    }
    let root = arm.map_or(Path::new("/"), |arm| &arm.root);
    let programs = arm.map(|arm| ("programs", arm.programs.as_path()));
    for (tag, path) in [("hostroot", root), ("kernel", &image.root)].into_iter().chain(programs) {
        let path = path.shown().replace(',', ",,");
        line.add(
            "-fsdev",
            format!("local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"),
        );
        line.add("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    }
    nics(&mut line, &spec.nics);
    line.0
}

fn nics(line: &mut Line, nics: &[Nic]) {
    for node in 0..2 {
        if nics.iter().any(|nic| nic.node == Some(node)) {
            let bus = 0x40 * (node + 1);
            line.add(
                "-device",
                format!("pxb-pcie,id=node{node},bus=pcie.0,bus_nr={bus},numa_node={node}"),
            );
        }
    }
    for (index, nic) in nics.iter().enumerate() {
        let root = nic.node.map_or_else(|| "pcie.0".to_owned(), |node| format!("node{node}"));
        let slot = index + 1;
        line.add(
            "-device",
            format!("pcie-root-port,id=port{index},bus={root},chassis={slot},slot={slot}"),
        );
        let tap = format!("tap,id=net{index},ifname=tap{index},script=no,downscript=no,vhost=off");
        let queues = match nic.queues {
            queues @ 2.. if nic.model.is_virtio() => format!(",queues={queues}"),
            _ => String::new(),
        };
        line.add("-netdev", tap + &queues);
        line.add("-device", card(index, *nic).to_string());
    }
}

/// The device of card `index`, as `-device` and QMP's `device_add` take it.
pub(crate) fn card(index: usize, nic: Nic) -> Value {
    let driver = if nic.model.is_virtio() { "virtio-net-pci" } else { nic.model.driver() };
    let mut card = json!({
        "driver": driver, "id": format!("nic{index}"), "netdev": format!("net{index}"),
        "bus": format!("port{index}"), "mac": mac(index),
    });
    if nic.model.is_virtio() {
        // Two vectors per queue pair (input, output), one for the control queue, one for
        // configuration.
        card["mq"] = true.into();
        card["vectors"] = (2 * nic.queues + 2).into();
    }
    if nic.model == NicModel::VirtioRss {
        (card["rss"], card["hash"]) = (true.into(), true.into());
    }
    card
}

#[derive(Default)]
struct Line(Vec<String>);

impl Line {
    fn add(&mut self, option: &str, value: impl Into<String>) -> &mut Self {
        self.0.extend([option.to_owned(), value.into()]);
        self
    }
}
