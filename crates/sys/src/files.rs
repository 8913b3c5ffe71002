//! The source of kernel files, and how they are read: whole, line by line, or repeatedly.
//!
//! A [`Root`](root::Root) is the running kernel, a captured tree, or a tree made for a test. Uses
//! nothing else of this crate. The meaning of a file does not belong here: readers pass a parser of
//! `netsilo-model`.

pub mod cache;
pub mod document;
pub mod error;
pub mod lines;
pub(crate) mod memory_tree;
pub mod output;
pub mod private_dir;
pub mod recorder;
pub mod regular;
pub mod root;
pub(crate) mod source;
pub mod tree_facts;
pub mod trust;
pub(crate) mod writes;
