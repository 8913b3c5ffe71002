//! Whether a verb's JSON conforms to its schema in `docs/schema`.

use std::path::Path;

use serde_json::Value;

/// Returns what `--json` printed; fails if it does not conform to the schema of this name.
pub(crate) fn conforming(name: &str, printed: &[u8]) -> Value {
    let value: Value = serde_json::from_slice(printed).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/schema/{name}.json"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}");
    value
}
