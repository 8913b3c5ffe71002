//! A reading that may be absent: the value, or the reason why there is none. Absent is never 0.

use serde::{Deserialize, Serialize};

/// One part of the kernel's answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part<T> {
    /// The kernel's answer.
    Value(T),
    /// The reason for the missing answer, in words.
    Absent(String),
}

impl<T> Part<T> {
    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Part::Value(value) => Some(value),
            Part::Absent(_) => None,
        }
    }

    /// The reason for a missing value.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Part::Value(_) => None,
            Part::Absent(reason) => Some(reason),
        }
    }

    /// Converts the value; an absent part keeps its reason.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Part<U> {
        match self {
            Part::Value(value) => Part::Value(f(value)),
            Part::Absent(reason) => Part::Absent(reason),
        }
    }
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Part<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Part::Value(value),
            Err(error) => Part::Absent(error.to_string()),
        }
    }
}
