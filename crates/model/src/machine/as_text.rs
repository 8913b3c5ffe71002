//! Values that JSON holds as people write them.

/// Lets serde write a type as it is displayed and read it as it is parsed (`#[serde(into =
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
