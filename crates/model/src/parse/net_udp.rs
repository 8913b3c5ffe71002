//! `/proc/net/udp`, `/proc/net/udp6` (`net/ipv4/udp.c:udp4_format_sock`): the UDP sockets of one
//! network namespace.
//!
//! Addresses are not read, because drops are reported by port and holder.

use std::collections::BTreeMap;

use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// One UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpSocket {
    /// Local port.
    pub port: u16,
    /// Bytes of memory waiting to be read (`sk_rmem_alloc`).
    pub queued: u32,
    /// Inode, as in `/proc/<pid>/fd`. 0 if no process holds the socket any more.
    pub inode: u32,
    /// Datagrams dropped since the socket was opened (`sk_drops`), mostly because the buffer was
    /// full.
    pub drops: u64,
    /// Number of unconnected sockets with the same local address and port (`SO_REUSEPORT`), itself
    /// included.
    pub group: u32,
}

/// Parses all lines after the header.
pub fn net_udp(text: &str) -> Result<Vec<UdpSocket>, ParseError> {
    let lines = || text.lines().zip(1..).skip(1).filter(|(line, _)| !line.trim().is_empty());
    let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
    for (line, _) in lines() {
        *groups.entry(unconnected(line).unwrap_or_default()).or_default() += 1;
    }
    let group = |line| groups.get(unconnected(line)?).copied();
    lines()
        .map(|(line, number)| {
            Ok(UdpSocket { group: group(line).unwrap_or(1), ..socket((line, number))? })
        })
        .collect()
}

/// Local address and port of an unconnected socket (state 07, `TCP_CLOSE`).
fn unconnected(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, _, state) = (words.next()?, words.next()?, words.next()?);
    (state == "07").then_some(local)
}

fn socket((line, number): (&str, usize)) -> Result<UdpSocket, ParseError> {
    let words: Vec<(usize, &str)> = words(line).collect();
    let word = |n: usize, name: &str| {
        let missing =
            || ParseError::new(number, line.len() + 1, format!("no column {} ({name})", n + 1));
        words.get(n).copied().ok_or_else(missing)
    };
    let hexadecimal = |(at, word): (usize, &str)| {
        let digits = word
            .rsplit_once(':')
            .map(|(_, digits)| digits)
            .and_then(|d| u32::from_str_radix(d, 16).ok());
        digits.ok_or_else(|| {
            ParseError::new(
                number,
                at + 1,
                format!("expected hexadecimal after a colon, found {word:?}"),
            )
        })
    };
    let local = word(1, "local_address")?;
    let port = u16::try_from(hexadecimal(local)?).map_err(|_| {
        ParseError::new(number, local.0 + 1, format!("expected a port, found {:?}", local.1))
    })?;
    Ok(UdpSocket {
        port,
        queued: hexadecimal(word(4, "tx_queue:rx_queue")?)?,
        inode: decimal(number, word(9, "inode")?)?,
        drops: decimal(number, word(12, "drops")?)?,
        group: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr \
                          tm->when retrnsmt   uid  timeout inode ref pointer drops\n";

    #[test]
    fn a_line_gives_port_queue_inode_and_drops() {
        let line = "  205: 0100007F:1F90 00000000:0000 07 00000000:00034800 \
                    00:00000000 00000000  1000        0 31337 2 0000000000000000 812\n";
        let read = net_udp(&(HEADER.to_owned() + line)).unwrap();
        assert_eq!(
            read,
            [UdpSocket { port: 8080, queued: 0x34800, inode: 31337, drops: 812, group: 1 }]
        );
        let other = line.replace(" 07 ", " 01 ");
        let three = net_udp(&(HEADER.to_owned() + line + &other + line)).unwrap();
        assert_eq!(
            three.iter().map(|it| it.group).collect::<Vec<_>>(),
            [2, 1, 2],
            "one is connected"
        );
        let v6 = "  9: 00000000000000000000000000000000:0035 \
                  00000000000000000000000000000000:0000 07 00000000:00000000 \
                  00:00000000 00000000 0 0 77 2 0000000000000000 0\n";
        assert_eq!(net_udp(&(HEADER.to_owned() + v6)).unwrap()[0].port, 53);
        assert_eq!(net_udp(HEADER), Ok(vec![]));
    }

    #[test]
    fn a_missing_column_is_named() {
        let cut = HEADER.to_owned() + "  205: 0100007F:1F90 00000000:0000 07\n";
        let message = net_udp(&cut).unwrap_err().to_string();
        assert_eq!(message, "line 2 column 38: no column 5 (tx_queue:rx_queue)");
        assert!(
            net_udp("h\n1: 2\n")
                .unwrap_err()
                .to_string()
                .contains("expected hexadecimal after a colon")
        );
    }
}
