//! ethtool's settings and steering rules: their types, and their encoding as netlink attributes.
//!
//! Decoding of the kernel's answers is in [`crate::parse::ethtool_decode`].

pub mod encode;
pub mod rule;
pub mod settings;
