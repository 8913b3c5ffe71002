//! A process that reads sockets by every method and counts the bytes: the reference for
//! attribution.
//!
//! It is this test binary itself, started again for the test `reader_process` with its task in the
//! variable `READER`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;

use io_uring::{IoUring, opcode, types};
use rustix::net::RecvFlags;
use rustix::pipe::SpliceFlags;

const CHUNK: usize = 16 * 1024;

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
    /// `how` is a method of [`tcp`] or [`udp`].
    pub(crate) fn start(how: &str, connections: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reader_process", "--nocapture", "--test-threads=1"])
            .env("READER", format!("{how} {connections}"))
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
            // the test harness prints in between, without a line end
            if let Some((_, number)) = line.trim().split_once(&format!("{word} ")) {
                return number.parse().unwrap();
            }
        }
    }

    /// Makes it end, and waits until it has.
    pub(crate) fn end(&mut self) {
        self.input.take();
        self.child.wait().unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // also after a failed claim, when it still reads or is stopped
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The started process: reads, reports the count, and stays until stdin closes.
pub(crate) fn run(what: &str) {
    let (how, connections) = what.split_once(' ').unwrap();
    let connections: usize = connections.parse().unwrap();
    if let Some(how) = how.strip_prefix("udp-") {
        udp(how, connections);
    } else {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        say("port", listener.local_addr().unwrap().port().into());
        let mut total = 0;
        for _ in 0..connections {
            total += tcp(how, listener.accept().unwrap().0);
        }
        say("read", total);
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn say(word: &str, number: u64) {
    println!("{word} {number}");
    std::io::stdout().flush().unwrap();
}

/// Reads a connection to its end.
fn tcp(how: &str, stream: TcpStream) -> u64 {
    let mut buffer = vec![0; CHUNK];
    let mut ring = (how == "io_uring").then(|| IoUring::new(2).unwrap());
    let pipe = (how == "splice").then(|| rustix::pipe::pipe().unwrap());
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let mut total = 0;
    loop {
        let read = match how {
            "recv" => (&stream).read(&mut buffer).unwrap(),
            "step" => {
                let read = (&stream).read(&mut buffer).unwrap();
                say("step", total + read as u64);
                read
            }
            "peek" => {
                rustix::net::recv(&stream, &mut buffer[..], RecvFlags::PEEK).unwrap();
                rustix::net::recv(&stream, &mut buffer[..], RecvFlags::PEEK).unwrap();
                (&stream).read(&mut buffer).unwrap()
            }
            "trunc" => rustix::net::recv(&stream, &mut buffer[..], RecvFlags::TRUNC).unwrap().1,
            "splice" => {
                let (out, into) = pipe.as_ref().unwrap();
                let moved =
                    rustix::pipe::splice(&stream, None, into, None, CHUNK, SpliceFlags::empty())
                        .unwrap();
                let mut left = moved;
                while left > 0 {
                    left -=
                        rustix::pipe::splice(out, None, &null, None, left, SpliceFlags::empty())
                            .unwrap();
                }
                moved
            }
            "io_uring" => uring_read(ring.as_mut().unwrap(), &stream, &mut buffer),
            "zerocopy" => zerocopy_read(&stream),
            other => panic!("unknown read method {other}"),
        };
        total += read as u64;
        if read == 0 {
            return total;
        }
    }
}

#[allow(unsafe_code)]
fn uring_read(ring: &mut IoUring, stream: &TcpStream, buffer: &mut [u8]) -> usize {
    let entry =
        opcode::Recv::new(types::Fd(stream.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32)
            .build();
    // SAFETY: buffer and descriptor outlive the operation, whose completion is awaited.
    unsafe { ring.submission().push(&entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    usize::try_from(ring.completion().next().unwrap().result()).unwrap()
}

/// `struct tcp_zerocopy_receive` (`include/uapi/linux/tcp.h`): the fields of 4.18 and the copy
/// buffer.
#[repr(C)]
#[derive(Default)]
struct ZerocopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
}

/// Maps whole pages, lets the kernel copy small data (as its selftest does), and reads the rest.
#[allow(unsafe_code)]
fn zerocopy_read(stream: &TcpStream) -> usize {
    const TCP_ZEROCOPY_RECEIVE: i32 = 35;
    let length = 64 * 1024;
    let mut copied = vec![0_u8; CHUNK];
    // SAFETY: a fresh mapping of the socket, unmapped below; the kernel writes `request` and
    // `copied` only within the given sizes.
    let (request, failed) = unsafe {
        let socket = stream.as_raw_fd();
        let address =
            libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, socket, 0);
        assert_ne!(address, libc::MAP_FAILED);
        let mut request = ZerocopyReceive {
            address: address as u64,
            length: length as u32,
            copybuf_address: copied.as_mut_ptr() as u64,
            copybuf_len: copied.len() as i32,
            ..Default::default()
        };
        let mut size = size_of::<ZerocopyReceive>() as u32;
        let request_at = (&raw mut request).cast();
        let result = libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            TCP_ZEROCOPY_RECEIVE,
            request_at,
            &mut size,
        );
        libc::munmap(address, length);
        (request, result != 0)
    };
    let taken =
        if failed { 0 } else { request.length as usize + request.copybuf_len.max(0) as usize };
    if taken > 0 {
        return taken;
    }
    // the end, or data that cannot be mapped: exactly this many bytes must be read
    let hint =
        if failed || request.recv_skip_hint == 0 { CHUNK } else { request.recv_skip_hint as usize };
    let mut stream = stream;
    stream.read(&mut vec![0; hint]).unwrap()
}

/// Answers each datagram by an empty one, until an empty one arrives.
///
/// If connected, the first sender becomes its peer.
fn udp(how: &str, buffer: usize) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    say("port", socket.local_addr().unwrap().port().into());
    let mut bytes = vec![0; buffer];
    let mut total = 0;
    loop {
        if how == "peek" {
            rustix::net::recv(socket.as_fd(), &mut bytes[..], RecvFlags::PEEK).unwrap();
        }
        let (read, peer) = socket.recv_from(&mut bytes).unwrap();
        if how == "connected" {
            socket.connect(peer).unwrap();
            socket.send(&[]).unwrap();
        } else {
            socket.send_to(&[], peer).unwrap();
        }
        total += read as u64;
        if read == 0 {
            break;
        }
    }
    say("read", total);
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
