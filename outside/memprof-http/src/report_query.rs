//! Parameters of a query for a report.

use memprof_report::{
    Filter, Format, Granularity, Label, Options, OriginRules, SampleType, compile_pattern,
};
use serde::{Deserialize, Serialize};

use crate::problem::{Problem, Result};

/// Parameters of a query for a report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportQuery {
    pub(crate) format: Option<String>,
    /// Id of another kept dump: every value is the change since it.
    pub(crate) base: Option<String>,
    pub(crate) sample_type: Option<String>,
    pub(crate) focus: Option<String>,
    pub(crate) ignore: Option<String>,
    /// Splits functions into lines: on or off.
    pub(crate) lines: Option<String>,
    /// Most functions, in formats that list them.
    pub(crate) top: Option<u32>,
    /// Makes every function a row of its own: on or off.
    pub(crate) flat: Option<String>,
    /// Regular expression for the program's own functions.
    pub(crate) own: Option<String>,
    /// Regular expression for functions that are plumbing.
    pub(crate) plumbing: Option<String>,
    /// Includes only memory allocated under this label: KEY=VALUE.
    pub(crate) label: Option<String>,
    /// Label key whose values become the rows of text and JSON.
    pub(crate) by: Option<String>,
}

impl ReportQuery {
    /// Creates the query for a report in the format that is named `format`, with no other parameter.
    pub(crate) fn with_format(format: &str) -> Self {
        Self {
            format: Some(format.to_owned()),
            ..Self::default()
        }
    }

    /// Converts the parameters to the options of a report in `format`. Fails if a parameter is invalid.
    pub(crate) fn to_options(&self, format: Format) -> Result<Options> {
        let compile = |text: &Option<String>| text.as_deref().map(compile_pattern).transpose();
        Ok(Options {
            format,
            sample_type: parse_sample_type(self.sample_type.as_deref().unwrap_or("inuse_space"))?,
            granularity: match parse_on_off("lines", self.lines.as_deref())? {
                Some(true) => Granularity::Lines,
                Some(false) | None => Granularity::Functions,
            },
            top: self.top.map(|top| top as usize),
            filter: Filter {
                focus: compile(&self.focus)?,
                ignore: compile(&self.ignore)?,
            },
            origin_rules: self.parse_origin_rules()?,
            label: self.parse_label_filter()?,
            by: self.by.clone(),
            ..Options::default()
        })
    }

    /// Parses the parameter `label`, `KEY=VALUE`. `None` if it is absent. Fails if it has no `=`.
    fn parse_label_filter(&self) -> Result<Option<Label>> {
        let label = self.label.as_deref().map(str::parse).transpose();
        label.map_err(|problem: String| {
            Problem::invalid(problem).remedy("an example: label=route=/search")
        })
    }

    /// Parses the parameters that say which functions are the program's own and which are folded into their callers.
    /// Fails if `flat=on` comes with `own` or `plumbing`, or a pattern is invalid.
    fn parse_origin_rules(&self) -> Result<OriginRules> {
        let flat = parse_on_off("flat", self.flat.as_deref())?.unwrap_or(false);
        if flat && (self.own.is_some() || self.plumbing.is_some()) {
            return Err(Problem::contradiction(
                "flat=on folds no function, so own and plumbing have no effect",
            )
            .remedy("leave flat out, or the other two"));
        }
        let compile = |text: &Option<String>| text.as_deref().map(compile_pattern).transpose();
        Ok(OriginRules {
            flat,
            own: compile(&self.own)?,
            plumbing: compile(&self.plumbing)?,
        })
    }
}

/// Parses the value of the on/off parameter `name`; 1, true, yes and 0, false, no are valid too. `None` if the
/// parameter is absent. Fails for any other value.
fn parse_on_off(name: &str, value: Option<&str>) -> Result<Option<bool>> {
    match value {
        None => Ok(None),
        Some("on" | "1" | "true" | "yes") => Ok(Some(true)),
        Some("off" | "0" | "false" | "no") => Ok(Some(false)),
        Some(other) => Err(
            Problem::invalid(format!("unknown value {other:?} of {name}"))
                .remedy("valid values: on, off (or 1, 0, true, false, yes, no)"),
        ),
    }
}

/// Parses a sample type by its name, such as `inuse_space`. Fails if there is no such sample type.
fn parse_sample_type(name: &str) -> Result<SampleType> {
    let known = SampleType::ALL
        .into_iter()
        .find(|known| known.name() == name);
    known.ok_or_else(|| {
        let names = SampleType::ALL.map(SampleType::name).join(", ");
        Problem::invalid(format!("unknown sample_type {name:?}"))
            .remedy(format!("valid sample types: {names}"))
    })
}
