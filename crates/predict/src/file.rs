//! Scenarios as TOML text: machine, NIC, load, and settings by name.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::schema::Stamp;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::{Table, Value};

use crate::scenario::{
    Changes, Filter, Forward, Kernel, Load, Machine, Nic, Protocol, RequestResponse, Scenario,
    Send, Service, Setting, USUAL_CLOCK,
};

/// The newest schema of scenarios that this netsilo reads.
const SCHEMA: u32 = 1;

/// A scenario with its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// Machine, NIC and load.
    pub scenario: Scenario,
    /// Settings by name, in the order of their names.
    pub settings: BTreeMap<String, Setting>,
}

/// What is wrong with a scenario.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadScenario {
    /// The text of a file.
    #[error("{}{what}", line.map_or_else(String::new, |line| format!("line {line}: ")))]
    Text {
        /// Line from 1, if the error has one.
        line: Option<usize>,
        /// What is wrong.
        what: String,
    },
    /// A change of one key.
    #[error("{key}: {what}")]
    Key {
        /// The key, with dots.
        key: String,
        /// What is wrong.
        what: String,
    },
}

/// Parses `text`, with each of `changes` (a key with dots, and its value) in place of what the text
/// says. `asked` are keys of one more setting, which has the other keys of `none`, or of the first
/// setting.
///
/// # Errors
/// What is wrong, with its line or key.
pub fn parse(
    text: &str,
    changes: &[(String, String)],
    asked: &[(String, String)],
) -> Result<Described, BadScenario> {
    let wrong = |error: toml::de::Error| {
        let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
        BadScenario::Text { line, what: error.message().to_owned() }
    };
    if let Ok(Err(unknown)) = toml::from_str::<Stamp>(text).map(|stamp| stamp.check(SCHEMA)) {
        return Err(BadScenario::Text { line: None, what: format!("it has {unknown}") });
    }
    let mut file: File = toml::from_str(text).map_err(wrong)?;
    if changes.is_empty() && asked.is_empty() {
        return file.described();
    }
    let mut table: Table = toml::from_str(text).map_err(wrong)?;
    let mut changed = |table: &mut Table, path: &[&str], key: &str, value: &str| {
        let bad = |what: String| BadScenario::Key { key: key.to_owned(), what };
        set(table, path, key, value).map_err(bad)?;
        file = File::deserialize(table.clone()).map_err(|why| bad(why.message().to_owned()))?;
        Ok(())
    };
    for (key, value) in changes {
        changed(&mut table, &[], key, value)?;
    }
    if !asked.is_empty() {
        let name = asked.iter().map(|(key, value)| format!("{key}={value}"));
        let name = name.collect::<Vec<_>>().join(" ");
        start_from_none(&mut table, &name);
        for (key, value) in asked {
            changed(&mut table, &["settings", &name], key, value)?;
        }
    }
    file.described()
}

/// Adds a setting called `name` that is `none`, or the first one.
fn start_from_none(table: &mut Table, name: &str) {
    let settings = table.entry("settings").or_insert_with(|| Value::Table(Table::new()));
    let Some(settings) = settings.as_table_mut() else { return };
    let base = settings.get("none").or_else(|| settings.values().next()).cloned();
    settings.insert(name.to_owned(), base.unwrap_or_else(|| Value::Table(Table::new())));
}

/// Sets the value at `key`, with dots between tables, below `path`.
fn set(table: &mut Table, path: &[&str], key: &str, value: &str) -> Result<(), String> {
    let (more, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut at = table;
    let more = more.split('.').filter(|name| !name.is_empty());
    for name in path.iter().copied().chain(more) {
        at = at
            .entry(name)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("{name} is a value, not a table"))?;
    }
    // What is no number or word of TOML is text.
    let parsed = format!("x = {value}").parse::<Table>().ok().and_then(|mut it| it.remove("x"));
    at.insert(last.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned())));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The number of the format, and the netsilo that wrote the file: read as a [`Stamp`].
    #[serde(default, rename = "schema")]
    _schema: Option<u32>,
    #[serde(default, rename = "netsilo")]
    _netsilo: Option<String>,
    machine: MachineKeys,
    #[serde(default)]
    nic: NicKeys,
    load: LoadKeys,
    #[serde(default)]
    settings: BTreeMap<String, SettingKeys>,
}

