//! Properties that several targets check.

use std::fmt::Debug;

use netsilo_model::parse::ParseError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value that is printed as JSON and read again is the same.
pub(crate) fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let printed = serde_json::to_string(value).expect("plain values");
    match serde_json::from_str::<T>(&printed) {
        Ok(again) => assert_eq!(&again, value),
        Err(error) => panic!("{error} in {printed}"),
    }
}

/// Whether a text is one line as the kernel prints it: with its newline, without control characters
/// except tabs.
pub(crate) fn is_one_line(text: &str) -> bool {
    !text.strip_suffix('\n').unwrap_or(text).contains(|c: char| c.is_control() && c != '\t')
}

/// Checks that a parser's error position lies in the text and that its quoted text is there.
pub(crate) fn points_into<T>(text: &str, result: &Result<T, ParseError>) {
    let Err(error) = result else { return };
    assert!(error.line >= 1 && error.column >= 1, "{error}");
    // not lines(), which also strips a carriage return before the newline
    let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
    assert!(error.line <= text.split('\n').count() + 1, "{error}: no such line");
    assert!(error.column <= line.len() + 1, "{error}: the column is beyond the end of the line");
    if let Some(unexpected) = error.what.strip_prefix("unexpected ") {
        let there = line.get(error.column - 1..).map(|rest| rest.chars().next().unwrap_or('\n'));
        assert_eq!(
            there.map(|c| format!("{c:?}")).as_deref(),
            Some(unexpected),
            "{error} in {line:?}"
        );
    }
}
