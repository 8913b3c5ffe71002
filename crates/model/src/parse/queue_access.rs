//! Files of a process that show what can take packets from a queue: `fdinfo` of an io_uring,
//! `maps`, and the table of netlink sockets.

use std::collections::BTreeSet;

use crate::machine::cpuset::CpuId;
use crate::parse::ParseError;

/// Offsets at which an io_uring maps the refill rings of zero-copy receivers
/// (`IORING_MAP_OFF_ZCRX_REGION`, since 6.15), up to those of buffer rings.
const ZERO_COPY: std::ops::Range<u64> = 0x3000_0000..0x8000_0000;

/// The CPU of the kernel thread that polls an io_uring; `None` if it has no such thread.
pub fn poller_cpu(fdinfo: &str) -> Option<CpuId> {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("SqThreadCpu:"))?;
    value.trim().parse().ok().map(CpuId)
}

/// Whether a process maps the refill ring of a zero-copy receiver. The ring may also be in memory
/// of the process's own, which does not show it.
pub fn maps_zero_copy_ring(maps: &str) -> bool {
    let is_one = |line: &str| {
        let offset = line.split_ascii_whitespace().nth(2);
        let offset = offset.and_then(|it| u64::from_str_radix(it, 16).ok());
        line.ends_with("anon_inode:[io_uring]") && offset.is_some_and(|it| ZERO_COPY.contains(&it))
    };
    maps.lines().any(is_one)
}

/// The inodes of the generic netlink sockets (protocol 16) in `/proc/net/netlink`.
pub fn generic_netlink(text: &str) -> Result<BTreeSet<u32>, ParseError> {
    let mut inodes = BTreeSet::new();
    for (at, line) in text.lines().enumerate().skip(1) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let inode: Option<u32> = words.get(9).and_then(|it| it.parse().ok());
        let inode = inode.ok_or_else(|| ParseError::new(at + 1, 1, "expected an inode"))?;
        inodes.extend(Some(inode).filter(|_| words[1] == "16"));
    }
    Ok(inodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_show_pollers_zero_copy_rings_and_netlink_sockets() {
        assert_eq!(poller_cpu("SqThread:\t812\nSqThreadCpu:\t3\n"), Some(CpuId(3)));
        assert_eq!(poller_cpu("SqThread:\t-1\nSqThreadCpu:\t-1\n"), None);
        let map = |offset: &str, of: &str| {
            format!("7f00-7f01 rw-p 30000000 00:00 0\n7f01-7f02 rw-s {offset} 00:0d 1143   {of}\n")
        };
        let ring = "anon_inode:[io_uring]";
        for (offset, of, is_one) in [
            ("30000000", ring, true),
            ("30010000", ring, true),
            ("10000000", ring, false),
            ("80000000", ring, false),
            ("30000000", "anon_inode:[perf_event]", false),
        ] {
            assert_eq!(maps_zero_copy_ring(&map(offset, of)), is_one, "{offset} {of}");
        }
        let head = "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode\n";
        let table = format!("{head}0000 0 0 00 0 0 0 2 0 4\n0000 16 812 00 0 0 0 2 0 77\n");
        assert_eq!(generic_netlink(&table), Ok(BTreeSet::from([77])));
        assert!(generic_netlink(&format!("{head}0000 16\n")).is_err());
    }
}
