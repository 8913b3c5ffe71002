//! Words of messages.

/// `1 rx queue`, `3 rx queues`.
pub fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
