//! Text that cannot control a terminal.

use std::borrow::Cow;

use netsilo_model::parse::sanitize::is_control;

/// Escapes every control character except newline and tab, so that names cannot control a terminal.
///
/// In JSON, control characters occur only inside strings, where the escape has the same meaning.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_control(c) && c != '\n' && c != '\t';
    // Most of what is printed is ASCII, which is searched faster by bytes.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || b" \n\t".contains(byte);
    if text.as_bytes().iter().all(is_plain) || !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    // all of them are below U+10000, so four digits suffice, as in JSON
    let written_out =
        |c: char| if is_escaped(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    Cow::Owned(text.chars().map(written_out).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_escaped_and_json_keeps_its_meaning() {
        assert_eq!(printable("a\tb\nc\n"), "a\tb\nc\n");
        assert_eq!(printable("\u{1b}[2J\u{9b}1m\r\u{202e}"), "\\u001b[2J\\u009b1m\\u000d\\u202e");
        let names = ["\u{7f}\u{9b}31m", "\u{202e}\u{feff}", "a\nb\u{1b}"];
        let json = serde_json::to_string(&names).unwrap();
        let printed = printable(&json);
        assert!(printed.is_ascii() && !printed.chars().any(char::is_control), "{printed}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&printed).unwrap(), names);
    }
}
