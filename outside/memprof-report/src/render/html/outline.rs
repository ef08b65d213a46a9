//! One page with outlines: rows that lie below each other, in tables that are sorted and searched. It needs no other
//! file and asks no network.

use std::io::Write;
use std::sync::LazyLock;

use serde::Serialize;

use super::{joined, policy_of, write_page};
use crate::error::{Error, Result};

/// The modules of the page in the order of their imports, its start last.
static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    joined(&[
        include_str!("format.js"),
        include_str!("profile.js"),
        include_str!("rows.js"),
        include_str!("outline.js"),
        include_str!("outlines.js"),
    ])
});

/// What a page of outlines says. All of it is shown as text, whatever it contains.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutlinePage {
    /// The title, and the first line.
    pub title: String,
    /// The result in a sentence.
    pub heading: String,
    /// How and when it was found, a paragraph each.
    pub facts: Vec<String>,
    /// What the reader has to know of it: warnings, a paragraph each.
    pub notes: Vec<String>,
    /// What the page cannot know, a sentence each.
    pub limits: Vec<String>,
    /// The tables, of which one is seen at a time.
    pub outlines: Vec<Outline>,
}

/// Rows that lie below each other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outline {
    /// The title of its tab.
    pub title: &'static str,
    /// What is said where it has no rows.
    pub empty: String,
    /// How deep each row lies, the outermost ones at 0. A row comes before those below it.
    pub depth: Vec<u32>,
    /// The columns, with a value for each row. The first one sorts the rows at first, and the last one has their
    /// names.
    pub columns: Vec<Column>,
}

/// A column of an outline.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Its head.
    pub title: &'static str,
    /// What its values are; shown where the pointer rests on the head.
    pub help: &'static str,
    /// A narrow window leaves it out.
    pub wide: bool,
    /// Its values.
    #[serde(flatten)]
    pub cells: Cells,
}

/// Values by row.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "values")]
pub enum Cells {
    /// Amounts of memory; nothing where there is none.
    Bytes(Vec<Option<u64>>),
    /// Numbers; nothing where there is none.
    Count(Vec<Option<u64>>),
    /// Short texts.
    Text(Vec<String>),
    /// What the rows are called.
    Name(Vec<String>),
}

impl OutlinePage {
    /// Writes the page as HTML.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        write_page(&policy_of(&SCRIPT), &SCRIPT, out, &mut |out| {
            serde_json::to_writer(out, self)
                .map_err(|error| Error::io("write the page")(error.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::is_one_script;
    use super::*;

    #[test]
    fn the_script_is_one() {
        is_one_script(&SCRIPT);
    }

    #[test]
    fn a_page_holds_its_data_as_text_and_asks_for_nothing() {
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
