//! Receives streams in a given way and counts every byte.

use crate::traffic::consume_args::{ConsumeArgs, Mode};
use crate::traffic::consumed::{Consumed, ConsumedSocket};
use crate::traffic::socket;
use crate::traffic::udp;
use crate::traffic::uring;
use crate::traffic::zerocopy;
use anyhow::{Context, Result, anyhow, bail};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{SpliceFlags, pipe, splice};
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

pub(crate) fn run(consume: &ConsumeArgs) -> Result<Consumed> {
    if consume.ports == 0 || consume.flows < consume.ports {
        bail!(
            "{} ports for {} flows: each port needs at least one flow",
            consume.ports,
            consume.flows
        );
    }
    let mode = clap::ValueEnum::to_possible_value(&consume.mode);
    let comm = format!("c-{}", mode.map(|mode| mode.get_name().to_owned()).unwrap_or_default());
    socket::set_comm(&comm)?;
    let started = Instant::now();
    let flows_on =
        |index: u16| (0..consume.flows).filter(|flow| flow % consume.ports == index).count();
    let sockets = std::thread::scope(|scope| {
        let listen = |index: u16| {
            scope.spawn(move || {
                let port = consume.port + index;
                if consume.is_udp() {
                    consume.pin(index.into())?;
                    return udp::consume(consume, port, flows_on(index)).map(|socket| vec![socket]);
                }
                tcp(consume, port, index.into(), flows_on(index))
            })
        };
        let handles: Vec<_> = (0..consume.ports).map(listen).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<Vec<_>>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
        };
        handles.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let sockets = sockets.concat();
    Ok(Consumed {
        mode: consume.mode,
        pid: std::process::id(),
        comm: comm.chars().take(15).collect(),
        bytes: sockets.iter().map(|socket| socket.bytes).sum(),
        seconds: started.elapsed().as_secs_f64(),
        sockets,
    })
}

/// Accepts `flows` connections and runs a thread for each.
fn tcp(
    consume: &ConsumeArgs,
    port: u16,
    first: usize,
    flows: usize,
) -> Result<Vec<ConsumedSocket>> {
    let listener = TcpListener::bind((consume.bind, port))
        .with_context(|| format!("cannot listen on tcp port {port}"))?;
    rustix::net::sockopt::set_socket_timeout(
        &listener,
        rustix::net::sockopt::Timeout::Recv,
        Some(consume.patience()),
    )?;
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for flow in 0..flows {
            let (stream, _) = listener
                .accept()
                .with_context(|| format!("only {flow} of {flows} flows arrived"))?;
            handles.push(scope.spawn(move || {
                consume.pin(first + flow * usize::from(consume.ports))?;
                stream.set_read_timeout(Some(consume.patience()))?;
                receive(consume, stream)
            }));
        }
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<_>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("a receiving thread panicked")))
        };
        handles.into_iter().map(join).collect()
    })
}

fn receive(consume: &ConsumeArgs, mut stream: TcpStream) -> Result<ConsumedSocket> {
    let mut counts = ConsumedSocket {
        local_port: stream.local_addr()?.port(),
        peer_port: stream.peer_addr()?.port(),
        ..ConsumedSocket::default()
    };
    let mut buffer = vec![0; consume.size.max(1)];
    match consume.mode {
        Mode::Recv => while counts.count_read(stream.read(&mut buffer)?) {},
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
        Mode::Splice => spliced(&stream, consume.size, &mut counts)?,
        Mode::Zerocopy => zerocopy::receive(&stream, &mut buffer, &mut counts)?,
        Mode::IoUring => uring::receive(&stream, &mut buffer, &mut counts)?,
        other => bail!("{other:?} is not for TCP"),
    }
    counts.incoming_napi_id = socket::incoming_napi_id(&stream)?;
    counts.incoming_cpu = socket::incoming_cpu(&stream)?;
    Ok(counts)
}

fn spliced(stream: &TcpStream, size: usize, counts: &mut ConsumedSocket) -> Result<()> {
    let (out, into) = pipe()?;
    let null = File::options().write(true).open("/dev/null")?;
    loop {
        let taken = splice(stream, None, &into, None, size.max(1), SpliceFlags::MOVE)?;
        if !counts.count_read(taken) {
            return Ok(());
        }
        let mut left = taken;
        while left > 0 {
            left -= splice(&out, None, &null, None, left, SpliceFlags::MOVE)?;
        }
    }
}
