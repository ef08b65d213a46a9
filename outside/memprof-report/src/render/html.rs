//! A self-contained page with flamegraph, table, tree and search, without network access.
//!
//! Values are flat arrays in a JSON block: the call tree in preorder, each node with its depth. Names enter the
//! document as text only. The viewer in `html/` is the one that a server's page loads as modules; here its modules
//! are joined.

mod outline;

use std::io::{self, Write};
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

pub use self::outline::{Cells, Column, Outline, OutlinePage};
use super::RenderInput;
use crate::ages::{Cohorts, MAX_COLUMNS};
use crate::error::{Error, Result};
use crate::fold::Folded;
use crate::names::StringId;
use crate::options::Options;
use crate::tree::{PreorderNode, check_tree_memory, preorder_nodes};

/// Template of the page, with marks for its parts.
const PAGE: &str = include_str!("html/page.html");

/// Files of the viewer, for pages that load it: `viewer.css`, and ES modules that import each other by these names.
/// `viewer.js` exports `showProfile`, which draws the output of [`Format::View`](super::Format).
pub const VIEWER: [(&str, &str); 9] = [
    ("viewer.css", include_str!("html/viewer.css")),
    ("format.js", include_str!("html/format.js")),
    ("profile.js", include_str!("html/profile.js")),
    ("rows.js", include_str!("html/rows.js")),
    ("flamegraph.js", include_str!("html/flamegraph.js")),
    ("survival.js", include_str!("html/survival.js")),
    ("table.js", include_str!("html/table.js")),
    ("tree.js", include_str!("html/tree.js")),
    ("viewer.js", include_str!("html/viewer.js")),
];

/// Script that starts the viewer in a page.
const START_SCRIPT: &str = include_str!("html/report.js");

/// All modules as one script, in the order of their imports.
static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let modules = VIEWER.iter().skip(1).map(|(_, module)| *module);
    join_modules(&modules.chain([START_SCRIPT]).collect::<Vec<_>>())
});

/// Joins ES modules into one script: removes the lines that start with `import`, and the word `export` at the start of
/// a line. The modules come in the order of their imports.
fn join_modules(modules: &[&str]) -> String {
    let lines = modules.iter().copied().flat_map(str::lines);
    let lines = lines.filter(|line| !line.starts_with("import "));
    lines.fold(String::new(), |script, line| {
        script + line.strip_prefix("export ").unwrap_or(line) + "\n"
    })
}

/// `Content-Security-Policy` of the page of [`Format::Html`](super::Format): allows only its own script, whatever
/// names the symbols have.
pub static POLICY: LazyLock<String> = LazyLock::new(|| content_security_policy(&SCRIPT));

/// Returns the Content-Security-Policy of a page that contains `script`: it allows only this script and the viewer's
/// style sheet, by their hashes.
fn content_security_policy(script: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'",
        hash(VIEWER[0].1),
        hash(script)
    )
}

/// Data of the viewer. `base` is null without a base, `ages` without allocation times; `labels` is missing if there
/// are none, `own_base` is empty without a base.
#[derive(Serialize)]
struct ViewerData<'a> {
    schema_version: u32,
    title: &'a str,
    heading: String,
    notes: Vec<&'a str>,
    base: Option<&'a str>,
    sample_type: String,
    unit: &'static str,
    by_cum: bool,
    /// The values are free bytes that live objects keep from being released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    functions: Vec<&'a str>,
    /// By function: the code origin, as its index in [`CodeOrigin`](crate::CodeOrigin); empty with `flat`.
    #[serde(rename = "whose")]
    origins: Vec<u8>,
    ages: Option<ViewerAges>,
    /// By key: values that the page offers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<(&'a str, Vec<&'a str>)>,
    tree: ViewerTree<'a>,
}

/// Text of a node in all columns, in bytes. A server may hold it in memory.
const OUTPUT_BYTES_PER_NODE: u64 = 40;

/// Most values per key that the page offers.
const MAX_VALUES: usize = 200;

/// Live bytes by age, in spans of `length` seconds from the youngest on: of all functions, and by function, where
/// only functions of the highest origin in a stack count. Half of a function's bytes are younger than `half`, in
/// seconds; 0 if it has none.
#[derive(Serialize)]
struct ViewerAges {
    length: u32,
    columns: u32,
    total: Vec<i64>,
    held: Vec<Vec<i64>>,
    half: Vec<u32>,
}

/// Nodes in preorder: `own` is without callees, the function of the root is -1. `samples` and `error`, the standard
/// error, are those of `own`, and empty if the profile has no counts.
#[derive(Serialize)]
struct ViewerTree<'f> {
    function: NodeColumn<'f, i64>,
    depth: NodeColumn<'f, u32>,
    own: NodeColumn<'f, i64>,
    own_base: NodeColumn<'f, i64>,
    samples: NodeColumn<'f, u64>,
    error: NodeColumn<'f, u64>,
}

/// A value of each node, computed as it is written: a large tree has more nodes than the input has bytes.
struct NodeColumn<'f, T> {
    /// `None` for a column without values.
    folded: Option<&'f Folded<'f>>,
    value: fn(PreorderNode) -> T,
}

impl<T: Serialize> Serialize for NodeColumn<'_, T> {
    /// Writes a list with one value for each node, or an empty one if `folded` is `None`.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let nodes = self.folded.into_iter().flat_map(preorder_nodes);
        serializer.collect_seq(nodes.map(self.value))
    }
}

