//! The client's end of a control connection.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use netsilo_trial::traffic::Spec;

use crate::control::{Lines, Reply, Request, SERVER_LINE, VERSION};
use crate::error::LoadError;
use crate::socket::PATIENCE;

/// Timeout for a server's reply. The server takes snapshots and waits for data in flight.
pub(super) const ANSWER: Duration = Duration::from_secs(60);

/// The client's end of the control connection.
pub(super) struct Control {
    pub(super) lines: Lines,
    server: SocketAddr,
}

impl Control {
    pub(super) fn connect(server: SocketAddr) -> Result<Self, LoadError> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .map_err(|source| LoadError::NoServer { address: server, source })?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(LoadError::Control)?;
        let lines = Lines::new(stream, SERVER_LINE, ANSWER).map_err(LoadError::Control)?;
        let mut control = Self { lines, server };
        match control.ask(&Request::Hello { version: VERSION })? {
            Reply::Welcome { version: VERSION } => Ok(control),
            _ => Err(LoadError::NotNetsilo(server)),
        }
    }

    pub(super) fn prepare(&mut self, spec: &Spec) -> Result<Vec<u16>, LoadError> {
        match self.ask(&Request::Prepare(Box::new(spec.clone())))? {
            Reply::Ready { ports, .. } if !ports.is_empty() => Ok(ports),
            _ => Err(LoadError::NotNetsilo(self.server)),
        }
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply, LoadError> {
        let said = self.lines.send(request);
        let reply = self.receive()?;
        said.map(|()| reply).map_err(LoadError::Control)
    }

    /// The server's next reply.
    pub(super) fn receive(&mut self) -> Result<Reply, LoadError> {
        match self.lines.receive() {
            Ok(Some(Reply::Refused { why })) => Err(LoadError::Refused(why)),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(LoadError::Disconnected),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(LoadError::NotNetsilo(self.server))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(LoadError::Disconnected)
            }
            Err(error) => Err(LoadError::Control(error)),
        }
    }
}
