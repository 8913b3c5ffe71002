//! A veth pair between two network namespaces of this machine, for tests and benchmarks without a
//! guest.

use anyhow::{Result, ensure};
use std::process::Command;

/// Two namespaces with 192.0.2.1 and 192.0.2.2; removed when dropped.
#[derive(Debug)]
pub struct Cable(pub [String; 2]);

impl Cable {
    /// Creates both namespaces, named `ns-<name>-<pid>-a` and `-b`.
    pub fn new(name: &str) -> Result<Self> {
        let cable = Self(["a", "b"].map(|end| format!("ns-{name}-{}-{end}", std::process::id())));
        let [a, b] = &cable.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"))?;
        for (netns, address) in [(a, "192.0.2.1/24"), (b, "192.0.2.2/24")] {
            ip(&format!("-n {netns} address add {address} dev veth0"))?;
            ip(&format!("-n {netns} link set veth0 up"))?;
            ip(&format!("-n {netns} link set lo up"))?;
        }
        Ok(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for netns in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    ensure!(
        Command::new("ip").args(arguments.split_whitespace()).status()?.success(),
        "ip {arguments} failed"
    );
    Ok(())
}
