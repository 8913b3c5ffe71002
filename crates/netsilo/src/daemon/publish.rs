//! Serves the daemon's last status on a socket and its metrics over HTTP, both read-only, each in
//! its own thread, so that a slow reader delays nothing.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tiny_http::{Header, Method, Request, Response, Server};

use crate::daemon::metrics::{self, ReadBytes};
use crate::tell::status::Status;

/// Longest time to write an answer to a reader.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is published; text is rendered on request.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) status: Status,
    pub(crate) read: ReadBytes,
    /// Length of the last window.
    pub(crate) window: Duration,
}

impl Published {
    fn status(&self) -> String {
        serde_json::to_string(&self.status).unwrap_or_default() + "\n"
    }

    fn metrics(&self) -> String {
        metrics::render(&self.status, &self.read, self.window.as_secs_f64())
    }
}

/// The last published state, shared by all readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedStatus(Arc<Mutex<Option<Arc<Published>>>>);

impl SharedStatus {
    /// Replaces the published state.
    pub(crate) fn put(&self, shown: Published) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(shown));
    }

    fn text(&self, of: impl Fn(&Published) -> String) -> String {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shown.map(|shown| of(&shown)).unwrap_or_default()
    }
}

/// A socket that sends the status to whoever connects; removed when dropped.
#[derive(Debug)]
pub(crate) struct StatusSocket(PathBuf);

impl StatusSocket {
    /// Opens the socket and replaces a dead daemon's; only the holder of the instance lock may call
    /// this.
    pub(crate) fn open(path: &Path, shared: SharedStatus) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
            .context("cannot make the status socket accessible")?;
        let serve = move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let _ = stream.write_all(shared.text(Published::status).as_bytes());
            }
        };
        std::thread::Builder::new()
            .name("status".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An HTTP server of metrics; stops when dropped.
pub(crate) struct MetricsServer {
    pub(crate) address: SocketAddr,
    server: Arc<Server>,
}

impl MetricsServer {
    /// Serves the metrics at `/metrics`.
    pub(crate) fn open(address: SocketAddr, shared: SharedStatus) -> Result<Self> {
        let server = Server::http(address)
            .map_err(|error| anyhow::anyhow!("cannot serve metrics at {address}: {error}"))?;
        let server = Arc::new(server);
        let requests = Arc::clone(&server);
        let serve = move || {
            for request in requests.incoming_requests() {
                // A reader that disconnects is no failure.
                let _ = answer(request, &shared);
            }
        };
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        Ok(Self { address, server })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

fn answer(request: Request, shared: &SharedStatus) -> std::io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let mut text = Response::from_string(shared.text(Published::metrics));
            if let Ok(kind) =
                Header::from_bytes("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            {
                text.add_header(kind);
            }
            request.respond(text)
        }
        (Method::Get | Method::Head, _) => request
            .respond(Response::from_string("metrics are at /metrics\n").with_status_code(404)),
        _ => request.respond(Response::from_string("read-only\n").with_status_code(405)),
    }
}
