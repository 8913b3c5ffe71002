//! A macro for types that JSON holds as text.

/// Makes serde write a type with `Display` and read it with `FromStr` (use with `#[serde(into =
/// "String", try_from = "String")]`).
#[macro_export]
macro_rules! as_text {
    ($($type:ty),+) => {$(
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    )+};
}

pub use as_text;
