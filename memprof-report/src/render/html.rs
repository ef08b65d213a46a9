//! One page with flamegraph, table and search, which needs no other file and asks no network.
//!
//! The numbers travel as flat arrays in a JSON block: the call tree in preorder, each node with its
//! depth, and the table of functions. Names reach the document as text only.

use std::io::{self, Write};

use serde::Serialize;

use super::Subject;
use crate::error::{Error, Result};
use crate::names::StringId;
use crate::report::Options;
use crate::table::table;
use crate::tree::tree;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/viewer.css");
const SCRIPT: &str = include_str!("html/viewer.js");

#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    heading: String,
    base: Option<&'a str>,
    unit: &'static str,
    functions: Vec<&'a str>,
    tree: Tree,
    table: Table,
}

/// By node; `own` without callees. The bases are empty without a base.
#[derive(Default, Serialize)]
struct Tree {
    function: Vec<i64>,
    depth: Vec<u32>,
    own: Vec<i64>,
    own_base: Vec<i64>,
}

/// By row.
#[derive(Default, Serialize)]
struct Table {
    function: Vec<u32>,
    flat: Vec<i64>,
    cum: Vec<i64>,
    flat_base: Vec<i64>,
    cum_base: Vec<i64>,
}

pub(super) fn write(subject: &Subject<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let folded = subject.fold(options);
    let has_base = subject.base.is_some();
    let mut nodes = Tree::default();
    for node in tree(&folded) {
        nodes
            .function
            .push(node.function.map_or(-1, |function| i64::from(function.0)));
        nodes.depth.push(node.depth);
        nodes.own.push(node.own.new);
        if has_base {
            nodes.own_base.push(node.own.base);
        }
    }
    let mut rows = Table::default();
    for row in table(&folded, options.by_cum) {
        rows.function.push(row.function.0);
        rows.flat.push(row.flat.new);
        rows.cum.push(row.cum.new);
        if has_base {
            rows.flat_base.push(row.flat.base);
            rows.cum_base.push(row.cum.base);
        }
    }
    let data = Data {
        title: &subject.name,
        heading: subject.heading(options),
        base: subject.base_name.as_deref(),
        unit: options.sample_type.unit(),
        functions: (0..folded.functions.len() as u32)
            .map(|id| folded.functions.get(StringId(id)))
            .collect(),
        tree: nodes,
        table: rows,
    };
    let (before, rest) = split(PAGE, "/*style*/");
    let (between, rest) = split(rest, "/*data*/");
    let (behind, after) = split(rest, "/*script*/");
    write!(out, "{before}{STYLE}{between}")?;
    serde_json::to_writer(InScript(&mut *out), &data)
        .map_err(|error| Error::io("write the report")(error.into()))?;
    write!(out, "{behind}{SCRIPT}{after}")?;
    Ok(())
}

/// Around a mark that the page is known to have.
fn split<'p>(page: &'p str, mark: &str) -> (&'p str, &'p str) {
    page.split_once(mark).unwrap_or((page, ""))
}

/// Writes JSON so that no markup in it ends the script element: `<` stands only inside JSON strings.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = memchr::memchr3(b'<', b'>', b'&', rest) {
            self.0.write_all(&rest[..at])?;
            write!(self.0, "\\u{:04x}", rest[at])?;
            rest = &rest[at + 1..];
        }
        self.0.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
