//! A self-contained page with outlines: nested rows in tables that can be sorted and searched. It uses no other
//! file and no network.

use std::io::Write;
use std::sync::LazyLock;

use serde::Serialize;

use super::{content_security_policy, join_modules, write_page};
use crate::error::{Error, Result};

/// Modules of the page in the order of their imports, the one that starts it last.
static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    join_modules(&[
        include_str!("format.js"),
        include_str!("profile.js"),
        include_str!("rows.js"),
        include_str!("outline.js"),
        include_str!("outlines.js"),
    ])
});

/// Content of a page with outlines. All of it is shown as text, never as markup.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutlinePage {
    /// Title of the page, and its first line.
    pub title: String,
    /// Result in one sentence.
    pub heading: String,
    /// Facts about the analysis, such as its time; one paragraph each.
    pub facts: Vec<String>,
    /// Warnings, one paragraph each.
    pub notes: Vec<String>,
    /// Limits of the analysis, one sentence each.
    pub limits: Vec<String>,
    /// Tables, one of which is visible at a time.
    pub outlines: Vec<Outline>,
}

/// A table of nested rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outline {
    /// Title of its tab.
    pub title: &'static str,
    /// Text that is shown if it has no rows.
    pub empty: String,
    /// Nesting depth of each row, 0 for outermost ones. A row precedes the rows below it.
    pub depth: Vec<u32>,
    /// Columns, with a value for each row. The first one is the initial sort order, the last one has the names of
    /// the rows.
    pub columns: Vec<Column>,
}

/// Column of an outline.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Text of its head.
    pub title: &'static str,
    /// Explanation of its values, shown as the tooltip of the head.
    pub help: &'static str,
    /// Whether a narrow window hides it.
    pub wide: bool,
    /// Values by row.
    #[serde(flatten)]
    pub cells: Cells,
}

/// Values by row.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "values")]
pub enum Cells {
    /// Amounts of memory in bytes; empty for `None`.
    Bytes(Vec<Option<u64>>),
    /// Numbers; empty for `None`.
    Count(Vec<Option<u64>>),
    /// Short texts.
    Text(Vec<String>),
    /// Names of the rows.
    Name(Vec<String>),
}

impl OutlinePage {
    /// Writes the page as HTML.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        write_page(
            &content_security_policy(&SCRIPT),
            &SCRIPT,
            out,
            &mut |out| {
                serde_json::to_writer(out, self)
                    .map_err(|error| Error::failed_to("write the page")(error.into()))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_script;
    use super::*;

    #[test]
    fn joined_script_has_no_module_syntax() {
        check_script(&SCRIPT);
    }

    #[test]
    fn page_escapes_data_and_loads_nothing() {
        let name = "</script><img src=x onerror=alert(1)>";
        let page = OutlinePage {
            title: "leaks".to_owned(),
            outlines: vec![Outline {
                title: "Leaked",
                depth: vec![0, 1],
                columns: vec![
                    Column {
                        title: "Bytes",
                        help: "",
                        wide: false,
                        cells: Cells::Bytes(vec![Some(8), None]),
                    },
                    Column {
                        title: "Class",
                        help: "",
                        wide: false,
                        cells: Cells::Name(vec![name.to_owned(), "main".to_owned()]),
                    },
                ],
                ..Outline::default()
            }],
            ..OutlinePage::default()
        };
        let mut html = Vec::new();
        page.write(&mut html).expect("memory takes it");
        let html = String::from_utf8(html).expect("it is text");
        assert!(html.starts_with("<!doctype html>"));
        assert!(html.contains("content=\"default-src 'none'; style-src 'sha256-"));
        assert!(!html.contains(name) && !html.contains("https://"));
        let data = html
            .split_once("type=\"application/json\">")
            .expect("it has data")
            .1;
        let data = data.split_once("</script>").expect("it ends").0;
        let data: serde_json::Value = serde_json::from_str(data).expect("it is JSON");
        let columns = &data["outlines"][0]["columns"];
        assert_eq!(columns[1]["values"][0], name);
        assert_eq!(columns[0]["kind"], "bytes");
        assert_eq!(columns[0]["values"], serde_json::json!([8, null]));
    }
}