impl<'f> ViewerTree<'f> {
    /// Returns the columns of the nodes in `folded`. The column of the base's values is empty without a base, and the
    /// columns of sample counts and errors are empty if nothing was sampled.
    fn new(folded: &'f Folded<'f>, has_base: bool) -> Self {
        let is_estimated = folded
            .stacks
            .values()
            .any(|values| values.confidence.samples > 0);
        let (base, estimate) = (has_base.then_some(folded), is_estimated.then_some(folded));
        let folded = Some(folded);
        Self {
            function: NodeColumn {
                folded,
                value: |node| node.function.map_or(-1, |function| i64::from(function.0)),
            },
            depth: NodeColumn {
                folded,
                value: |node| node.depth,
            },
            own: NodeColumn {
                folded,
                value: |node| node.own.new,
            },
            own_base: NodeColumn {
                folded: base,
                value: |node| node.own.base,
            },
            samples: NodeColumn {
                folded: estimate,
                value: |node| node.own.confidence.samples,
            },
            error: NodeColumn {
                folded: estimate,
                value: |node| node.own.confidence.error().round() as u64,
            },
        }
    }
}

/// Writes the viewer as one page with its data, which loads no other file.
pub(super) fn write_html(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    write_page(&POLICY, &SCRIPT, out, &mut |out| {
        write_view(input, options, out)
    })
}

/// Writes a page from the template `PAGE`: with `script`, and with the JSON that `data` writes, in which `<`, `>` and
/// `&` are escaped. `policy` is the page's Content-Security-Policy.
fn write_page(
    policy: &str,
    script: &str,
    out: &mut dyn Write,
    data: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let mut rest = PAGE;
    for (mark, text) in [
        ("/*policy*/", policy),
        ("/*style*/", VIEWER[0].1),
        ("/*data*/", ""),
        ("/*script*/", script),
    ] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        write!(out, "{before}{text}")?;
        // Only the mark of the data has no text.
        if text.is_empty() {
            data(&mut ScriptEscaper(&mut *out))?;
        }
        rest = after;
    }
    write!(out, "{rest}")?;
    Ok(())
}

/// Writes the viewer's data only, as JSON: the call tree, the functions and, without a base, their ages.
pub(super) fn write_view(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let ages = viewer_ages(input, options);
    let folded = input.fold_stacks(options);
    check_tree_memory(&folded, OUTPUT_BYTES_PER_NODE, input.memory_left())?;
    let view = ViewerData {
        schema_version: 1,
        title: &input.name,
        heading: input.heading(options),
        notes: input.notes(),
        base: input.base_name.as_deref(),
        sample_type: input.value_type(options.sample_type).name,
        unit: options.sample_type.unit(),
        by_cum: options.by_cum,
        pinned: input.profile.profile.is_pinned,
        functions: (0..folded.functions.len() as u32)
            .map(|id| folded.functions.get(StringId(id)))
            .collect(),
        origins: match options.origin_rules.flat {
            true => Vec::new(),
            false => folded.origins.iter().map(|origin| *origin as u8).collect(),
        },
        ages,
        labels: input.profile.profile.labels.values_by_key(MAX_VALUES),
        tree: ViewerTree::new(&folded, input.base.is_some()),
    };
    serde_json::to_writer(out, &view)
        .map_err(|error| Error::failed_to("write the report")(error.into()))
}

/// Returns the live bytes by age, of each function and of all together. `None` if the profile has no ages, or there is
/// a base.
fn viewer_ages(input: &RenderInput<'_>, options: &Options) -> Option<ViewerAges> {
    let ages = input
        .profile
        .profile
        .ages
        .filter(|_| input.base.is_none())?;
    let folded = input.fold_for_table(options);
    let cohorts = Cohorts::new(&folded, ages, MAX_COLUMNS, options.by_cum);
    let functions = 0..folded.functions.len();
    Some(ViewerAges {
        length: cohorts.cohort_seconds(),
        columns: MAX_COLUMNS,
        total: cohorts.total_bytes_by_age(),
        held: functions
            .clone()
            .map(|id| cohorts.bytes_by_age(id))
            .collect(),
        half: functions
            .map(|id| cohorts.median_age(id).unwrap_or(0))
            .collect(),
    })
}

/// Writes JSON so that no markup in it ends the script element: `<` occurs only inside JSON strings.
struct ScriptEscaper<W>(W);

impl<W: Write> Write for ScriptEscaper<W> {
    /// Writes `<`, `>` and `&` as JSON's `\u003c`, `\u003e` and `\u0026`, so that no string can end the script element.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(index) = memchr::memchr3(b'<', b'>', b'&', rest) {
            self.0.write_all(&rest[..index])?;
            write!(self.0, "\\u{:04x}", rest[index])?;
            rest = &rest[index + 1..];
        }
        self.0.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_script_has_no_module_syntax() {
        check_script(&SCRIPT);
    }

    /// Checks that no module syntax is left, and that no two modules declare the same name.
    pub(super) fn check_script(script: &str) {
        let mut names = std::collections::HashSet::new();
        let kinds = ["const ", "let ", "class ", "function "];
        for line in script.lines() {
            for rest in kinds.iter().filter_map(|kind| line.strip_prefix(kind)) {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                assert!(name.is_empty() || names.insert(name), "{line}");
            }
            assert!(!line.trim_start().starts_with("import"), "{line}");
            assert!(!line.trim_start().starts_with("export"), "{line}");
            assert!(!line.contains(".js'"), "{line}");
        }
    }

    #[test]
    fn markup_in_data_does_not_end_its_script() {
        let mut out = Vec::new();
        let mut data = ScriptEscaper(&mut out);
        data.write_all(b"[\"</script><!--\",\"a&b\"]")
            .expect("memory takes it");
        let text = String::from_utf8(out).expect("it is text");
        assert_eq!(text, r#"["\u003c/script\u003e\u003c!--","a\u0026b"]"#);
    }
}