/// `[machine]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineKeys {
    #[serde(default = "one")]
    sockets: u32,
    cores: u32,
    #[serde(default = "one")]
    threads: u32,
    #[serde(default = "usual_clock")]
    ghz: f64,
    #[serde(default)]
    kernel: KernelVersion,
    #[serde(default)]
    r#virtual: bool,
}

fn one() -> u32 {
    1
}

fn usual_clock() -> f64 {
    USUAL_CLOCK
}

/// Text, also without quotes where it reads as a number: `irq = 7`, `kernel = 6.1`.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct Text(String);

impl TryFrom<Value> for Text {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(Self(text)),
            Value::Integer(number) => Ok(Self(number.to_string())),
            Value::Float(number) => Ok(Self(number.to_string())),
            other => Err(format!("write a text, not {}", other.type_str())),
        }
    }
}

/// A kernel's version, of which only the age counts.
#[derive(Deserialize)]
#[serde(try_from = "Text")]
struct KernelVersion(Kernel);

impl Default for KernelVersion {
    fn default() -> Self {
        Self(Kernel::Recent)
    }
}

impl TryFrom<Text> for KernelVersion {
    type Error = String;

    fn try_from(Text(text): Text) -> Result<Self, String> {
        let kernel = Kernel::of(&text);
        Ok(Self(kernel.ok_or_else(|| format!("{text:?}: write a kernel version, as 6.12"))?))
    }
}

/// `[nic]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NicKeys {
    driver: String,
    queues: u32,
    udp_ports: Option<bool>,
    gbit: f64,
    coalesce_us: f64,
    coalesce_frames: f64,
    mtu: f64,
    bus_gbit: Option<f64>,
}

impl Default for NicKeys {
    fn default() -> Self {
        Self {
            driver: String::new(),
            queues: 1,
            udp_ports: None,
            gbit: 10.0,
            coalesce_us: 20.0,
            coalesce_frames: 64.0,
            mtu: 1500.0,
            bus_gbit: None,
        }
    }
}

