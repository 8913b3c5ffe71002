//! A process that reads sockets by every method and counts the bytes. Attribution is compared with
//! these counts. The program is `test_helper reader`.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::helper;

/// The process, as seen by the test.
pub(crate) struct Reader {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The port it listens on.
    pub(crate) port: u16,
}

impl Reader {
    /// Starts a reader in this thread's network namespace, for `connections` connections.
    ///
    /// `how` is a method of `test_helper reader`.
    pub(crate) fn start(how: &str, connections: usize) -> Self {
        let mut child = helper()
            .args(["reader", how, &connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut reader = Self { child, input, output, port: 0 };
        reader.port = reader.said("port") as u16;
        reader
    }

    pub(crate) fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line `word number`.
    pub(crate) fn said(&mut self, word: &str) -> u64 {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the reader exited without printing {word}"
            );
            if let Some(number) = line.trim().strip_prefix(&format!("{word} ")) {
                return number.parse().unwrap();
            }
        }
    }

    /// Ends the process and waits for its end.
    pub(crate) fn end(&mut self) {
        self.input.take();
        self.child.wait().unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // also after a failed claim, when the process still reads or is stopped
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Sends the data of one connection in uneven pieces and closes.
pub(crate) fn send(to: SocketAddr, bytes: usize) {
    let mut stream = TcpStream::connect(to).unwrap();
    let data = vec![7; 100_000];
    let mut left = bytes;
    let mut piece = 1;
    while left > 0 {
        let now = left.min(piece);
        stream.write_all(&data[..now]).unwrap();
        left -= now;
        piece = (piece * 7 + 13) % data.len();
    }
}
