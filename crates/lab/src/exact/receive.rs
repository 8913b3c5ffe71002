//! Receives flows by a given method and counts every byte.

use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::ScopedJoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, bind, listen, recv};
use rustix::pipe::{SpliceFlags, pipe, splice};

use crate::exact::peer::sctp;
use crate::exact::receive_args::{Mode, Receive};
use crate::exact::received::{Received, ReceivedSocket, incoming_napi_id};
use crate::exact::tls::{self, Side};
use crate::exact::{receive_udp, uring, zerocopy};

/// Bytes per read.
const READ_BYTES: usize = 16384;

/// Receives until all flows have ended, or nothing more arrives.
pub(crate) fn run(receive: &Receive) -> Result<Received> {
    let Receive { ports, flows, port, bind, .. } = *receive;
    ensure!(
        ports > 0 && flows >= ports,
        "{ports} ports for {flows} flows: each port needs at least one flow"
    );
    let sockets = std::thread::scope(|scope| {
        let mut readers = Vec::new();
        if receive.is_udp() {
            for at in 0..ports {
                let flows = (0..flows).filter(|flow| flow % ports == at).count() as u64;
                readers.push(scope.spawn(move || {
                    receive.pin(at.into())?;
                    receive_udp::run(receive, port + at, flows)
                }));
            }
        } else {
            let listen = |at| {
                let listener = match receive.mode {
                    Mode::Sctp => listening((bind, port + at).into())?,
                    _ => TcpListener::bind((bind, port + at))?,
                };
                set_socket_timeout(&listener, Timeout::Recv, Some(receive.patience()))?;
                Ok(listener)
            };
            let listeners: Vec<TcpListener> = (0..ports)
                .map(listen)
                .collect::<std::io::Result<_>>()
                .with_context(|| format!("cannot listen on tcp port {port}"))?;
            for flow in 0..flows {
                let (stream, _) = listeners[usize::from(flow % ports)]
                    .accept()
                    .with_context(|| format!("only {flow} of {flows} flows arrived"))?;
                readers.push(scope.spawn(move || {
                    receive.pin(flow.into())?;
                    tcp(receive, stream)
                }));
            }
        }
        let join = |reader: ScopedJoinHandle<'_, Result<_>>| {
            reader.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
        };
        readers.into_iter().map(join).collect::<Result<Vec<ReceivedSocket>>>()
    })?;
    let bytes = sockets.iter().map(|socket| socket.bytes).sum();
    Ok(Received { pid: std::process::id(), bytes, sockets })
}

/// One-to-one sockets of SCTP are used like those of TCP.
fn listening(at: SocketAddr) -> rustix::io::Result<TcpListener> {
    let socket = sctp()?;
    bind(&socket, &at)?;
    listen(&socket, 128)?;
    Ok(socket.into())
}

fn tcp(receive: &Receive, mut stream: TcpStream) -> Result<ReceivedSocket> {
    stream.set_read_timeout(Some(receive.patience()))?;
    let mut counts = ReceivedSocket::default();
    let mut buffer = vec![0; READ_BYTES];
    if receive.mode == Mode::Tls {
        tls::begin(&stream, Side::Receiver)?;
    }
    match receive.mode {
        Mode::Recv | Mode::Tls | Mode::Sctp => {
            while counts.count_read(stream.read(&mut buffer)?) {}
        }
        Mode::Peek => loop {
            let (peeked, _) = recv(&stream, &mut buffer[..], RecvFlags::PEEK)?;
            // At the end of the stream both calls return 0.
            let (taken, _) = recv(&stream, &mut buffer[..peeked.max(1)], RecvFlags::empty())?;
            if !counts.count_read(taken) {
                break;
            }
        },
        Mode::Trunc => {
            while counts.count_read(recv(&stream, &mut buffer[..], RecvFlags::TRUNC)?.1) {}
        }
        Mode::Splice => spliced(&stream, &mut counts)?,
        Mode::Zerocopy => zerocopy::receive(&stream, &mut buffer, &mut counts)?,
        Mode::IoUring => uring::receive(&stream, &mut buffer, &mut counts)?,
        other => bail!("{other:?} is not for TCP"),
    }
    counts.incoming_napi_id = incoming_napi_id(&stream)?;
    Ok(counts)
}

fn spliced(stream: &TcpStream, counts: &mut ReceivedSocket) -> Result<()> {
    let (out, into) = pipe()?;
    let null = File::options().write(true).open("/dev/null")?;
    loop {
        let taken = splice(stream, None, &into, None, READ_BYTES, SpliceFlags::MOVE)?;
        if !counts.count_read(taken) {
            return Ok(());
        }
        let mut left = taken;
        while left > 0 {
            left -= splice(&out, None, &null, None, left, SpliceFlags::MOVE)?;
        }
    }
}
