//! Measures placements over veths of this machine's own kernel.
//!
//! Each kthread is on the server's CPU or on that of its clients. Without kthreads the packets are
//! polled on the sender's CPU, or where RPS steers them; the default cannot choose that.

use std::path::Path;

use anyhow::{Context, Result};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord, Start};
use crate::experiment::study::{Scene, Study};
use crate::outcome::veth_loads::{LOADS, VethLoad};
use crate::veths::{Veth, VethSetting, until_quiet};
use crate::wire::{CLIENT_CPU, SERVER_CPU, cpus_of, kernel};

/// The kthreads' places.
const PLACES: [u32; 2] = [SERVER_CPU, CLIENT_CPU];

/// The masks of RPS in softirqs: none, the reader's CPU, both.
const MASKS: [u32; 3] = [0b00, 0b10, 0b11];

/// The veths of this machine; each load has its own.
pub(super) struct Veths {
    pub(super) looks: u16,
}

/// A load with its server running.
struct VethScene {
    load: VethLoad,
    looks: u16,
    veth: Veth,
}

impl Study for Veths {
    fn folder(&self) -> &'static str {
        "veth"
    }

    fn loads(&self) -> Vec<String> {
        LOADS.map(|load| load.name.to_owned()).to_vec()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(format!("Linux {}", kernel()?))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let load = LOADS.into_iter().find(|known| known.name == load).context("unknown load")?;
        until_quiet()?;
        let veth = Veth::start(load.course, load.server, load.client)?;
        Ok(Box::new(VethScene { load, looks: self.looks, veth }))
    }
}

impl Scene for VethScene {
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord> {
        let ways = self.ways();
        let settings: Vec<SettingRecord> = ways.iter().map(setting).collect();
        let mut starts = Vec::new();
        for look in 0..self.looks {
            let placements = settings.iter().enumerate().filter(|(_, it)| it.is_placement());
            for (placement, setting) in placements {
                self.veth.set(&ways[placement])?;
                let bundle = format!(
                    "{}-from-{}-{look}.tar.zst",
                    slug(self.load.name),
                    setting.cpus.join("-")
                );
                self.veth.capture(&folder.join(&bundle))?;
                starts.push(Start { placement, bundle });
            }
        }
        Ok(LoadRecord {
            name: self.load.name.to_owned(),
            unit: self.veth.unit(),
            netdevs: self.veth.netdevs().iter().map(|it| (*it).to_owned()).collect(),
            settings,
            starts,
            ..LoadRecord::default()
        })
    }

    fn apply(&mut self, wanted: &SettingRecord) -> Result<()> {
        let ways = self.ways();
        let way = ways.iter().find(|way| setting(way).label() == wanted.label());
        self.veth.set(way.context("not a setting of this load")?)
    }

    fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
        self.veth.measure(seconds)
    }

    fn finish(&mut self) -> Result<()> {
        until_quiet()
    }
}

impl VethScene {
    fn ways(&self) -> Vec<VethSetting> {
        ways(self.veth.netdevs().len(), self.load.has_others)
    }
}

/// Each placement of these kthreads, and the settings without them.
fn ways(kthreads: usize, has_others: bool) -> Vec<VethSetting> {
    let mut all = vec![Vec::new()];
    for _ in 0..kthreads {
        let longer = |cpus: &Vec<u32>| PLACES.map(|cpu| [cpus.as_slice(), &[cpu]].concat());
        all = all.iter().flat_map(longer).collect();
    }
    let placements = all.into_iter().map(|kthreads| VethSetting { kthreads, rps: 0 });
    let others = MASKS.into_iter().filter(|_| has_others);
    placements.chain(others.map(|rps| VethSetting { kthreads: Vec::new(), rps })).collect()
}

/// A setting as it is recorded.
fn setting(way: &VethSetting) -> SettingRecord {
    match way {
        VethSetting { kthreads, rps: 0 } if kthreads.is_empty() => {
            SettingRecord::new("softirq", &[])
        }
        VethSetting { kthreads, rps } if kthreads.is_empty() => {
            SettingRecord::new(&format!("softirq, RPS onto {}", cpus_of(*rps)), &[])
        }
        VethSetting { kthreads, .. } => {
            SettingRecord::new("", &kthreads.iter().map(u32::to_string).collect::<Vec<_>>())
        }
    }
}

/// A name as part of a file name.
fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let words: String = name.chars().map(kept).collect();
    words.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_of_two_kthreads_is_measured() {
        let all = ways(2, false);
        let expected = [[1, 1], [1, 0], [0, 1], [0, 0]];
        let expected = expected.map(|cpus| VethSetting { kthreads: cpus.to_vec(), rps: 0 });
        assert_eq!(all, expected);
        let labels: Vec<String> = ways(1, true).iter().map(|way| setting(way).label()).collect();
        let expected = ["1", "0", "softirq", "softirq, RPS onto 1", "softirq, RPS onto 0-1"];
        assert_eq!(labels, expected);
    }

    #[test]
    fn a_name_is_a_file_name() {
        assert_eq!(slug("TCP_RR x 16, 5 us of work"), "tcp-rr-x-16-5-us-of-work");
    }
}
