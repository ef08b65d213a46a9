//! Validates JSON against a schema, as far as the schemas of replies need it. Refuses a field that the schema does not
//! describe.

use serde_json::Value;

/// Validates `value`. `types` are the definitions that the schema refers to, by name.
///
/// # Errors
/// A description of the first difference between `value` and the schema.
pub(crate) fn check(value: &Value, schema: &Value, types: &Value) -> Result<(), String> {
    let schema = resolve(schema, types);
    let parts = schema["anyOf"].as_array();
    if let (None, Some(parts)) = (schema.get("type"), parts) {
        let mut valid = parts
            .iter()
            .filter_map(|part| check(value, part, types).ok());
        return valid
            .next()
            .ok_or_else(|| format!("{value} is none of {schema}"));
    }
    if let Some(words) = schema["enum"].as_array() {
        let is_listed = words.contains(value);
        return is_listed
            .then_some(())
            .ok_or_else(|| format!("{value} is none of {words:?}"));
    }
    let kinds: Vec<&Value> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().collect(),
        Value::Null => return Ok(()),
        kind => vec![kind],
    };
    if !kinds.iter().any(|kind| *kind == kind_of(value)) {
        return Err(format!("{value} is no {kinds:?}"));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check(item, &schema["items"], types)),
        Value::Object(object) => {
            let required = schema["required"].as_array().into_iter().flatten();
            for name in required.filter_map(Value::as_str) {
                object
                    .get(name)
                    .ok_or_else(|| format!("{name} is missing"))?;
            }
            let fields = fields(schema, types);
            object.iter().try_for_each(|(name, value)| {
                let described = fields.iter().find(|(known, _)| known == name);
                let (_, described) = described.ok_or_else(|| format!("{name} is not described"))?;
                check(value, described, types).map_err(|error| format!("{name}: {error}"))
            })
        }
        _ => Ok(()),
    }
}

/// Follows a `$ref` to a definition. Returns the schema itself if it has none.
fn resolve<'a>(schema: &'a Value, types: &'a Value) -> &'a Value {
    let name = schema["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next());
    name.map_or(schema, |name| &types[name])
}

/// Returns the fields of an object with their schemas, including those of flattened types.
fn fields<'a>(schema: &'a Value, types: &'a Value) -> Vec<(&'a str, &'a Value)> {
    let schema = resolve(schema, types);
    let own = schema["properties"].as_object().into_iter().flatten();
    let own = own.map(|(name, described)| (name.as_str(), described));
    let parts = schema["anyOf"].as_array().into_iter().flatten();
    own.chain(parts.flat_map(|part| fields(part, types)))
        .collect()
}

/// Returns the name of the value's type in JSON Schema.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
