//! Serves the daemon's last status on a socket, and its metrics over HTTP. Both are read-only.
//!
//! Readers are not trusted. Each listener has its own thread, which waits for no reader. A
//! connection carries one answer and ends at a deadline. If there are too many connections, the
//! oldest is closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::daemon::metrics::{self, WindowSums};
use crate::tell::out;
use crate::tell::status::Status;

/// Maximum time from a connection to the end of its request's header.
const HEADER_DEADLINE: Duration = Duration::from_secs(2);

/// Maximum duration of a connection, including request and answer.
const LIFETIME: Duration = Duration::from_secs(5);

/// Maximum number of connections of a listener. A service usually may have 1024 descriptors.
const CONNECTIONS: usize = 256;

/// Maximum size of a request's header in bytes.
const HEADER_BYTES: usize = 16 << 10;

/// Time before the next attempt to accept a connection after a failure.
const RETRY: Duration = Duration::from_millis(100);

/// What is published. Each text is rendered on the first request for it.
#[derive(Debug)]
pub(crate) struct Published {
    status: Status,
    sums: WindowSums,
    window: Duration,
    status_text: OnceLock<String>,
    metrics_text: OnceLock<String>,
}

impl Published {
    fn status(&self) -> &str {
        let render = || out::line(&self.status).unwrap_or_default();
        self.status_text.get_or_init(render)
    }

    fn metrics(&self) -> &str {
        let render = || metrics::render(&self.status, &self.sums, self.window.as_secs_f64());
        self.metrics_text.get_or_init(render)
    }
}

/// The last published state, shared by all readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedStatus(Arc<Mutex<Option<Arc<Published>>>>);

impl SharedStatus {
    /// Replaces the published state. `window` is the length of the last window.
    pub(crate) fn put(&self, status: Status, sums: WindowSums, window: Duration) {
        let (status_text, metrics_text) = Default::default();
        let shown = Published { status, sums, window, status_text, metrics_text };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(shown));
    }

    fn get(&self) -> Option<Arc<Published>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A thread that answers all readers of one listener. Dropping it closes the listener.
#[derive(Debug)]
struct Answering {
    task: AbortHandle,
    thread: Option<JoinHandle<()>>,
    trouble: Trouble,
}

/// Why a listener ended, or could not accept its last connection.
#[derive(Debug, Clone, Default)]
struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    fn put(&self, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Answering {
    /// Starts the thread, on a runtime that has only this listener.
    fn start(
        name: &str,
        runtime: Runtime,
        listener: Listener,
        shared: SharedStatus,
    ) -> Result<Self> {
        let trouble = Trouble::default();
        Self::run(name, runtime, accept(listener, shared, trouble.clone()), trouble)
    }

    fn run(
        name: &str,
        runtime: Runtime,
        accept: impl Future<Output = ()> + Send + 'static,
        trouble: Trouble,
    ) -> Result<Self> {
        let accepting = runtime.spawn(accept);
        let (task, told) = (accepting.abort_handle(), trouble.clone());
        let run = move || {
            if runtime.block_on(accepting).is_err_and(|error| error.is_panic()) {
                told.put("its thread panicked".into());
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(Self { task, thread, trouble })
    }

    /// Whether the thread ended by itself. Then its `Trouble` has the reason.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
        // The thread closes the listener as it ends. It ends at once, because it waits for no
        // reader.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot wait for connections")
}

/// Where readers connect.
enum Listener {
    Status(UnixListener),
    Metrics(TcpListener),
}

/// What answers one connection.
type Answer = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Listener {
    /// Waits for a connection.
    async fn accept(&self, shared: &SharedStatus) -> io::Result<Answer> {
        let shared = shared.clone();
        Ok(match self {
            Self::Status(listener) => Box::pin(send_status(listener.accept().await?.0, shared)),
            Self::Metrics(listener) => Box::pin(answer_http(listener.accept().await?.0, shared)),
        })
    }
}

/// Accepts connections while the socket listens. Other failures may be temporary, such as a lack of
/// descriptors.
async fn accept(listener: Listener, shared: SharedStatus, trouble: Trouble) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept(&shared).await {
            Ok(answer) => {
                if connections.len() == CONNECTIONS {
                    connections.retain(|connection| !connection.is_finished());
                }
                if connections.len() == CONNECTIONS
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let answer = tokio::spawn(timeout(LIFETIME, answer));
                connections.push_back(answer.abort_handle());
            }
            Err(error) => {
                trouble.put(error.to_string());
                if !listens(&error) {
                    return;
                }
                sleep(RETRY).await;
            }
        }
    }
}

/// Whether a socket still listens after it could not accept a connection.
///
/// `ss --kill` on a listener ends it permanently (`net/ipv4/tcp.c:tcp_abort`, then
/// `inet_csk_accept` returns EINVAL).
fn listens(error: &io::Error) -> bool {
    let dead = [Errno::INVAL, Errno::BADF, Errno::NOTSOCK, Errno::OPNOTSUPP];
    !Errno::from_io_error(error).is_some_and(|errno| dead.contains(&errno))
}

async fn send_status(mut stream: UnixStream, shared: SharedStatus) {
    if let Some(shown) = shared.get() {
        // If a reader disconnects, that is not a failure.
        let _ = stream.write_all(shown.status().as_bytes()).await;
    }
}

async fn answer_http(stream: TcpStream, shared: SharedStatus) {
    let answer = service_fn(|request| {
        let response = response(&request, &shared);
        async { Ok::<_, Infallible>(response) }
    });
    // If a reader disconnects, that is not a failure.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .title_case_headers(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// Answers a request. Nobody reads the body.
fn response(request: &Request<Incoming>, shared: &SharedStatus) -> Response<String> {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let shown = shared.get();
            (StatusCode::OK, shown.map(|shown| shown.metrics().to_owned()).unwrap_or_default())
        }
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "metrics are at /metrics\n".into())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "read-only\n".into()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// A socket that sends the status to every client that connects. It is removed when dropped.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    path: PathBuf,
    answering: Answering,
}

