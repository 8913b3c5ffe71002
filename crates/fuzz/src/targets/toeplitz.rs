//! The Toeplitz hash: it is linear, and printed keys and flows parse to the same values.

use netsilo_model::rss::toeplitz::{hash, parse_key};
use netsilo_model::snapshot::flow::FlowSpec;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget::bytes(holds);

fn holds(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(key) = parse_key(text)
    {
        let printed: Vec<String> = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(parse_key(&printed.join(":")), Some(key));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(asked) = text.parse::<FlowSpec>()
    {
        assert_eq!(asked.to_string().parse(), Ok(asked));
    }
    let (key, inputs) = bytes.split_at(bytes.len().min(40));
    let (a, b) = inputs.split_at(inputs.len() / 2);
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let mixed: Vec<u8> = a.iter().zip(b).map(|(a, b)| a ^ b).collect();
    match (hash(key, a), hash(key, b), hash(key, &mixed)) {
        (Some(a), Some(b), Some(both)) => assert_eq!(a ^ b, both),
        none => assert_eq!(none, (None, None, None)),
    }
}
