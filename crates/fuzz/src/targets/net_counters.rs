//! `/proc/net/snmp`, `netstat`, `snmp6`, `sockstat`, `udp` and `nfnetlink_queue`, schedstat and
//! mountinfo: no text panics, and printed values parse to the same values.

use std::collections::BTreeMap;
use std::fmt::Write;

use netsilo_model::parse::mountinfo::network_namespaces;
use netsilo_model::parse::net_udp::net_udp;
use netsilo_model::parse::nfnetlink_queue::nfnetlink_queue;
use netsilo_model::parse::schedstat::thread_time;
use netsilo_model::parse::snmp::{snmp, snmp6};
use netsilo_model::parse::sockstat::in_use;
use netsilo_model::snapshot::netfilter::NfQueue;

use crate::properties::points_into;
use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget::text(holds);

fn holds(text: &str) {
    let read = snmp(text, |_| true);
    points_into(text, &read);
    let read6 = snmp6(text, |_| true);
    points_into(text, &read6);
    if let Ok(counters) = read6 {
        assert_eq!(snmp6(&lines(&counters), |_| true), Ok(counters));
    }
    let sockets = net_udp(text);
    points_into(text, &sockets);
    if let Ok(sockets) = sockets {
        let mut again = "header\n".to_owned();
        let mut printed: BTreeMap<(u16, u32), u32> = BTreeMap::new();
        for s in &sockets {
            let before = printed.entry((s.port, s.group)).or_default();
            // Sockets of one group have one address; an address of each group.
            let address = format!("{}.{}", s.group, *before / s.group);
            *before += 1;
            let _ = write!(again, "1: {address}:{:X} 0:0 07 0:{:X} 0:0 0 0 0 ", s.port, s.queued);
            let _ = writeln!(again, "{} 2 0 {}", s.inode, s.drops);
        }
        assert_eq!(net_udp(&again), Ok(sockets));
    }
    let queues = nfnetlink_queue(text);
    points_into(text, &queues);
    if let Ok(queues) = queues {
        let line = |q: &NfQueue| {
            let (waiting, dropped) = (q.waiting, q.dropped);
            format!("{} {} {waiting} 2 0 {dropped} {} 0 1\n", q.number, q.port, q.user_dropped)
        };
        let again: String = queues.iter().map(line).collect();
        assert_eq!(nfnetlink_queue(&again), Ok(queues));
    }
    if let Some(number) = in_use(text, "UDP") {
        assert_eq!(in_use(&format!("UDP: inuse {number} mem 0\n"), "UDP"), Some(number));
    }
    for (inode, path) in network_namespaces(text) {
        if !path.contains(['\\', ' ', '\t', '\n']) {
            let line = format!("1 1 0:4 net:[{inode}] {path} rw - nsfs nsfs rw\n");
            assert_eq!(network_namespaces(&line), [(inode, path)]);
        }
    }
    if let Some(time) = thread_time(text) {
        assert_eq!(
            thread_time(&format!("{} {} {}\n", time.run_ns, time.wait_ns, time.runs)),
            Some(time)
        );
    }
}

fn lines(counters: &BTreeMap<String, u64>) -> String {
    counters.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
}
