//! A host with NICs, as few files as possible.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A NIC: its name, its device below `/sys/devices`, its driver, its rx queues, whether it is up.
pub(crate) struct Nic(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) u32,
    pub(crate) bool,
);

/// Writes a host with these rows of `/proc/interrupts`, NICs, and further files.
pub(crate) fn write(root: &Path, rows: &str, nics: &[Nic], files: &[(&str, &str)]) {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let link = |path: &str, target: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    };
    put("proc/interrupts", &format!("            CPU0\n{rows}"));
    put("proc/stat", "cpu0 10 0 10 1000 0 0 0 0 0 0\n");
    put("proc/uptime", "1000.00 1000.00\n");
    put("proc/sys/kernel/osrelease", "6.12.0\n");
    put("sys/devices/system/cpu/online", "0\n");
    put("sys/devices/system/cpu/possible", "0\n");
    put("sys/devices/system/cpu/present", "0\n");
    put("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0\n");
    fs::create_dir_all(root.join("sys/class/net")).unwrap();
    for (at, Nic(name, device, driver, queues, up)) in nics.iter().enumerate() {
        let dir = format!("sys/devices/{device}/net/{name}");
        put(&format!("{dir}/ifindex"), &format!("{}\n", at + 2));
        put(&format!("{dir}/flags"), if *up { "0x1003\n" } else { "0x1002\n" });
        put(&format!("{dir}/mtu"), "1500\n");
        for queue in 0..*queues {
            put(&format!("{dir}/queues/rx-{queue}/rps_cpus"), "0\n");
        }
        link(&format!("{dir}/device"), "../..");
        link(&format!("sys/class/net/{name}"), &format!("../../devices/{device}/net/{name}"));
        if !root.join(format!("sys/devices/{device}/driver")).is_symlink() {
            link(&format!("sys/devices/{device}/driver"), &format!("/sys/bus/x/drivers/{driver}"));
        }
    }
    files.iter().for_each(|(path, text)| put(path, text));
}
