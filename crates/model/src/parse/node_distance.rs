//! `/sys/devices/system/node/node<n>/distance`: distances to each online node, in order of node
//! number.

use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// The distances in file order; 10 means local.
pub fn node_distance(text: &str) -> Result<Vec<u32>, ParseError> {
    words(text.trim_end()).map(|word| decimal(1, word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_order() {
        assert_eq!(node_distance("10 21\n"), Ok(vec![10, 21]));
        assert_eq!(node_distance("10 x\n").unwrap_err().column, 4);
    }
}
