//! Arguments that several verbs share, with their parsers: what to observe, the goal, the source of
//! a plan, the state folder, how to apply.
//!
//! May use `tell`. Arguments of only one verb stay in that verb. Nothing here prints a result.

pub(crate) mod ab_setting;
pub(crate) mod apply_options;
pub mod costs;
pub mod file;
pub(crate) mod goal;
pub(crate) mod goal_keys;
pub mod look;
pub mod named;
pub(crate) mod netns;
pub(crate) mod objective;
pub(crate) mod outcomes;
pub mod parse;
pub(crate) mod plan;
pub mod state_dir;

/// The arguments of a verb, as these words give them.
#[cfg(test)]
pub(crate) fn parsed<T: clap::Args>(words: &str) -> T {
    let command = T::augment_args(clap::Command::new("verb").no_binary_name(true));
    T::from_arg_matches(&command.get_matches_from(words.split_whitespace())).unwrap()
}
