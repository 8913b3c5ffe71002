//! The files of the program that parse what a configuration shares with the command line.

#[path = "../../../crates/netsilo/src/args/goal_keys.rs"]
pub(crate) mod goal_keys;
#[path = "../../../crates/netsilo/src/args/named.rs"]
pub(crate) mod named;
#[path = "../../../crates/netsilo/src/args/objective.rs"]
pub(crate) mod objective;
#[path = "../../../crates/netsilo/src/args/parse.rs"]
pub(crate) mod parse;
