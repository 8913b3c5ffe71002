//! [`Losers`]: the sockets of one port that lost packets.

use netsilo_model::snapshot::sockets::LosingSocket;

/// The sockets of one port that lost packets. Empty if only the total of the protocol is known.
#[derive(Default)]
pub(super) struct Losers<'a> {
    /// Each socket with its lost packets, largest loss first.
    pub(super) sockets: Vec<(&'a LosingSocket, u64)>,
}

impl<'a> Losers<'a> {
    pub(super) fn lost(&self) -> u64 {
        self.sockets.iter().map(|(_, lost)| *lost).fold(0, u64::saturating_add)
    }

    pub(super) fn worst(&self) -> Option<&'a LosingSocket> {
        self.sockets.first().map(|(socket, _)| *socket)
    }

    /// The share of the worst socket in the losses of the port.
    pub(super) fn share_of_worst(&self) -> f64 {
        self.sockets.first().map_or(0.0, |(_, lost)| *lost as f64 / self.lost().max(1) as f64)
    }

    /// The process that reads the worst socket, or `its reader` if it is not known.
    pub(super) fn reader(&self) -> String {
        let holder = self.worst().and_then(|socket| socket.holder.as_ref());
        holder.map_or_else(
            || "its reader".to_owned(),
            |holder| format!("{} (pid {})", holder.comm, holder.tgid),
        )
    }
}
