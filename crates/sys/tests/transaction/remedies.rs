//! The remedies' knobs on the fake kernel, one row each: initial texts, effects of writes,
//! netsilo's and other values, special cases. A knob without a special row gets its row from its
//! case in `cases/knobs`.

use std::io;
use std::sync::LazyLock;

use netsilo_model::change::{
    Change, EthtoolSetting, Key, Knob, Location, Settings, Table, Target, Value, knobs,
};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};
use serde::Deserialize;

use super::fake::Fake;
use super::fake::apply;
use super::fake::ban;
use super::fake::change;
use super::fake::eth0;
use super::fake::own_targets;
use super::fake::tempdir;
use super::fake::undo;

const NET: &str = "sys/class/net/eth0";
const RULE: &str = "tcp4 dst-port 443 queues 2-3";

/// A table that no driver creates by itself.
const TABLE: &str = "1 1 0 3 2 2 0 1\n";
/// The table that this driver creates.
const DEFAULT: &str = "0 1 2 3 0 1 2 3\n";

/// A knob on the fake kernel.
struct Row {
    target: Target,
    /// The file that represents the knob.
    path: String,
    /// Its text at first.
    says: String,
    /// Its text after this was written.
    settle: Settle,
    /// A value of ours; a different one for each seed if there are enough.
    ours: Box<dyn Fn(u32) -> Value + Send + Sync>,
    /// The text of a value that we never write.
    foreign: Box<dyn Fn(u32) -> String + Send + Sync>,
}

type Settle = fn(&str) -> io::Result<String>;

/// One row or more for the knob of each remedy.
static ALL: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut all = special();
    let own = own_targets();
    let present = all.iter().map(|row| &row.target).chain(&own);
    let present: Vec<&str> = present.map(|target| target.facts().kind).collect();
    all.extend(knobs::kinds().into_iter().filter(|kind| !present.contains(kind)).filter_map(usual));
    all
});

/// Knobs that a driver handles in its own way, or whose values vary with the seed.
fn special() -> Vec<Row> {
    vec![
        ethtool(
            knobs::Channels { netdev: eth0() },
            "combined=4 other=1\n",
            as_settings,
            |seed| settings(format!("combined={} other=1", 5 + seed % 3)),
            |_| "combined=2 other=1\n".into(),
        ),
        // Values are rounded, some of them to the old value. Another program's value is what a
        // driver prints: rounded.
        ethtool(
            knobs::Rings { netdev: eth0() },
            "rx=256 tx=256\n",
            rounded,
            |seed| settings(format!("rx={} tx=256", 300 + small(seed))),
            |seed| format!("rx={} tx=256\n", large(seed).next_power_of_two()),
        ),
        ethtool(
            knobs::Offload { netdev: eth0(), feature: "rx-lro".into() },
            "off [requested on]\n",
            trimmed,
            on,
            off,
        ),
        ethtool(
            knobs::Coalesce { netdev: eth0() },
            "rx-usecs=3\n",
            as_settings,
            |seed| settings(format!("rx-usecs={} rx-frames={}", 4 + small(seed), small(seed))),
            |seed| format!("rx-usecs={}\n", large(seed)),
        ),
        ethtool(
            knobs::RssKey { netdev: eth0() },
            "6d:5a:56:da\n",
            trimmed,
            |seed| Key(vec![seed as u8, (seed >> 8) as u8, 1, 2]).into(),
            |seed| format!("00:00:00:{:02x}\n", seed as u8),
        ),
        ethtool(
            knobs::RssTable { netdev: eth0(), context: 0 },
            TABLE,
            as_table,
            |seed| Table((0..8).map(|bit| seed >> bit & 1).collect()).into(),
            |_| "3 3 3 3 3 3 3 3\n".into(),
        ),
        ethtool(
            knobs::RssContext { netdev: eth0(), queues: CpuSet::parse_list("2-3").unwrap() },
            "off\n",
            as_switch,
            on,
            off,
        ),
        ethtool(
            knobs::NtupleRule { netdev: eth0(), rule: RULE.parse().unwrap() },
            "off\n",
            as_switch,
            on,
            off,
        ),
        row_of(ban(812).into(), "proc/812/banned".into(), "off\n", as_switch, on, off),
        sysctl(
            "net.core.netdev_budget",
            "300\n",
            trimmed,
            |seed| Value::words(&(300 + small(seed)).to_string()),
            |seed| format!("{}\n", large(seed)),
        ),
        sysctl(
            "net.ipv4.tcp_rmem",
            "4096\t131072\t6291456\n",
            |text| Ok(text.split_whitespace().collect::<Vec<_>>().join("\t") + "\n"),
            |seed| Value::words(&format!("4096 131072 {}", 7_000_000 + small(seed))),
            |seed| format!("1\t2\t{}\n", large(seed)),
        ),
    ]
}

