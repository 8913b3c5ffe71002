//! The remedies' knobs on the fake kernel: initial texts, effects of writes, own and foreign
//! values, special cases.

use std::io;

use netsilo_model::change::{FlowRule, Key, Settings, Table, Target, Value};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::ethtool::FlowType;
use netsilo_sys::ethtool::set::Setting;
use netsilo_sys::transaction::undo::{RestoreResult, UndoScope};

use super::fake::Fake;
use super::fake::apply;
use super::fake::change;
use super::fake::eth0;
use super::fake::tempdir;
use super::fake::undo;

const NET: &str = "sys/class/net/eth0";
const RULE: &str = "tcp4 dst-port 443 queues 2-3";

/// A table that no driver creates by itself.
const TABLE: &str = "1 1 0 3 2 2 0 1\n";
/// The table that this driver creates.
const DEFAULT: &str = "0 1 2 3 0 1 2 3\n";

/// Each knob, its file, and its initial text.
fn all() -> Vec<(Target, String, &'static str)> {
    let rule: FlowRule = RULE.parse().unwrap();
    let sysctl = |name: &str| Target::Sysctl { name: name.into() };
    let of = |setting: Setting| file_of("eth0", &setting).trim_start_matches('/').to_owned();
    let queues = CpuSet::parse_list("2-3").unwrap();
    let sysfs = |name: &str| format!("sys/devices/pci0000:00/0000:00:03.0/net/eth0/{name}");
    vec![
        (Target::Channels { netdev: eth0() }, of(Setting::Channels), "combined=4 other=1\n"),
        (Target::Rings { netdev: eth0() }, of(Setting::Rings), "rx=256 tx=256\n"),
        (Target::Mtu { netdev: eth0() }, sysfs("mtu"), "1500\n"),
        (Target::Threaded { netdev: eth0() }, sysfs("threaded"), "0\n"),
        (
            Target::Offload { netdev: eth0(), feature: "rx-lro".into() },
            of(Setting::Offload("rx-lro".into())),
            "off [requested on]\n",
        ),
        (Target::Coalesce { netdev: eth0() }, of(Setting::Coalesce), "rx-usecs=3\n"),
        (Target::NapiDeferHardIrqs { netdev: eth0() }, sysfs("napi_defer_hard_irqs"), "0\n"),
        (Target::GroFlushTimeout { netdev: eth0() }, sysfs("gro_flush_timeout"), "0\n"),
        (Target::RssHash { netdev: eth0() }, of(Setting::RssHash), "toeplitz\n"),
        (Target::RssKey { netdev: eth0() }, of(Setting::RssKey), "6d:5a:56:da\n"),
        (
            Target::FlowHash { netdev: eth0(), flow_type: FlowType::Udp4 },
            of(Setting::FlowHash(FlowType::Udp4)),
            "sd\n",
        ),
        (Target::RssTable { netdev: eth0(), context: 0 }, of(Setting::RssTable(0)), TABLE),
        (
            Target::RssContext { netdev: eth0(), queues: queues.clone() },
            of(Setting::RssContext(queues)),
            "off\n",
        ),
        (
            Target::NtupleRule { netdev: eth0(), rule: rule.clone() },
            of(Setting::Rule(rule)),
            "off\n",
        ),
        (sysctl("net.core.netdev_budget"), "proc/sys/net/core/netdev_budget".into(), "300\n"),
        (
            sysctl("net.ipv4.tcp_rmem"),
            "proc/sys/net/ipv4/tcp_rmem".into(),
            "4096\t131072\t6291456\n",
        ),
    ]
}

/// The knobs, for the host.
pub(crate) fn knobs() -> Vec<(String, &'static str)> {
    all().into_iter().map(|(_, path, text)| (path, text)).collect()
}

/// The knobs as targets.
pub(crate) fn targets() -> Vec<Target> {
    all().into_iter().map(|(target, ..)| target).collect()
}

