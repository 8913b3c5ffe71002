//! The control protocol of client and server: JSON lines of bounded length, the version first.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use netsilo_trial::traffic::{InstancesAs, LoadResult, ServerResult, Spec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::tick::Tick;

/// The version of the protocol. Other versions are rejected.
pub const VERSION: u32 = 1;

/// Maximum length in bytes of a line that a server accepts from a client.
pub(super) const CLIENT_LINE: u64 = 64 << 10;

/// Maximum length in bytes of a line that a client accepts from a server. It contains the counters
/// of a large machine.
pub(super) const SERVER_LINE: u64 = 64 << 20;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first request.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Prepare for this load. Its connections follow.
    Prepare(Box<Spec>),
    /// Start counting.
    Begin {
        /// Whether to measure hardirq and softirq times with eBPF.
        bpf: bool,
    },
    /// Stop counting.
    End,
    /// Everything was sent.
    Stop,
    /// Generate a load against a server of the requesting machine.
    Make(Box<Order>),
}

/// A load that a server is asked to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The load.
    pub spec: Spec,
    /// The machine to load. `None` means the requesting machine; others need permission.
    pub to: Option<IpAddr>,
    /// The port of its server.
    pub port: u16,
    /// Measure hardirq and softirq times with eBPF, at both ends.
    pub bpf: bool,
}

/// The server's reply to each request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Welcome {
        /// [`VERSION`].
        version: u32,
    },
    /// To [`Request::Prepare`].
    Ready {
        /// The ports to connect or send to, in rotation.
        ports: Vec<u16>,
        /// How its workers are implemented.
        instances_as: InstancesAs,
    },
    /// To [`Request::Begin`].
    Begun,
    /// To [`Request::End`].
    Ended,
    /// To [`Request::Stop`].
    Done(Box<ServerResult>),
    /// To [`Request::Make`], about once a second.
    Tick(Tick),
    /// To [`Request::Make`], at its end.
    Made(Box<LoadResult>),
    /// To any request.
    Refused {
        /// Why.
        why: String,
    },
}

/// A control connection.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<TcpStream>,
    longest: u64,
    /// Time limit for a whole line, however slowly its bytes arrive.
    patience: Duration,
}

impl Lines {
    pub fn new(stream: TcpStream, longest: u64, patience: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream), longest, patience })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Whether buffered input is left.
    pub(super) fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    pub(super) fn send(&mut self, words: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(words)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line)
    }

    /// The next line; `None` if the other end has closed the connection.
    ///
    /// A line that is too long or invalid is `InvalidData`.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let (mut line, until) = (Vec::new(), Instant::now() + self.patience);
        while line.last() != Some(&b'\n') && (line.len() as u64) < self.longest {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream().set_read_timeout(Some(left))?;
            let some = match self.reader.fill_buf() {
                // a process that was stopped and continued
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                some => some?,
            };
            let some = &some[..some.len().min(self.longest as usize - line.len())];
            let end = some.iter().position(|byte| *byte == b'\n').map_or(some.len(), |at| at + 1);
            line.extend_from_slice(&some[..end]);
            self.reader.consume(end);
            if end == 0 && line.is_empty() {
                return Ok(None);
            }
            if end == 0 {
                break;
            }
        }
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if line.last() != Some(&b'\n') {
            return Err(invalid(format!("a line that does not end within {} bytes", self.longest)));
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_line_is_read_and_an_endless_line_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let patience = Duration::from_millis(500);
        let mut server = Lines::new(listener.accept().unwrap().0, 100, patience).unwrap();
        client.write_all(b"{\"hello\":{\"version\":1}}\n\"end\"\nnonsense\n").unwrap();
        assert_eq!(server.receive().unwrap(), Some(Request::Hello { version: 1 }));
        assert_eq!(server.receive().unwrap(), Some(Request::End));
        assert_eq!(server.receive::<Request>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        client.write_all(&[b'x'; 300]).unwrap();
        let error = server.receive::<Request>().unwrap_err().to_string();
        assert_eq!(error, "a line that does not end within 100 bytes");
        let (mut client, stream) = (
            TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
            listener.accept().unwrap().0,
        );
        let mut server = Lines::new(stream, 100, patience).unwrap();
        client.write_all(b"\"en").unwrap();
        let late = server.receive::<Request>().unwrap_err().kind();
        assert!(matches!(late, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{late}");
    }
}
