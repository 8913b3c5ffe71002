//! The journal: after a crash at any byte the complete records are read, and never as other
//! records.

use std::time::Duration;

use netsilo_model::change::{Target, Value, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_sys::read::netns::NetnsId;
use netsilo_sys::transaction::attached::Attached;
use netsilo_sys::transaction::compact::compact;
use netsilo_sys::transaction::queues::{NapiIndex, QueueSetting};
use netsilo_sys::transaction::record::{Entry, History, Origin, Record, RestoredBy};

use crate::json;
use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, mutate: json::mutate_lines, inputs: 2_000, ..FuzzTarget::bytes(holds) };

fn holds(bytes: &[u8]) {
    let Ok(history) = History::replay(bytes) else { return };
    assert_eq!(history.whole_bytes + history.torn_bytes, bytes.len());
    assert!(history.transactions.iter().all(|t| t.written.len() == t.entries.len()));
    assert!(history.transactions.is_sorted_by_key(|t| t.id));
    assert!(history.transactions.iter().all(|t| t.id < history.next_id()));
    let lines: Vec<&[u8]> = bytes[..history.whole_bytes].split_inclusive(|b| *b == b'\n').collect();
    let mut records = History {
        whole_bytes: history.whole_bytes,
        torn_bytes: history.torn_bytes,
        ..History::default()
    };
    for line in &lines {
        let record: Record = serde_json::from_slice(line).expect("the line was replayed");
        let printed = serde_json::to_vec(&record).expect("a record");
        assert_eq!(serde_json::from_slice::<Record>(&printed).ok(), Some(record.clone()));
        records.add_record(record).expect("the line was replayed");
    }
    assert_eq!(records, history);
    // compaction reaches a fixed point, and the result is a journal
    let own = history.transactions.iter().find_map(|it| it.netns);
    if let Some(compacted) = compact(&history, own, &|_| false, &|_| None) {
        let mut again = History::default();
        for record in compacted {
            again.add_record(record).expect("a compacted journal");
        }
        assert_eq!(compact(&again, own, &|_| false, &|_| None), None);
    }
    // a crash within the last line: as if that line had never begun
    let last = lines.last().map_or(0, |line| line.len());
    let earlier = History::replay(&bytes[..history.whole_bytes - last])
        .expect("a prefix of a replayed journal");
    for torn in [1, last / 2, last.saturating_sub(1)].into_iter().filter(|torn| *torn < last) {
        let cut = History::replay(&bytes[..history.whole_bytes - last + torn])
            .expect("a torn last line is no damage");
        assert_eq!((cut.transactions, cut.torn_bytes), (earlier.transactions.clone(), torn));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let eth0 = || NetdevIdentity {
        name: "eth0".into(),
        device_path: Some("/devices/pci0000:00/0000:00:04.0".into()),
        ifindex: None,
    };
    let cpus = |cpu| Value::Cpus(CpuSet::from_cpu(CpuId(cpu)));
    let entry = |target: Target, old, new: Value| Entry {
        target,
        old,
        old_raw: "00000000,00000001\n".into(),
        created: None,
        kthread: None,
        settles_as: new.clone(),
        new,
        reason: "rx-0's consumer runs there".into(),
        restore_any_value: false,
    };
    let irq =
        knobs::IrqAffinity { irq: Irq(27), action: "eth0-TxRx-0".into(), netdev: Some(eth0()) };
    let thread = knobs::NapiThread { pid: 812, comm: "napi/eth0-8193".into(), start_time: 4000 };
    let rps = knobs::RpsCpus { netdev: eth0(), queue: 0 };
    let rfs = knobs::RpsFlowCnt { netdev: eth0(), queue: 0 };
    let xps = knobs::XpsCpus { netdev: eth0(), queue: 1 };
    let entries = vec![
        entry(irq.into(), cpus(0), cpus(2)),
        entry(rps.into(), Value::Cpus(CpuSet::new()), cpus(3)),
        entry(rfs.into(), Value::Count(0), Value::Count(1000)),
        entry(xps.into(), cpus(1), cpus(0)),
        entry(thread.into(), cpus(0), cpus(1)),
        entry(knobs::RpsSockFlowEntries.into(), Value::Count(0), Value::Count(32768)),
        entry(knobs::DefaultSmpAffinity.into(), cpus(0), cpus(1)),
        entry(knobs::RpsDefaultMask.into(), cpus(0), cpus(1)),
    ];
    let attached = |cpus: &str| Attached {
        netdev: eth0(),
        created: None,
        settings: vec![
            (QueueSetting::KthreadCpus(NapiIndex { index: 0, has_id: true }), cpus.into()),
            (QueueSetting::IrqCpus { action: "eth0-TxRx-0".into(), index: 0 }, cpus.into()),
            (QueueSetting::File("rx-0/rps_cpus".into()), cpus.into()),
        ],
    };
    let by = |origin, transaction, confirm_by| Record::Begin {
        transaction,
        pid: 7,
        origin,
        request: None,
        netns: (origin == Origin::Daemon).then_some(NetnsId { cookie: 7140, inode: 4_026_532_388 }),
        confirm_by,
        entries: entries.clone(),
        attached: match origin {
            Origin::Operator => vec![attached("01\n")],
            Origin::Daemon => Vec::new(),
        },
    };
    let begin = |transaction, confirm_by| by(Origin::Operator, transaction, confirm_by);
    let boot = || Record::boot("a4d1c2b8".into());
    let wrote = |entry| Record::Wrote { transaction: 1, entry, raw: "4\n".into() };
    let whole = vec![
        boot(),
        begin(1, Some(Duration::from_millis(60_500))),
        wrote(0),
        wrote(1),
        Record::AttachedAfter { transaction: 1, attached: vec![attached("ff\n")] },
        Record::Done { transaction: 1 },
        Record::Keeps { transaction: 1, attached: vec![attached("02\n")] },
        Record::Confirmed { transaction: 1 },
        begin(2, None),
        Record::Failed { transaction: 2, why: "EIO".into() },
        Record::Undone { transaction: 2, by: RestoredBy::Apply, given_up: 0 },
    ];
    let print = |records: &[Record]| -> String {
        records
            .iter()
            .map(|record| serde_json::to_string(record).expect("a record") + "\n")
            .collect()
    };
    let twice = |id| [by(Origin::Daemon, id, None), Record::Done { transaction: id }];
    let daemon: Vec<Record> = [vec![boot()], twice(1).to_vec(), twice(2).to_vec()].concat();
    let texts = vec![
        print(&daemon),
        print(&whole),
        print(&whole[..5]),
        print(&whole[..1]) + "{\"record\":\"beg",
    ];
    texts.iter().for_each(|text| assert!(History::replay(text.as_bytes()).is_ok()));
    texts.into_iter().map(String::into_bytes).collect()
}
