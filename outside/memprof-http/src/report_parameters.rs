//! Values of the API's parameters, for its `OpenAPI` document.

use serde_json::{Value, json};

use crate::file_format::FORMATS;

/// Values of a report's parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReportValue {
    OneOf(&'static [&'static str]),
    Count,
    Pattern,
    Text,
    Label,
}

impl ReportValue {
    const SWITCH: Self = Self::OneOf(&["on", "off", "1", "0", "true", "false", "yes", "no"]);

    /// Returns the JSON Schema of the parameter's values.
    pub(crate) fn schema(self) -> Value {
        match self {
            Self::OneOf(words) => json!({ "type": "string", "enum": words }),
            Self::Count => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            Self::Pattern => json!({ "type": "string", "format": "regex" }),
            Self::Text => json!({ "type": "string" }),
            Self::Label => json!({ "type": "string", "pattern": "^[^=]*=" }),
        }
    }
}

/// Parameters of a report of a kept dump, with their values and descriptions.
pub(crate) const REPORT_PARAMETERS: [(&str, ReportValue, &str); 12] = [
    ("format", ReportValue::OneOf(FORMATS), "Form of the report"),
    (
        "base",
        ReportValue::Text,
        "Another kept dump's id: every value is the change since then",
    ),
    (
        "sample_type",
        ReportValue::OneOf(&[
            "inuse_space",
            "inuse_objects",
            "alloc_space",
            "alloc_objects",
        ]),
        "What is counted",
    ),
    (
        "focus",
        ReportValue::Pattern,
        "Only stacks with a function that matches this regular expression",
    ),
    (
        "ignore",
        ReportValue::Pattern,
        "No stack with a function that matches this regular expression",
    ),
    (
        "lines",
        ReportValue::SWITCH,
        "on splits functions into lines",
    ),
    (
        "top",
        ReportValue::Count,
        "The most functions to show, in the formats text and json",
    ),
    (
        "flat",
        ReportValue::SWITCH,
        "on shows every function as a row and folds none into its caller; not with own and plumbing",
    ),
    (
        "own",
        ReportValue::Pattern,
        "Functions that match this regular expression are the program's own",
    ),
    (
        "plumbing",
        ReportValue::Pattern,
        "Functions that match this regular expression are folded into their callers",
    ),
    (
        "label",
        ReportValue::Label,
        "Only what was allocated under this label, KEY=VALUE; not with base",
    ),
    (
        "by",
        ReportValue::Text,
        "Who holds how much, by the values of this label, in the formats text and json; not with base",
    ),
];

/// Simplest forms of arguments that are free text, as regular expressions of JSON Schema (ECMA-262).
pub(crate) const FORMS: &[(&str, &str)] = &[
    ("for", DURATION),
    (
        "ages",
        "^(off|[1-9][0-9]{0,4}s|[1-9][0-9]{0,3}m|[1-9][0-9]?h)$",
    ),
    (
        "labels",
        // Printable characters but `%`, `,`, `:` and `=`; behind a colon, the index of an attribute up to 254. The
        // first key does not begin as a number does.
        r"^[!-$&-*/;<>-~][!-$&-+\--9;<>-~]{0,63}(:(25[0-4]|2[0-4][0-9]|1?[0-9]{1,2}))?(,[!-$&-+\--9;<>-~]{1,64}(:(25[0-4]|2[0-4][0-9]|1?[0-9]{1,2}))?){0,7}$",
    ),
    (
        "sample_interval",
        "^((1|2|4|8|16|32|64|128|256|512)KiB|(1|2|4|8|16)MiB)$",
    ),
    // No letter twice. J is the same as format=json, and contradicts format=text.
    ("opts", r"^(?!.*(.).*\1)[gmdablxeh]{0,9}$"),
];
const DURATION: &str = "^([1-9][0-9]{0,4}s|[1-9][0-9]{0,3}m|[1-9][0-9]?h|[1-7]d)$";

#[cfg(test)]
mod tests {
    use super::FORMATS;
    use crate::file_format::FileFormat;

    #[test]
    fn each_format_is_known() {
        for name in FORMATS {
            FileFormat::from_name(name).unwrap();
        }
    }
}
