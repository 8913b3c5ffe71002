//! netsilo kernel edge.
