//! The daemon's listeners: the status socket, and the metrics if they are configured. A listener
//! that ends is started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::daemon::metrics::WindowSums;
use crate::daemon::publish::{MetricsServer, SharedStatus, StatusSocket};
use crate::tell::status::Status;

/// The listeners, and the state that they publish.
pub(crate) struct Listeners {
    /// Path of the status socket; `None` if the state folder cannot be written to.
    path: Option<PathBuf>,
    shared: SharedStatus,
    socket: Option<StatusSocket>,
    metrics: Option<MetricsServer>,
}

impl Listeners {
    /// Opens the status socket.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self> {
        let mut listeners =
            Self { path, shared: SharedStatus::default(), socket: None, metrics: None };
        listeners.listen(None)?;
        Ok(listeners)
    }

    /// Publishes a status. `window` is the length of the last window.
    pub(crate) fn put(&self, status: Status, sums: WindowSums, window: Duration) {
        self.shared.put(status, sums, window);
    }

    /// Serves metrics at another address. If that address cannot be bound, the old one stays.
    pub(crate) fn move_metrics(&mut self, address: Option<SocketAddr>) -> Result<()> {
        let old = self.metrics.as_ref().map(|server| server.address);
        if old == address {
            return Ok(());
        }
        // The old listener can block the port for the new one, for example 127.0.0.1 for all
        // addresses. Otherwise the old listener serves until the new one has its port.
        if old.zip(address).is_some_and(|(old, new)| old.port() == new.port()) {
            self.metrics = None;
        }
        match self.metrics_at(address) {
            Ok(server) => self.metrics = server,
            Err(error) => {
                if self.metrics.is_none() {
                    // If this fails too, `check` reports it and tries again.
                    self.metrics = self.metrics_at(old).unwrap_or(None);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Restarts listeners that have ended; metrics are served at this address. Returns why readers
    /// get no answer, if they get none.
    pub(crate) fn check(&mut self, metrics: Option<SocketAddr>) -> Vec<String> {
        let socket = self.socket.take_if(|socket| socket.has_ended());
        let server = self.metrics.take_if(|server| server.has_ended());
        let status = socket.as_ref().or(self.socket.as_ref()).and_then(StatusSocket::trouble);
        let served = server.as_ref().or(self.metrics.as_ref()).and_then(MetricsServer::trouble);
        let mut notes: Vec<String> = status.into_iter().chain(served).collect();
        if socket.is_some() {
            notes.push("the status socket ended: starting it again".into());
        }
        if let Some(ended) = server {
            let at = ended.address;
            notes.push(format!("the server of metrics at {at} ended: starting it again"));
        }
        // dropping it removes its path, which the new socket needs
        drop(socket);
        notes.extend(self.listen(metrics).err().map(|error| format!("{error:#}")));
        notes
    }

    /// Starts the listeners that are missing.
    fn listen(&mut self, metrics: Option<SocketAddr>) -> Result<()> {
        if self.socket.is_none()
            && let Some(path) = &self.path
        {
            self.socket = Some(StatusSocket::open(path, self.shared.clone())?);
        }
        if self.metrics.is_none() {
            self.metrics = self.metrics_at(metrics)?;
        }
        Ok(())
    }

    fn metrics_at(&self, address: Option<SocketAddr>) -> Result<Option<MetricsServer>> {
        address.map(|address| MetricsServer::open(address, self.shared.clone())).transpose()
    }
}
