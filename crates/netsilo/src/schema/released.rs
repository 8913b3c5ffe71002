//! What a released netsilo printed is still there, under the same schema number.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::schema;

/// Two schemas of which each `$ref` is resolved in its own definitions, so that types may have
/// other names.
struct Compared<'a> {
    old: &'a Value,
    new: &'a Value,
    /// Pairs of definitions that are compared already: types may contain themselves.
    open: BTreeSet<(String, String)>,
}

impl Compared<'_> {
    /// What a consumer of the old schema would miss in the new one.
    fn missing(&mut self, old: &Value, new: &Value, at: &str) -> Vec<String> {
        match [old, new].map(|it| it["$ref"].as_str()) {
            [None, None] => {}
            [Some(was), Some(is)] if !self.open.insert((was.into(), is.into())) => {
                return Vec::new();
            }
            [was, is] => {
                let old = was.map_or(old, |name| definition(self.old, name));
                let new = is.map_or(new, |name| definition(self.new, name));
                return self.missing(old, new, at);
            }
        }
        let mut missing = Vec::new();
        for (key, was) in old.as_object().into_iter().flatten() {
            let is = &new[key];
            match (key.as_str(), was, is) {
                ("description" | "title" | "default" | "format" | "minimum" | "maximum", ..) => {}
                ("properties" | "patternProperties", Value::Object(was), _) => {
                    for (name, was) in was {
                        let at = format!("{at}.{name}");
                        match &is[name] {
                            Value::Null => missing.push(at),
                            is => missing.extend(self.missing(was, is, &at)),
                        }
                    }
                }
                ("anyOf" | "oneOf" | "prefixItems", Value::Array(was), _) => {
                    let all = is.as_array().map(Vec::as_slice).unwrap_or_default();
                    for was in was {
                        let fits = |is: &Value| {
                            let open = self.open.clone();
                            let fits = self.missing(was, is, at).is_empty();
                            self.open = open;
                            fits
                        };
                        if !all.iter().any(fits) {
                            missing.push(format!("{at}: {was}"));
                        }
                    }
                }
                ("enum" | "required", Value::Array(was), Value::Array(is)) => {
                    let gone = was.iter().filter(|was| !is.contains(was));
                    missing.extend(gone.map(|gone| format!("{at}: {key} {gone}")));
                }
                (_, Value::Object(_), Value::Object(_)) => {
                    missing.extend(self.missing(was, is, &format!("{at}[]")));
                }
                _ if was == is => {}
                _ => missing.push(format!("{at}: {key} {was} is {is}")),
            }
        }
        missing
    }
}

fn definition<'a>(schema: &'a Value, reference: &str) -> &'a Value {
    schema.pointer(reference.trim_start_matches('#')).unwrap()
}

/// What consumers of any document of the old schema would miss.
fn losses(old: &Value, new: &Value) -> Vec<String> {
    let name = |it: &Value| it["$ref"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let documents = old["anyOf"].as_array().unwrap().iter().map(name);
    let mut compared = Compared { old, new, open: BTreeSet::new() };
    let of = |name: String| compared.missing(&old["$defs"][&name], &new["$defs"][&name], &name);
    documents.flat_map(of).collect()
}

#[test]
fn each_field_and_value_of_a_released_schema_is_still_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schemas");
    let own = concat!(env!("CARGO_PKG_VERSION"), ".json");
    assert!(folder.join(own).is_file(), "no {own}: CONTRIBUTING.md, A release");
    let (now, _) = schema();
    for file in std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let released: Value = serde_json::from_str(&text).unwrap();
        let losses = losses(&released, &now);
        // The title has the number.
        let is_other = released["title"] != now["title"];
        assert!(is_other || losses.is_empty(), "{}: {losses:#?}", file.display());
    }
}

#[test]
fn what_is_added_is_no_loss_and_what_is_changed_is_one() {
    let of = |fields: Value, kind: Value| {
        json!({
            "anyOf": [{ "$ref": "#/$defs/show" }],
            "$defs": {
                "show": { "type": "object", "properties": fields, "required": ["rows"] },
                "Kind": kind,
            },
        })
    };
    let kind = |values: &[&str]| {
        let values = values.iter().map(|it| json!({ "const": it, "type": "string" }));
        json!({ "oneOf": values.collect::<Vec<_>>() })
    };
    let rows = |item: Value| json!({ "rows": { "type": "array", "items": item } });
    let old = of(rows(json!({ "$ref": "#/$defs/Kind" })), kind(&["tcp", "udp"]));
    let found = |new: &Value| losses(&old, new).len();
    assert_eq!(found(&old), 0);
    let mut more = rows(json!({ "$ref": "#/$defs/Kind" }));
    more["notes"] = json!({ "type": "string" });
    assert_eq!(found(&of(more, kind(&["udp", "tcp", "sctp"]))), 0);
    assert_eq!(found(&of(rows(json!({ "$ref": "#/$defs/Kind" })), kind(&["tcp"]))), 1);
    assert_eq!(found(&of(rows(json!({ "type": "string" })), kind(&["tcp", "udp"]))), 2);
    assert_eq!(found(&of(json!({}), kind(&["tcp", "udp"]))), 1);
    let mut optional = old.clone();
    optional["$defs"]["show"]["required"] = json!([]);
    assert_eq!(found(&optional), 1);
}