/// Whether a driver may recreate its queues when this file is written.
pub(crate) fn resets_queues(path: &str) -> bool {
    let is_it = |row: &Row| row.path == path.trim_start_matches('/');
    ALL.iter().any(|row| is_it(row) && row.target.may_reset_queues())
}

/// `cases/knobs/<kind>/knob.json`.
#[derive(Deserialize)]
struct Case {
    says: String,
    /// The text of a value that netsilo never writes. Numbers, switches and CPUs do not need it.
    foreign: Option<String>,
    change: Change,
}

/// The row of a knob, from its case; `None` if it is neither a file nor a setting of a netdev.
fn usual(kind: &str) -> Option<Row> {
    let case = format!("{}/../../cases/knobs/{kind}/knob.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&case).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    if let Some(netdev) = json.pointer_mut("/change/target/netdev") {
        *netdev = serde_json::to_value(eth0()).unwrap();
    }
    let Case { says, foreign, change } = serde_json::from_value(json).unwrap();
    let target = change.target.clone();
    let path = path_of(&target)?;
    Some(match change.new.clone() {
        Value::Count(_) => {
            let foreign = |seed| format!("{}\n", large(seed));
            row_of(target, path, &says, as_number, |seed| small(seed).into(), foreign)
        }
        Value::Switch(_) => row_of(target, path, &says, trimmed, on, off),
        Value::Cpus(_) => {
            let ours = |seed| Value::Cpus(mask(1 + seed % 31));
            let foreign = |seed| format!("{:x}\n", 0x20 | (seed % 32));
            row_of(target, path, &says, as_mask, ours, foreign)
        }
        new => {
            let foreign = foreign.unwrap_or_else(|| {
                panic!("{case}: add `foreign`, the text of a value that netsilo never writes")
            });
            row_of(target, path, &says, trimmed, move |_| new.clone(), move |_| foreign.clone())
        }
    })
}

fn row_of(
    target: Target,
    path: String,
    says: &str,
    settle: Settle,
    ours: impl Fn(u32) -> Value + Send + Sync + 'static,
    foreign: impl Fn(u32) -> String + Send + Sync + 'static,
) -> Row {
    let (ours, foreign) = (Box::new(ours), Box::new(foreign));
    Row { target, path, says: says.to_owned(), settle, ours, foreign }
}

/// The file that represents a knob.
fn path_of(target: &Target) -> Option<String> {
    let path = match target.location() {
        Location::Ethtool { setting, .. } => file_of("eth0", &setting),
        Location::Netdev { file, .. } => {
            format!("sys/devices/pci0000:00/0000:00:03.0/net/eth0/{file}")
        }
        Location::File(path) => path,
        _ => return None,
    };
    Some(path.trim_start_matches('/').to_owned())
}

fn ethtool(
    knob: impl Knob + Into<Target>,
    says: &str,
    settle: Settle,
    ours: fn(u32) -> Value,
    foreign: fn(u32) -> String,
) -> Row {
    let target: Target = knob.into();
    let path = path_of(&target).unwrap();
    row_of(target, path, says, settle, ours, foreign)
}

fn sysctl(
    name: &str,
    says: &str,
    settle: Settle,
    ours: fn(u32) -> Value,
    foreign: fn(u32) -> String,
) -> Row {
    let target = knobs::Sysctl { name: name.into() }.into();
    let path = format!("proc/sys/{}", name.replace('.', "/"));
    row_of(target, path, says, settle, ours, foreign)
}

/// A number that we write.
fn small(seed: u32) -> u32 {
    1 + seed % 1999
}

/// A number that we never write.
fn large(seed: u32) -> u32 {
    100_000 + seed % 1000
}

fn settings(text: String) -> Value {
    Value::Settings(text.parse().unwrap())
}

fn on(_: u32) -> Value {
    Value::Switch(true)
}

fn off(_: u32) -> String {
    "off\n".into()
}

fn mask(bits: u32) -> CpuSet {
    CpuSet::parse_mask(&format!("{bits:x}")).unwrap()
}

fn as_number(text: &str) -> io::Result<String> {
    text.trim().parse::<u32>().map_err(|_| invalid()).map(|number| format!("{number}\n"))
}

fn as_mask(text: &str) -> io::Result<String> {
    CpuSet::parse_mask(text).map_err(|_| invalid()).map(|set| format!("{}\n", set.to_mask(8)))
}

