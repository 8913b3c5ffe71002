//! netsilo.
fn main() {}