impl StatusSocket {
    /// Opens the socket, and replaces that of a dead daemon. Only the holder of the instance lock
    /// may call this.
    pub(crate) fn open(path: &Path, shared: SharedStatus) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let runtime = runtime()?;
        let listener = {
            let _context = runtime.enter();
            UnixListener::bind(path)
                .with_context(|| format!("cannot listen at {}", path.display()))?
        };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
            .context("cannot make the status socket accessible")?;
        let answering = Answering::start("status", runtime, Listener::Status(listener), shared)?;
        Ok(Self { path: path.to_owned(), answering })
    }

    /// Why connections could not be accepted since the last call.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.answering.trouble.take().map(|why| format!("cannot answer `netsilo status`: {why}"))
    }

    /// Whether the thread ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.answering.has_ended()
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An HTTP server of metrics at `/metrics`. It stops when dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    pub(crate) address: SocketAddr,
    answering: Answering,
}

impl MetricsServer {
    pub(crate) fn open(address: SocketAddr, shared: SharedStatus) -> Result<Self> {
        let runtime = runtime()?;
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .with_context(|| format!("cannot serve metrics at {address}"))?;
        let answering = Answering::start("metrics", runtime, Listener::Metrics(listener), shared)?;
        Ok(Self { address, answering })
    }

    /// Why connections could not be accepted since the last call.
    pub(crate) fn trouble(&self) -> Option<String> {
        let why = self.answering.trouble.take()?;
        Some(format!("cannot serve metrics at {}: {why}", self.address))
    }

    /// Whether the thread ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.answering.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_whose_thread_panicked_has_ended_and_says_so() {
        let trouble = Trouble::default();
        let panics = async { std::panic::resume_unwind(Box::new(())) };
        let answering = Answering::run("test", runtime().unwrap(), panics, trouble).unwrap();
        while !answering.has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(answering.trouble.take().as_deref(), Some("its thread panicked"));
    }

    #[test]
    fn a_status_socket_that_ended_is_opened_again_at_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let open = || StatusSocket::open(&path, SharedStatus::default()).unwrap();
        let socket = open();
        assert!(!socket.has_ended() && socket.trouble().is_none());
        socket.answering.task.abort();
        while !socket.has_ended() {
            std::thread::yield_now();
        }
        drop(socket);
        let _again = open();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }
}
