//! Reads sockets by every method and counts the bytes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use io_uring::{IoUring, opcode, types};
use rustix::net::RecvFlags;
use rustix::pipe::SpliceFlags;

const CHUNK: usize = 16 * 1024;

/// Reads all connections, prints the port and the count, and stays until stdin closes.
pub(crate) fn run(how: &str, connections: usize) {
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
