//! Whether a verb's JSON conforms to its definition in `docs/schema.json`.

use std::path::Path;

use serde_json::{Value, json};

/// Returns what `--json` printed; fails if it does not conform to the schema of this name.
pub(crate) fn conforming(name: &str, printed: &[u8]) -> Value {
    let value: Value = serde_json::from_slice(printed).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let one = json!({ "$ref": format!("#/$defs/{name}"), "$defs": schema["$defs"] });
    let validator = jsonschema::validator_for(&one).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}");
    value
}
