//! Answers requests; each worker is pinned and has its own port.

use crate::traffic::print::print;
use crate::traffic::proto::Proto;
use crate::traffic::socket;
use crate::traffic::socket::CpuList;
use anyhow::{Context, Result};
use clap::Args;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Answer requests
#[derive(Debug, Clone, Args)]
pub struct RrServer {
    /// Protocol
    #[arg(long, value_enum)]
    pub proto: Proto,
    /// Port of the first worker
    #[arg(long)]
    pub port: u16,
    /// CPUs to run on, one pinned worker each
    #[arg(long, value_parser = socket::cpu_list, value_name = "LIST")]
    pub cpus: CpuList,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// Bytes of a request
    #[arg(long, default_value_t = 1)]
    pub request_bytes: usize,
    /// Bytes of a response
    #[arg(long, default_value_t = 1)]
    pub response_bytes: usize,
    /// CPU time to burn per request, in microseconds
    #[arg(long, default_value_t = 0)]
    pub work_usecs: u64,
    /// Run workers as threads of one process instead of as processes
    #[arg(long)]
    pub threads: bool,
}

/// Counts of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RrServed {
    /// Protocol.
    pub proto: Proto,
    /// Port.
    pub port: u16,
    /// The CPU that it is pinned to.
    pub cpu: usize,
    /// Its process id.
    pub pid: u32,
    /// Its process name.
    pub comm: String,
    /// Requests that were answered.
    pub transactions: u64,
    /// Bytes read from its sockets.
    pub received_bytes: u64,
    /// Bytes written to its sockets.
    pub sent_bytes: u64,
}

pub(crate) fn run(server: &RrServer) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let workers = (server.port..).zip(&server.cpus.0);
    if let [cpu] = server.cpus.0.as_slice() {
        return print(&work(server, server.port, *cpu, &stop)?);
    }
    if server.threads {
        return std::thread::scope(|scope| {
            let start = |(port, cpu): (u16, &usize)| {
                let (cpu, stop) = (*cpu, &stop);
                scope.spawn(move || print(&work(server, port, cpu, stop)?))
            };
            let handles: Vec<_> = workers.map(start).collect();
            handles.into_iter().try_for_each(|handle| handle.join().unwrap_or(Ok(())))
        });
    }
    processes(server, workers, &stop)
}

/// Runs each worker as a process: this program again, for one CPU.
fn processes<'a>(
    server: &RrServer,
    workers: impl Iterator<Item = (u16, &'a usize)>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut children = Vec::new();
    for (port, cpu) in workers {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["traffic", "rr-server", "--proto", &server.proto.to_string()]);
        command.args(["--port", &port.to_string(), "--cpus", &cpu.to_string()]);
        command.args(["--bind", &server.bind.to_string()]);
        command.args(["--request-bytes", &server.request_bytes.to_string()]);
        command.args(["--response-bytes", &server.response_bytes.to_string()]);
        command.args(["--work-usecs", &server.work_usecs.to_string()]);
        children.push(command.spawn().context("cannot start a worker")?);
    }
    // Forward a signal that reached only this process; one to its group reached the workers too.
    let mut forwarded = false;
    while !children.is_empty() {
        if stop.load(Ordering::Relaxed) && !forwarded {
            for child in &children {
                if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            }
            forwarded = true;
        }
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

fn work(server: &RrServer, port: u16, cpu: usize, stop: &AtomicBool) -> Result<RrServed> {
    socket::pin(cpu)?;
    let comm = format!("rr-{}-{port}", server.proto);
    socket::set_comm(&comm)?;
    let mut served = RrServed {
        proto: server.proto,
        port,
        cpu,
        pid: std::process::id(),
        comm,
        transactions: 0,
        received_bytes: 0,
        sent_bytes: 0,
    };
    let what = || format!("cannot listen on {}:{port}", server.bind);
    match server.proto {
        Proto::Tcp => {
            let listener = TcpListener::bind((server.bind, port)).with_context(what)?;
            tcp(server, &listener, stop, &mut served)?;
        }
        Proto::Udp => {
            let socket = UdpSocket::bind((server.bind, port)).with_context(what)?;
            udp(server, &socket, stop, &mut served)?;
        }
    }
    Ok(served)
}

/// Waits for events, at most 200 ms, to notice a signal that arrived between two waits.
fn wait(poll: impl rustix::fd::AsFd, events: &mut Vec<epoll::Event>) -> Result<()> {
    events.clear();
    let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&tick)) {
        Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn udp(
    server: &RrServer,
    socket: &UdpSocket,
    stop: &AtomicBool,
    served: &mut RrServed,
) -> Result<()> {
    socket.set_read_timeout(Some(std::time::Duration::from_millis(200)))?;
    let mut request = vec![0; 65536];
    let mut response = vec![0; server.response_bytes.max(1)];
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut request) {
            Ok(received) => received,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            // An empty datagram asks whether a server is there.
            let _ = socket.send_to(&[], from);
            continue;
        }
        take_time(server.work_usecs);
        // The first byte distinguishes a late response from a repeated one.
        response[0] = request[0];
        served.received_bytes += length as u64;
        served.sent_bytes += socket.send_to(&response, from).unwrap_or(0) as u64;
        served.transactions += 1;
    }
    Ok(())
}

/// Burns CPU time in user mode, as a service does that computes.
pub(crate) fn take_time(usecs: u64) {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let end = used() + std::time::Duration::from_micros(usecs);
    while usecs > 0 && used() < end {
        std::hint::spin_loop();
    }
}

/// A connection: request bytes received so far, and response bytes still to send.
struct Client {
    stream: TcpStream,
    received: usize,
    owed: usize,
}

fn tcp(
    server: &RrServer,
    listener: &TcpListener,
    stop: &AtomicBool,
    served: &mut RrServed,
) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let mut events = Vec::with_capacity(256);
    while !stop.load(Ordering::Relaxed) {
        wait(&poll, &mut events)?;
        for event in &events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let key = stream.as_raw_fd().cast_unsigned().into();
                    epoll::add(
                        &poll,
                        &stream,
                        epoll::EventData::new_u64(key),
                        epoll::EventFlags::IN,
                    )?;
                    clients.insert(key, Client { stream, received: 0, owed: 0 });
                }
            } else if let Some(client) = clients.get_mut(&key) {
                let alive = client.step(server, served);
                let more = client.owed > 0;
                if !alive {
                    clients.remove(&key);
                } else if more != flags.contains(epoll::EventFlags::OUT) {
                    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
                    let flags = if more { both } else { epoll::EventFlags::IN };
                    epoll::modify(&poll, &client.stream, epoll::EventData::new_u64(key), flags)?;
                }
            }
        }
    }
    Ok(())
}

impl Client {
    /// Reads what has arrived and answers; returns `false` when the connection has ended.
    fn step(&mut self, server: &RrServer, served: &mut RrServed) -> bool {
        let mut buffer = [0; 65536];
        // At most one request: a real server reads no further than it needs.
        let wanted = (server.request_bytes - self.received).min(buffer.len());
        match self.stream.read(&mut buffer[..wanted]) {
            Ok(0) => return false,
            Ok(length) => {
                served.received_bytes += length as u64;
                self.received += length;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        if self.received == server.request_bytes {
            self.received = 0;
            take_time(server.work_usecs);
            self.owed += server.response_bytes;
            served.transactions += 1;
        }
        while self.owed > 0 {
            match self.stream.write(&buffer[..self.owed.min(65536)]) {
                Ok(length) => {
                    served.sent_bytes += length as u64;
                    self.owed -= length;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        true
    }
}
