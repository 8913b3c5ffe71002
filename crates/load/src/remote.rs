//! The client that requests a load from another machine.

use std::net::{IpAddr, SocketAddr};

use netsilo_trial::traffic::LoadResult;

use crate::client::{ANSWER, Control};
use crate::control::{Order, Reply, Request};
use crate::error::LoadError;
use crate::tick::Watch;

/// This machine's address on the path to the server. The server can reach it there.
pub fn address_towards(server: SocketAddr) -> Result<IpAddr, LoadError> {
    let control = Control::connect(server)?;
    Ok(control.lines.stream().local_addr().map_err(LoadError::Control)?.ip())
}

/// Requests a load from a server and waits until it is complete.
///
/// If `watch` breaks, the connection closes, and that ends the load.
pub fn request_load(
    server: SocketAddr,
    order: &Order,
    watch: &mut Watch<'_>,
) -> Result<LoadResult, LoadError> {
    order.spec.check().map_err(LoadError::Spec)?;
    let mut control = Control::connect(server)?;
    // ticks arrive each second, except while both ends open their sockets
    control.lines.stream().set_read_timeout(Some(ANSWER)).map_err(LoadError::Control)?;
    control.lines.send(&Request::Make(Box::new(order.clone()))).map_err(LoadError::Control)?;
    loop {
        match control.receive()? {
            Reply::Tick(tick) if watch(tick).is_continue() => {}
            Reply::Tick(_) => return Err(LoadError::Interrupted),
            Reply::Made(run) => return Ok(*run),
            _ => return Err(LoadError::NotNetsilo(server)),
        }
    }
}
