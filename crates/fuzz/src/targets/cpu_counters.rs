//! `/proc/softirqs`, `/proc/stat`, `/proc/net/softnet_stat`: no text panics, and printed values
//! parse to the same values.

use std::collections::BTreeMap;
use std::fmt::Write;

use netsilo_model::machine::counts::Counts;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::parse::softirqs::softirqs;
use netsilo_model::parse::softnet_stat::softnet_stat;
use netsilo_model::parse::stat::stat;
use netsilo_model::snapshot::host::{CpuStat, Softnet};

use crate::properties::points_into;
use crate::target::{FuzzTarget, fixtures};

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    let read = softirqs(text);
    points_into(text, &read);
    read.into_iter().for_each(softirqs_come_back);

    let read = stat(text);
    points_into(text, &read);
    read.into_iter().for_each(stat_comes_back);

    let lines = text.lines().filter(|line| !line.trim().is_empty()).count() as u32;
    for online in [CpuSet::first(lines.min(64)), CpuSet::parse_list("0,2-3").unwrap_or_default()] {
        let read = softnet_stat(text, &online);
        points_into(text, &read);
        read.into_iter().for_each(softnet_comes_back);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let files = ["/proc/softirqs", "/proc/stat", "/proc/net/softnet_stat"];
    fixtures(|path| files.iter().any(|file| path.ends_with(file)))
}

fn softirqs_come_back(read: BTreeMap<CpuId, Counts>) {
    let mut text: String = read.keys().map(|cpu| format!(" CPU{cpu}")).collect();
    let Some(vectors) = read.values().next() else { return };
    for (name, _) in vectors.iter() {
        let _ = write!(text, "\n{name}:");
        for counts in read.values() {
            let _ = write!(text, " {:10}", counts.get(name).expect("each has all names"));
        }
    }
    assert_eq!(softirqs(&text), Ok(read));
}

fn stat_comes_back(read: BTreeMap<CpuId, CpuStat>) {
    let mut text = "cpu  1 2 3 4 5 6 7 8 9 10\n".to_owned();
    for (cpu, t) in &read {
        let _ =
            write!(text, "cpu{cpu} {} {} {} {} {} ", t.user, t.nice, t.system, t.idle, t.iowait);
        let _ = writeln!(text, "{} {} {} {} {}", t.irq, t.softirq, t.steal, t.guest, t.guest_nice);
    }
    assert_eq!(stat(&text), Ok(read));
}

fn softnet_comes_back(read: BTreeMap<CpuId, Softnet>) {
    let mut text = String::new();
    for (cpu, s) in &read {
        let (Some(processed), Some(backlog), Some(input), Some(process)) =
            (s.processed, s.backlog_len, s.input_qlen, s.process_qlen)
        else {
            return;
        };
        let _ =
            write!(text, "{processed:08x} {:08x} {:08x} 0 0 0 0 0 0 ", s.dropped, s.time_squeeze);
        let _ = writeln!(
            text,
            "{:08x} {:08x} {backlog:08x} {cpu:08x} {input:08x} {process:08x}",
            s.received_rps,
            s.flow_limit_count,
            cpu = cpu.0
        );
    }
    assert_eq!(softnet_stat(&text, &CpuSet::new()), Ok(read));
}