/// `[load]`
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum LoadKeys {
    TcpRr(RrKeys),
    UdpRr(RrKeys),
    Forward {
        /// Offered at each port: packets/s, or Mbit/s of frames with preamble and gap.
        #[serde(default)]
        packets: Option<f64>,
        #[serde(default)]
        mbit: Option<f64>,
        #[serde(default = "least_frame")]
        bytes: f64,
        #[serde(default)]
        two_way: bool,
        #[serde(default = "no_filter")]
        filter: Filter,
    },
    Send {
        protocol: Protocol,
        #[serde(default = "one_sender")]
        senders: f64,
        bytes: f64,
        #[serde(default)]
        sendfile: bool,
    },
    Service {
        usr: f64,
        sys: f64,
        softirq: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RrKeys {
    instances: f64,
    #[serde(default = "one_sender")]
    bytes: f64,
    #[serde(default)]
    work_us: f64,
    #[serde(default, deserialize_with = "cpu_set")]
    cpus: CpuSet,
    #[serde(default)]
    connected: bool,
}

fn least_frame() -> f64 {
    64.0
}

fn no_filter() -> Filter {
    Filter::None
}

fn one_sender() -> f64 {
    1.0
}

fn cpu_set<'de, D: Deserializer<'de>>(from: D) -> Result<CpuSet, D::Error> {
    let Text(text) = Text::deserialize(from)?;
    CpuSet::parse_list(&text).map_err(|why| D::Error::custom(format!("{text:?}: {why}")))
}

/// A list of CPUs in the order in which it names them, as `4,0-2`.
fn cpus_in_order<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<usize>, D::Error> {
    let Text(text) = Text::deserialize(from)?;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let set =
            CpuSet::parse_list(part).map_err(|why| D::Error::custom(format!("{text:?}: {why}")))?;
        cpus.extend(set.iter().map(|cpu| cpu.0 as usize));
    }
    Ok(cpus)
}

/// `[settings.NAME]`
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SettingKeys {
    #[serde(deserialize_with = "cpus_in_order")]
    irq: Vec<usize>,
    #[serde(deserialize_with = "cpu_set")]
    rps: CpuSet,
    rfs: u32,
    queues: Option<u32>,
    udp_ports: Option<bool>,
    coalesce_us: Option<f64>,
    coalesce_frames: Option<f64>,
    filter: Option<Filter>,
}

impl File {
    fn described(self) -> Result<Described, BadScenario> {
        let bad = |key: &str, what: &str| BadScenario::Key { key: key.into(), what: what.into() };
        let machine = self.machine.machine();
        let cpus = machine.cpu_count();
        if !(1..=MOST_CPUS).contains(&cpus) {
            return Err(bad("machine", "sockets x cores x threads must be 1 to 4096"));
        }
        within("machine.ghz", machine.ghz, 0.1, 10.0).map_err(|(key, what)| bad(key, &what))?;
        let wrong = |(key, what): BadKey| bad(key, &what);
        let nic = self.nic.nic().map_err(wrong)?;
        let load = self.load.load().map_err(wrong)?;
        if let Load::RequestResponse(load) = &load
            && load.cpus.iter().any(|cpu| cpu.0 as usize >= cpus)
        {
            return Err(bad("load.cpus", &format!("the machine has CPUs 0 to {}", cpus - 1)));
        }
        let mut settings = BTreeMap::new();
        for (name, keys) in self.settings {
            let wrong = |(key, what): BadKey| bad(&format!("settings.{name}.{key}"), &what);
            keys.check(&load).map_err(wrong)?;
            let setting = keys.setting();
            let most = setting.irq.iter().chain(&setting.rps).max();
            if most.is_some_and(|most| *most >= cpus) {
                let what = format!("the machine has CPUs 0 to {}", cpus - 1);
                return Err(bad(&format!("settings.{name}"), &what));
            }
            settings.insert(name, setting);
        }
        if settings.is_empty() {
            settings.insert("none".to_owned(), SettingKeys::default().setting());
        }
        Ok(Described { scenario: Scenario { machine, nic, load }, settings })
    }
}

/// Longest time that an interrupt is held back (us).
const MOST_US: f64 = 1e6;

/// As many CPUs as a kernel is built for, and more than any server has.
const MOST_CPUS: usize = 4096;

impl MachineKeys {
    fn machine(&self) -> Machine {
        let cores = self.sockets.saturating_mul(self.cores).min(MOST_CPUS as u32 + 1);
        let threads = self.threads.min(MOST_CPUS as u32 + 1);
        // As Linux numbers them: the first thread of each core, then the second of each.
        let cores = (0..threads).flat_map(|_| 0..cores).take(MOST_CPUS + 1).collect();
        Machine { cores, ghz: self.ghz, kernel: self.kernel.0, is_virtual: self.r#virtual }
    }
}

type BadKey = (&'static str, String);

/// Refuses a number outside of its range, and what is no number.
fn within(key: &'static str, value: f64, least: f64, most: f64) -> Result<f64, BadKey> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err((key, format!("must be {least} to {most}")))
}

impl NicKeys {
    fn nic(self) -> Result<Nic, BadKey> {
        if !(1..=4096).contains(&self.queues) {
            return Err(("nic.queues", "must be 1 to 4096".into()));
        }
        let bus_gbit = self.bus_gbit.map(|gbit| within("nic.bus_gbit", gbit, 0.001, 1e5));
        let coalesce_us = within("nic.coalesce_us", self.coalesce_us, 0.0, MOST_US)?;
        let coalesce_frames = within("nic.coalesce_frames", self.coalesce_frames, 0.0, 1e6)?;
        // drivers/net/ethernet/broadcom/bnx2.c, bnx2_init_all_rx_rings: ring 0 gets packets without
        // a hash, the table has the other rings, and the hash never includes UDP ports.
        let is_bnx2 = self.driver == "bnx2";
        Ok(Nic {
            queue_count: self.queues as usize,
            first_rss_queue: usize::from(is_bnx2 && self.queues > 1),
            hashes_udp_ports: self.udp_ports.unwrap_or(!is_bnx2),
            gbit: within("nic.gbit", self.gbit, 0.001, 1e5)?,
            coalesce_us,
            client_coalesce_us: coalesce_us,
            coalesce_frames: coalesce_frames.max(1.0),
            mtu: within("nic.mtu", self.mtu, 68.0, 65535.0)?,
            bus_gbit: bus_gbit.transpose()?.unwrap_or(f64::INFINITY),
        })
    }
}

impl LoadKeys {
    fn load(self) -> Result<Load, BadKey> {
        Ok(match self {
            Self::TcpRr(keys) => Load::RequestResponse(keys.load(Protocol::Tcp)?),
            Self::UdpRr(keys) => Load::RequestResponse(keys.load(Protocol::Udp)?),
            Self::Forward { packets, mbit, bytes, two_way, filter } => {
                let on_wire = within("load.bytes", bytes, 1.0, 65535.0)?.max(64.0) + 20.0;
                let offered = match (packets, mbit) {
                    (Some(packets), None) => within("load.packets", packets, 1.0, 1e12)?,
                    (None, Some(mbit)) => {
                        within("load.mbit", mbit, 0.001, 1e8)? * 1e6 / (on_wire * 8.0)
                    }
                    _ => return Err(("load", "state either packets or mbit".into())),
                };
                Load::Forward(Forward { offered, two_way, frame_bytes: bytes, filter })
            }
            Self::Send { protocol, senders, bytes, sendfile } => {
                let call_bytes = within("load.bytes", bytes, 1.0, 1e9)?;
                let (senders, zero_copy) = (within("load.senders", senders, 1.0, 1e6)?, sendfile);
                Load::Send(Send { protocol, senders, call_bytes, zero_copy })
            }
            Self::Service { usr, sys, softirq } => {
                let all = usr + sys + softirq;
                if !(usr >= 0.0 && sys >= 0.0 && softirq > 0.0 && all > softirq && all <= 1.0) {
                    let what = "usr, sys and softirq are shares of 1, softirq and one more above 0";
                    return Err(("load", what.into()));
                }
                Load::Service(Service { usr, sys, softirq })
            }
        })
    }
}

impl RrKeys {
    fn load(self, protocol: Protocol) -> Result<RequestResponse, BadKey> {
        Ok(RequestResponse {
            protocol,
            instances: within("load.instances", self.instances, 1.0, 1e7)?,
            bytes: within("load.bytes", self.bytes, 1.0, 1e9)?,
            work_us: within("load.work_us", self.work_us, 0.0, 1e9)?,
            cpus: self.cpus,
            connected: self.connected,
        })
    }
}

impl SettingKeys {
    fn setting(&self) -> Setting {
        let irq = if self.irq.is_empty() { vec![0] } else { self.irq.clone() };
        let rps = self.rps.iter().map(|cpu| cpu.0 as usize).collect();
        let changes = Changes {
            queue_count: self.queues.map(|count| count as usize),
            hashes_udp_ports: self.udp_ports,
            coalesce_us: self.coalesce_us,
            coalesce_frames: self.coalesce_frames.map(|frames| frames.max(1.0)),
            filter: self.filter,
        };
        Setting { irq, rps, rfs: self.rfs > 0, changes }
    }

    /// Refuses a value out of range, and a key that would change nothing for this kind of load.
    fn check(&self, load: &Load) -> Result<(), BadKey> {
        if self.queues.is_some_and(|queues| !(1..=4096).contains(&queues)) {
            return Err(("queues", "must be 1 to 4096".into()));
        }
        self.coalesce_us.map_or(Ok(0.0), |time| within("coalesce_us", time, 0.0, MOST_US))?;
        self.coalesce_frames
            .map_or(Ok(0.0), |frames| within("coalesce_frames", frames, 0.0, 1e6))?;
        let set = [
            ("rps", !self.rps.is_empty()),
            ("rfs", self.rfs > 0),
            ("queues", self.queues.is_some()),
            ("udp_ports", self.udp_ports.is_some()),
            ("coalesce_us", self.coalesce_us.is_some()),
            ("coalesce_frames", self.coalesce_frames.is_some()),
            ("filter", self.filter.is_some()),
        ];
        let (kind, known) = known_keys(load);
        match set.iter().find(|(key, is_set)| *is_set && !known.contains(key)) {
            Some((key, _)) => Err((*key, format!("changes nothing for a load of kind {kind}"))),
            None => Ok(()),
        }
    }
}

/// The kind of a load, and the keys of a setting other than `irq` that change something for it.
fn known_keys(load: &Load) -> (&'static str, &'static [&'static str]) {
    let tcp: &[&str] = &["rps", "rfs", "queues", "coalesce_us", "coalesce_frames"];
    let udp: &[&str] = &["rps", "rfs", "queues", "coalesce_us", "coalesce_frames", "udp_ports"];
    match load {
        Load::RequestResponse(load) if load.protocol == Protocol::Udp => ("udp-rr", udp),
        Load::RequestResponse(_) => ("tcp-rr", tcp),
        Load::Forward(_) => {
            ("forward", &["rps", "queues", "coalesce_us", "coalesce_frames", "filter"])
        }
        Load::Service(_) => ("service", &["rps", "queues"]),
        Load::Send(_) => ("send", &[]),
    }
}
