//! Page of the result of `memprof leaks --prove`.

use memprof_report::{Cells, Column, Outline, OutlinePage};

use super::origin_output::OriginOutput;
use super::{LeakedGroup, ProveOutput, heading};
use crate::result_output::{MAX_ROWS, POOLS_NOTE};

const LIMITS: [&str; 5] = [
    POOLS_NOTE,
    "A stale pointer hides a leak.",
    "Nothing is told of a heap whose form memprof does not know.",
    "Pointers at odd addresses, and encoded ones, are not seen: what only they lead to is reported by mistake.",
    "Only objects that a profiler in the process sampled have a stack; a name with \"probably\" is that of sampled ones of the same size.",
];

/// Builds the HTML page: a table of the groups of leaked objects, up to [`MAX_ROWS`].
pub(super) fn build_page(reply: &ProveOutput<'_>) -> OutlinePage {
    let groups = &reply.leaked.by;
    let shown = &groups[..groups.len().min(MAX_ROWS)];
    let mut head = vec![heading(reply)];
    if groups.len() > shown.len() {
        head.push(format!(
            "The {MAX_ROWS} largest of {} groups are shown.",
            groups.len()
        ));
    }
    let command = "leaks --prove";
    reply.analysis.build_page(
        command,
        &head,
        &LIMITS,
        vec![leaked_outline(shown, &head[0])],
    )
}

/// Returns the name of a group's row: its class, else the function that allocated its objects, as far as that is known.
fn row_name(group: &LeakedGroup<'_>) -> String {
    match (group.class, group.function, &group.sampled_origin) {
        (Some(class), ..) => class.to_owned(),
        (None, Some(function), _) => format!("allocated by {function}"),
        (None, None, Some(origin)) => origin.text(),
        (None, None, None) => "no class, no stack".to_owned(),
    }
}

/// Builds the page's table with a row for each group of leaked objects. Below each row are the functions through which
/// the objects were allocated and, if the row has the name of a class, their probable origin. If there are no groups,
/// the page shows `heading` in place of the table.
fn leaked_outline(groups: &[LeakedGroup<'_>], heading: &str) -> Outline {
    let mut depth = Vec::new();
    let (mut bytes, mut objects, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut examples, mut names) = (Vec::new(), Vec::new());
    for group in groups {
        depth.push(0);
        bytes.push(Some(group.bytes));
        objects.push(Some(group.objects));
        sizes.push(Some(group.size));
        examples.push(group.example.clone());
        names.push(row_name(group));
        let origin = group.sampled_origin.as_ref();
        let origin = origin.filter(|_| group.class.is_some());
        let frames = group.stack.iter().flatten().rev();
        let below = frames.map(|function| (*function).to_owned());
        for name in below.chain(origin.map(OriginOutput::text)) {
            depth.push(1);
            bytes.push(None);
            objects.push(None);
            sizes.push(None);
            examples.push(String::new());
            names.push(name);
        }
    }
    let column = |title, help, wide, cells| Column {
        title,
        help,
        wide,
        cells,
    };
    Outline {
        title: "Leaked",
        empty: heading.to_owned(),
        depth,
        columns: vec![
            column(
                "Leaked",
                "In all objects of the row",
                false,
                Cells::Bytes(bytes),
            ),
            column("Objects", "How many", false, Cells::Count(objects)),
            column(
                "Of each",
                "The size of each object",
                true,
                Cells::Bytes(sizes),
            ),
            column(
                "One of them",
                "The address of one object",
                true,
                Cells::Text(examples),
            ),
            column(
                "Class or function",
                "The class in C++ or type in Python, else who allocated it; below it the stack, callers last",
                false,
                Cells::Name(names),
            ),
        ],
    }
}