fn trimmed(text: &str) -> io::Result<String> {
    Ok(text.trim().to_owned() + "\n")
}

fn as_settings(text: &str) -> io::Result<String> {
    text.parse::<Settings>().map_err(|_| invalid()).map(|settings| format!("{settings}\n"))
}

/// Each number rounded up to a power of two.
fn rounded(text: &str) -> io::Result<String> {
    let settings: Settings = text.parse().map_err(|_| invalid())?;
    let round = |name: &str| (name.to_owned(), settings.get(name).next_power_of_two());
    Ok(format!("{}\n", settings.names().map(round).collect::<Settings>()))
}

fn as_table(text: &str) -> io::Result<String> {
    if text.trim() == "default" {
        return Ok(DEFAULT.into());
    }
    match text.parse::<Table>() {
        Ok(table) if table.0.iter().all(|queue| *queue < 4) => trimmed(text),
        _ => Err(invalid()),
    }
}

fn as_switch(text: &str) -> io::Result<String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        ["on"] => Ok("on 7\n".into()),
        ["off"] | ["on", _] => trimmed(text),
        _ => Err(invalid()),
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// The knobs, for the host.
pub(crate) fn knobs() -> Vec<(String, &'static str)> {
    ALL.iter().map(|row| (row.path.clone(), row.says.as_str())).collect()
}

/// The knobs as targets.
pub(crate) fn targets() -> Vec<Target> {
    ALL.iter().map(|row| row.target.clone()).collect()
}

/// The file of a setting, in the netdev's folder.
pub(crate) fn file_of(netdev: &str, setting: &EthtoolSetting) -> String {
    let name: String = format!("{setting:?}").chars().filter(char::is_ascii_alphanumeric).collect();
    format!("/sys/class/net/{netdev}.{name}")
}

/// The text of a setting's file after this text was written to it; `None` for other files.
pub(crate) fn settle(path: &str, text: &str) -> Option<io::Result<String>> {
    let name = path.rsplit_once('/')?.1;
    if name.starts_with("eth0.Offload") {
        return Some(trimmed(text));
    }
    let row = ALL.iter().find(|row| row.path.rsplit_once('/').is_some_and(|it| it.1 == name));
    row.map(|row| (row.settle)(text))
}

fn row(target: &Target) -> Option<&'static Row> {
    ALL.iter().find(|row| {
        row.target == *target
            || matches!((&row.target, target), (Target::Offload(_), Target::Offload(_)))
    })
}

/// A value of ours; `None` for other knobs.
pub(crate) fn ours(target: &Target, seed: u32) -> Option<Value> {
    row(target).map(|row| (row.ours)(seed))
}

/// The text of a value that netsilo never writes.
pub(crate) fn foreign(target: &Target, seed: u32) -> Option<String> {
    row(target).map(|row| (row.foreign)(seed))
}

fn put(kernel: &Fake, path: &str, text: &str) {
    std::fs::write(kernel.root.join(path), text).unwrap();
}

fn said(kernel: &Fake, path: &str) -> String {
    std::fs::read_to_string(kernel.root.join(path)).unwrap()
}

fn table(text: &str) -> Value {
    Value::Table(text.parse().unwrap())
}

#[test]
fn a_drivers_default_table_is_restored_by_the_driver() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let path = format!("{NET}.RssTable0");
    let target = Target::RssTable(knobs::RssTable { netdev: eth0(), context: 0 });
    put(&kernel, &path, DEFAULT);
    apply(&kernel, &[change(&kernel, target.clone(), table("0 0 0 0 0 1 2 3"))]).unwrap();
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(kernel.take_written().last().unwrap().1, "default");
    assert_eq!(said(&kernel, &path), DEFAULT);
    // Equal blocks are the default of some drivers, but not of this one.
    let blocks = "0 0 1 1 2 2 3 3\n";
    put(&kernel, &path, blocks);
    apply(&kernel, &[change(&kernel, target.clone(), table("0 0 0 0 0 1 2 3"))]).unwrap();
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    let written: Vec<String> = kernel.take_written().into_iter().map(|(_, text)| text).collect();
    assert_eq!(written[1..], ["default".to_owned(), blocks.to_owned()]);
    assert_eq!(said(&kernel, &path), blocks);
    // A table written by a user is restored as it was.
    put(&kernel, &path, TABLE);
    apply(&kernel, &[change(&kernel, target, table("0 0 0 0 0 1 2 3"))]).unwrap();
    kernel.take_written();
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(kernel.take_written().iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), [TABLE]);
}

