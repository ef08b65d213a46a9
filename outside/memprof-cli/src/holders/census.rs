//! `memprof holders --census`: the objects of a Python process by type.

use memprof_leaks::{AnalysisOptions, Census, take_census};
use memprof_report::{Cells, Column, Outline};
use serde::Serialize;

use super::HoldersArgs;
use crate::analysis_summary::{AnalysisSummary, analyze};
use crate::exit::Outcome;
use crate::process_names::describe_process;
use crate::quantities::format_size;
use crate::result_output::{MAX_ROWS, ResultOutput};

/// Notes of the page.
const LIMITS: [&str; 2] = [
    "An object's bytes are those of sys.getsizeof(): a dict's, list's or set's table counts with it, its elements do not.",
    "Objects of static types, and constants of the interpreter, are in no row: they are variables of its file.",
];

/// Output of `memprof holders --census --json`.
#[derive(Serialize)]
struct CensusOutput<'a> {
    status: &'static str,
    text: String,
    #[serde(flatten)]
    analysis: AnalysisSummary<'a>,
    /// Version of `CPython`, without its patch level.
    python: String,
    /// Number of objects of all types.
    python_objects: u64,
    /// Bytes of these objects.
    python_bytes: u64,
    /// Bytes of used blocks, and all bytes, of pymalloc's pools.
    pool_used_bytes: u64,
    pool_bytes: u64,
    types: Vec<TypeRow<'a>>,
}

/// All objects of a type.
#[derive(Serialize)]
struct TypeRow<'a> {
    name: &'a str,
    objects: u64,
    bytes: u64,
}

/// Runs `memprof holders --census`: counts the objects of a Python process by type, and writes them as a table.
pub(super) fn run(
    args: &HoldersArgs,
    options: AnalysisOptions,
    output: &ResultOutput<'_>,
) -> Outcome {
    let counted = analyze(args.pid, options, |options, progress| {
        take_census(args.pid, options, progress)
    })?;
    let rows = counted.types.iter().map(|row| TypeRow {
        name: &row.name,
        objects: row.objects,
        bytes: row.bytes,
    });
    let bytes = counted.types.iter().map(|row| row.bytes);
    let mut reply = CensusOutput {
        status: "ok",
        text: String::new(),
        analysis: AnalysisSummary::new(args.pid, &counted.report),
        python: format!("3.{}", counted.minor),
        python_objects: counted.types.iter().map(|row| row.objects).sum(),
        python_bytes: bytes.fold(0, u64::saturating_add),
        pool_used_bytes: counted.pool_used,
        pool_bytes: counted.pools,
        types: rows.collect(),
    };
    let head = summary_lines(&reply);
    reply.text = format_text(&reply, &head, &counted, args.top);
    output.write(&reply, &reply.text, || {
        let outline = type_outline(&reply.types);
        reply
            .analysis
            .build_page("holders --census", &head, &LIMITS, vec![outline])
    })?;
    Ok(0.into())
}

/// Returns the lines above the table: all objects together, and the use of pymalloc's pools.
fn summary_lines(reply: &CensusOutput<'_>) -> Vec<String> {
    let name = describe_process(reply.analysis.pid);
    let mut lines = vec![format!(
        "{name}: {} objects of Python {}, {} as sys.getsizeof() counts them",
        reply.python_objects,
        reply.python,
        format_size(reply.python_bytes)
    )];
    if reply.pool_bytes > 0 {
        lines.push(format!(
            "pymalloc's pools have {}, of which {} are in use",
            format_size(reply.pool_bytes),
            format_size(reply.pool_used_bytes)
        ));
    }
    lines
}

/// Formats the output for people: `head`, and a table of at most `top` types.
fn format_text(reply: &CensusOutput<'_>, head: &[String], census: &Census, top: usize) -> String {
    let mut lines = head.to_vec();
    lines.push(format!("\n{:>12} {:>10}  type", "bytes", "objects"));
    lines.extend(census.types.iter().take(top).map(|row| {
        let bytes = format_size(row.bytes);
        format!("{bytes:>12} {:>10}  {}", row.objects, row.name)
    }));
    lines.extend(reply.analysis.closing_lines());
    lines.join("\n")
}

/// Builds the page's table with a row for each type, up to [`MAX_ROWS`].
fn type_outline(rows: &[TypeRow<'_>]) -> Outline {
    let rows = &rows[..rows.len().min(MAX_ROWS)];
    let column = |title, help, cells| Column {
        title,
        help,
        wide: false,
        cells,
    };
    let bytes = rows.iter().map(|row| Some(row.bytes));
    let objects = rows.iter().map(|row| Some(row.objects));
    let names = rows.iter().map(|row| row.name.to_owned());
    Outline {
        title: "Types",
        empty: "There are no objects.".to_owned(),
        depth: vec![0; rows.len()],
        columns: vec![
            column(
                "Bytes",
                "As sys.getsizeof() counts them",
                Cells::Bytes(bytes.collect()),
            ),
            column("Objects", "In use", Cells::Count(objects.collect())),
            column("Type", "Type of the objects", Cells::Name(names.collect())),
        ],
    }
}
