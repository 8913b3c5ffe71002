//! A load that another machine makes: the asking end.

use std::net::{IpAddr, SocketAddr};

use netsilo_trial::traffic::Run;

use crate::control::{Order, Reply, Request};
use crate::run::{ANSWER, Control, LoadError, Watch};

/// This machine's address as a server there has it before it: where it reaches us.
pub fn here(server: SocketAddr) -> Result<IpAddr, LoadError> {
    let control = Control::connect(server)?;
    Ok(control.lines.stream().local_addr().map_err(LoadError::Control)?.ip())
}

/// Asks a server for a load, and waits until it is made. When `watch` wants no more, the connection
/// goes, and the load with it.
pub fn ask(server: SocketAddr, order: &Order, watch: &mut Watch<'_>) -> Result<Run, LoadError> {
    order.spec.check().map_err(LoadError::Spec)?;
    let mut control = Control::connect(server)?;
    // it is told each second, but not while both ends open their sockets
    control.lines.stream().set_read_timeout(Some(ANSWER)).map_err(LoadError::Control)?;
    control.lines.say(&Request::Make(Box::new(order.clone()))).map_err(LoadError::Control)?;
    loop {
        match control.hear()? {
            Reply::Tick(tick) if watch(tick).is_continue() => {}
            Reply::Tick(_) => return Err(LoadError::Interrupted),
            Reply::Made(run) => return Ok(*run),
            _ => return Err(LoadError::Stranger(server)),
        }
    }
}