#[test]
fn a_rounded_value_is_compared_with_the_value_read_back() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let before = kernel.knobs();
    let settings = |text: &str| Value::Settings(text.parse().unwrap());
    let rings = || Target::Rings(knobs::Rings { netdev: eth0() });
    let applied = apply(&kernel, &[change(&kernel, rings(), settings("rx=1000 tx=256"))]).unwrap();
    assert_eq!(applied.settled, [(rings(), settings("rx=1024 tx=256"))]);
    assert_eq!(applied.overwritten, []);
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(kernel.knobs(), before);
    apply(&kernel, &[change(&kernel, rings(), settings("rx=1000 tx=256"))]).unwrap();
    put(&kernel, &format!("{NET}.Rings"), "rx=1088 tx=256\n");
    let undone = undo(&kernel, UndoScope::All).unwrap();
    assert!(matches!(&undone[0].knobs[..],
            [(_, RestoreResult::Foreign(now))] if *now == settings("rx=1088 tx=256")));
}

#[test]
fn a_refused_write_reports_the_drivers_maximum() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    put(&kernel, &format!("{NET}.MostRings"), "rx=4096 tx=4096\n");
    kernel.failing.borrow_mut().extend([(0, libc::EINVAL), (1, libc::EBUSY)]);
    let rings = || {
        change(
            &kernel,
            Target::Rings(knobs::Rings { netdev: eth0() }),
            Value::Settings("rx=9000 tx=256".parse().unwrap()),
        )
    };
    assert_eq!(
        apply(&kernel, &[rings()]).unwrap_err().to_string(),
        "eth0 rings: cannot write rx=9000 tx=256: Invalid argument (os error 22): its driver \
         accepts at most rx=4096 tx=4096; more than that, or fewer than it needs, is refused; all \
         settings are restored"
    );
    assert!(
        apply(&kernel, &[rings()])
            .unwrap_err()
            .to_string()
            .contains("in use in a way that forbids it")
    );
}

#[test]
fn an_existing_rule_is_not_deleted() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    let target =
        Target::NtupleRule(knobs::NtupleRule { netdev: eth0(), rule: RULE.parse().unwrap() });
    let path = file_of("eth0", &EthtoolSetting::Rule(RULE.parse().unwrap()));
    let path = path.trim_start_matches('/');
    put(&kernel, path, "on 5\n");
    assert_eq!(
        apply(&kernel, &[change(&kernel, target.clone(), Value::Switch(true))])
            .unwrap()
            .transaction,
        None
    );
    // A deleted rule is restored at its old position.
    apply(&kernel, &[change(&kernel, target, Value::Switch(false))]).unwrap();
    assert_eq!(said(&kernel, path), "off\n");
    undo(&kernel, UndoScope::All).unwrap();
    assert_eq!(said(&kernel, path), "on 5\n");
}

#[test]
fn only_listed_sysctls_are_written() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    for name in [
        "kernel.core_pattern",
        "net.core.rps_sock_flow_entries",
        "net.core/../../kernel/core_pattern",
    ] {
        let error = netsilo_sys::transaction::knob::read(
            &kernel,
            &Target::Sysctl(knobs::Sysctl { name: name.into() }),
        )
        .unwrap_err();
        assert_eq!(error.to_string(), format!("{name}: netsilo does not write this sysctl"));
    }
}

#[test]
fn an_offload_of_an_earlier_journal_is_restored() {
    let dir = tempdir();
    let kernel = Fake::new(dir.path());
    std::fs::create_dir_all(kernel.state()).unwrap();
    std::os::unix::fs::PermissionsExt::set_mode(
        &mut std::fs::metadata(kernel.state()).unwrap().permissions(),
        0o700,
    );
    let netdev = r#"{"name":"eth0","device_path":"/devices/pci0000:00/0000:00:03.0"}"#;
    let rest = r#""old_raw":"0\n","new":{"count":1},"settles_as":{"count":1},"reason":"aRFS""#;
    let entry = format!(
        r#"{{"target":{{"knob":"ntuple_filter","netdev":{netdev}}},"old":{{"count":0}},{rest}}}"#
    );
    let lines = format!(
        r#"{{"record":"boot","version":1,"boot_id":"6a5b-boot-1"}}
{{"record":"begin","transaction":1,"pid":7,"confirm_by":null,"entries":[{entry}]}}
{{"record":"wrote","transaction":1,"entry":0,"raw":"1\n"}}
{{"record":"done","transaction":1}}
"#
    );
    std::fs::write(kernel.journal(), lines).unwrap();
    let path = format!("{NET}.Offloadrxntuplefilter");
    put(&kernel, &path, "on\n");
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(said(&kernel, &path), "off\n");
}
