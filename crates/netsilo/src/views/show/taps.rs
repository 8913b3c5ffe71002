//! The table of programs and virtual machines that take packets from taps.

use netsilo_model::derive::tap_readers::{TapReader, TapThreadLine};
use netsilo_model::machine::cpuset::CpuSet;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::show::cells::{cell, load};
use crate::views::table::narrowed;
use crate::views::units::{bytes_per_s, count, or_dash, percent};

/// Columns that a narrow terminal drops, in this order.
const DROPS: [&str; 3] = ["packets/s", "vcpus on", "taps"];

/// Maximum number of rows, and of taps named in one.
const MOST_ROWS: usize = 20;
const MOST_TAPS: usize = 3;

pub(super) fn table(readers: &[TapReader], on: Presentation) -> Styled {
    let header = ["  reader", "taps", "packets/s", "bytes/s", "taken on", "waits", "vcpus on"];
    let rows: Vec<_> = readers.iter().take(MOST_ROWS).map(row).collect();
    let numeric = |name: &str| matches!(name, "packets/s" | "bytes/s" | "waits");
    let mut text = narrowed(&header, &rows, numeric, &DROPS, on.width);
    let more = readers.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        text.push(Meaning::Quiet, format_args!("\n  {more} more"));
    }
    text
}

fn row(reader: &TapReader) -> Vec<Styled> {
    let waited = reader.longest_waiting().and_then(|it| it.time).map(|time| time.waited);
    let taken_on: CpuSet = reader.taken_on.keys().copied().collect();
    vec![
        cell(format!("  {}", reader.label())),
        cell(taps(&reader.netdevs)),
        cell(or_dash(reader.packets_per_s, count)),
        cell(or_dash(reader.bytes_per_s, bytes_per_s)),
        cell(if taken_on.is_empty() { "-".into() } else { taken_on.to_string() }),
        waited.map_or_else(|| cell("-".into()), |waited| load(waited, percent(waited))),
        cell(vcpus(&reader.vcpus)),
    ]
}

fn taps(names: &[String]) -> String {
    let (named, more) = names.split_at(names.len().min(MOST_TAPS));
    let more = (!more.is_empty()).then(|| format!("{} more", more.len()));
    named.iter().cloned().chain(more).collect::<Vec<_>>().join(", ")
}

/// `4: 2, 5-7`: their number, and the CPUs where they ran last.
fn vcpus(vcpus: &[TapThreadLine]) -> String {
    let on: CpuSet = vcpus.iter().map(|it| it.cpu).collect();
    if vcpus.is_empty() { "-".into() } else { format!("{}: {on}", vcpus.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::derive::thread_share::ThreadShare;
    use netsilo_model::machine::cpuset::CpuId;

    #[test]
    fn a_reader_has_a_row_with_what_is_known() {
        let thread = |tid, cpu, waited| TapThreadLine {
            tid,
            cpu: CpuId(cpu),
            time: Some(ThreadShare { ran: 0.3, waited }),
            ..TapThreadLine::default()
        };
        let guest = TapReader {
            tgid: 812,
            comm: "qemu".into(),
            guest: Some("web1".into()),
            netdevs: (0..5).map(|at| format!("vnet{at}")).collect(),
            bytes_per_s: Some(2e6),
            packets_per_s: Some(1500.0),
            taken_on: [(CpuId(3), 1.0)].into(),
            takers: vec![thread(900, 3, 0.25), thread(901, 3, 0.05)],
            vcpus: vec![thread(814, 5, 0.0), thread(815, 6, 0.0)],
            ..TapReader::default()
        };
        let program = TapReader { tgid: 7, comm: "pasta".into(), ..TapReader::default() };
        insta::assert_snapshot!(table(&[guest, program], Presentation::default()));
    }
}
