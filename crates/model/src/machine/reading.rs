//! A reading that may be absent: the value, or the reason why there is none. Absent is never 0.

use serde::{Deserialize, Serialize};

/// One part of the kernel's answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The kernel's answer.
    Value(T),
    /// The reason for the missing answer, in words.
    Absent(String),
}

impl<T> Reading<T> {
    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Reading::Value(value) => Some(value),
            Reading::Absent(_) => None,
        }
    }

    /// The reason for a missing value.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Reading::Value(_) => None,
            Reading::Absent(reason) => Some(reason),
        }
    }

    /// Converts the value. An absent part keeps its reason.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Reading::Value(value) => Reading::Value(f(value)),
            Reading::Absent(reason) => Reading::Absent(reason),
        }
    }
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Reading::Value(value),
            Err(error) => Reading::Absent(error.to_string()),
        }
    }
}