/// The file of a setting, in the netdev's folder.
pub(crate) fn file_of(netdev: &str, setting: &Setting) -> String {
    let name: String = format!("{setting:?}").chars().filter(char::is_ascii_alphanumeric).collect();
    format!("/sys/class/net/{netdev}.{name}")
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// The text of such a file after a write; `None` for other files.
pub(crate) fn settle(path: &str, text: &str) -> Option<io::Result<String>> {
    let name = path.rsplit_once('/')?.1;
    let kind = name.strip_prefix("eth0.").unwrap_or(name);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = |value: &dyn ToString| Ok(value.to_string() + "\n");
    let settings = || text.parse::<Settings>().map_err(|_| invalid());
    Some(match kind {
        "Channels" | "Coalesce" => settings().and_then(|it| line(&it)),
        "Rings" => settings().and_then(|it| {
            let round = |name: &str| (name.to_owned(), it.get(name).next_power_of_two());
            line(&it.names().map(round).collect::<Settings>())
        }),
        "RssTable0" if words == ["default"] => Ok(DEFAULT.into()),
        "RssTable0" => match text.parse::<Table>() {
            Ok(table) if table.0.iter().all(|queue| *queue < 4) => line(&words.join(" ")),
            _ => Err(invalid()),
        },
        "RssKey" | "RssHash" | "netdev_budget" => line(&text.trim()),
        "tcp_rmem" => line(&words.join("\t")),
        _ if kind.starts_with("FlowHash") || kind.starts_with("Offload") => line(&text.trim()),
        _ if kind.starts_with("Rule") || kind.starts_with("RssContext") => match words[..] {
            ["on"] => line(&"on 7"),
            ["off"] | ["on", _] => line(&text.trim()),
            _ => Err(invalid()),
        },
        "mtu" | "threaded" | "napi_defer_hard_irqs" | "gro_flush_timeout" => {
            text.trim().parse::<u32>().map_err(|_| invalid()).and_then(|it| line(&it))
        }
        _ => return None,
    })
}

/// A value that netsilo writes, by seed where several exist; `None` for other knobs.
pub(crate) fn ours(target: &Target, seed: u32) -> Option<Value> {
    let n = 1 + seed % 1999;
    let settings = |text: String| Value::Settings(text.parse().unwrap());
    Some(match target {
        Target::Channels { .. } => settings(format!("combined={} other=1", 5 + seed % 3)),
        // Rounded, some to the initial value.
        Target::Rings { .. } => settings(format!("rx={} tx=256", 300 + n)),
        Target::Coalesce { .. } => settings(format!("rx-usecs={} rx-frames={n}", 4 + n)),
        Target::Offload { .. } | Target::RssContext { .. } | Target::NtupleRule { .. } => {
            Value::Switch(true)
        }
        Target::Mtu { .. }
        | Target::NapiDeferHardIrqs { .. }
        | Target::GroFlushTimeout { .. }
        | Target::Threaded { .. } => Value::Count(n),
        Target::RssHash { .. } => Value::words("toeplitz symmetric-xor"),
        Target::RssKey { .. } => Value::Key(Key(vec![seed as u8, (seed >> 8) as u8, 1, 2])),
        Target::FlowHash { .. } => Value::Fields("sdfn".parse().unwrap()),
        Target::RssTable { .. } => Value::Table(Table((0..8).map(|bit| seed >> bit & 1).collect())),
        Target::Sysctl { name } if name.ends_with("tcp_rmem") => {
            Value::words(&format!("4096 131072 {}", 7_000_000 + n))
        }
        Target::Sysctl { .. } => Value::words(&(300 + n).to_string()),
        _ => return None,
    })
}

/// The text of a value that netsilo never writes.
pub(crate) fn foreign(target: &Target, seed: u32) -> Option<String> {
    let n = 100_000 + seed % 1000;
    Some(match target {
        Target::Channels { .. } => "combined=2 other=1\n".into(),
        // rounded, as a driver would report it
        Target::Rings { .. } => format!("rx={} tx=256\n", n.next_power_of_two()),
        Target::Coalesce { .. } => format!("rx-usecs={n}\n"),
        Target::Offload { .. } | Target::RssContext { .. } | Target::NtupleRule { .. } => {
            "off\n".into()
        }
        Target::Mtu { .. }
        | Target::NapiDeferHardIrqs { .. }
        | Target::GroFlushTimeout { .. }
        | Target::Threaded { .. } => format!("{n}\n"),
        Target::RssHash { .. } => "xor\n".into(),
        Target::RssKey { .. } => format!("00:00:00:{:02x}\n", seed as u8),
        Target::FlowHash { .. } => "none\n".into(),
        Target::RssTable { .. } => "3 3 3 3 3 3 3 3\n".into(),
        Target::Sysctl { name } if name.ends_with("tcp_rmem") => format!("1\t2\t{n}\n"),
        Target::Sysctl { .. } => format!("{n}\n"),
        _ => return None,
    })
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
    let target = Target::RssTable { netdev: eth0(), context: 0 };
    put(&kernel, &path, DEFAULT);
    apply(&kernel, &[change(&kernel, target.clone(), table("0 0 0 0 0 1 2 3"))]).unwrap();
    assert!(matches!(
        undo(&kernel, UndoScope::All).unwrap()[0].knobs[..],
        [(_, RestoreResult::Restored)]
    ));
    assert_eq!(kernel.take_written().last().unwrap().1, "default");
    assert_eq!(said(&kernel, &path), DEFAULT);
    // In equal blocks, which resembles a driver's default, but not this driver's.
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
    let rings = || Target::Rings { netdev: eth0() };
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
            Target::Rings { netdev: eth0() },
            Value::Settings("rx=9000 tx=256".parse().unwrap()),
        )
    };
    assert_eq!(
        apply(&kernel, &[rings()]).unwrap_err().to_string(),
        "eth0 rings: cannot write rx=9000 tx=256: Invalid argument (os error 22): \
         its driver takes at most rx=4096 tx=4096; \
         more than that, or fewer than it needs, is refused; all settings are restored"
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
    let target = Target::NtupleRule { netdev: eth0(), rule: RULE.parse().unwrap() };
    let path = file_of("eth0", &Setting::Rule(RULE.parse().unwrap()));
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
        let error =
            netsilo_sys::transaction::knob::read(&kernel, &Target::Sysctl { name: name.into() })
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
