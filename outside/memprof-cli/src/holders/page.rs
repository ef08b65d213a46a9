//! Page of the result of `memprof holders`.

use std::cmp::Reverse;

use memprof_leaks::{HolderGroup, Holding};
use memprof_report::{Cells, Column, Outline, OutlinePage};

use super::rows::{ClassRow, HolderRow, HolderStep, is_memprof_holder, step_for_group};
use super::{HoldersOutput, holder_step_text, summary_lines};
use crate::result_output::{MAX_ROWS, POOLS_NOTE};

const LIMITS: [&str; 4] = [
    POOLS_NOTE,
    "A stale pointer counts as a holder.",
    "Pointers at odd addresses, and encoded ones, are not seen.",
    "What a variable reaches is not shown below a stack, other memory or a register.",
];

/// Builds the HTML page. For an overview (`is_overview`), the page has a table of holders and one of classes, else one
/// of the selected objects.
pub(super) fn build_page(
    reply: &HoldersOutput<'_>,
    holding: &Holding,
    is_overview: bool,
) -> OutlinePage {
    let mut head = summary_lines(reply, holding);
    let outlines = match is_overview {
        false => vec![object_outline(&reply.holders)],
        true => {
            let groups = &holding.groups;
            let shown = largest_groups(groups);
            let holding = groups.iter().skip(1).filter(|group| group.held_objects > 0);
            let omitted = holding.count() - shown.len();
            if omitted > 0 {
                head.push(format!("{omitted} rows that hold less are not shown."));
            }
            vec![group_outline(groups, &shown), class_outline(&reply.classes)]
        }
    };
    reply
        .analysis
        .build_page("holders", &head, &LIMITS, outlines)
}

/// Returns the indices of the groups that hold most, up to [`MAX_ROWS`], the largest first. Each group's holder is
/// among them, because it holds at least as much and has a lower index.
fn largest_groups(groups: &[HolderGroup]) -> Vec<usize> {
    let mut shown: Vec<_> = (1..groups.len())
        .filter(|index| groups[*index].held_objects > 0)
        .collect();
    shown.sort_by_key(|index| (Reverse(groups[*index].held_bytes), *index));
    shown.truncate(MAX_ROWS);
    shown
}

/// Builds the page's table of the groups in `shown`: a row for each holder, and below it rows for the groups that it
/// holds. Leaves out memprof's own holders and all that these hold.
fn group_outline(groups: &[HolderGroup], shown: &[usize]) -> Outline {
    let mut below = vec![Vec::new(); groups.len()];
    // In reverse order, because the last element is popped first.
    for index in shown.iter().rev() {
        below[groups[*index].parent].push(*index);
    }
    let mut rows = OutlineBuilder::default();
    let roots = below[0]
        .iter()
        .filter(|index| !is_memprof_holder(&groups[**index].kind));
    let mut open: Vec<_> = roots.map(|index| (*index, 0)).collect();
    while let Some((index, depth)) = open.pop() {
        let group = &groups[index];
        rows.add_row(
            depth,
            group.held_bytes,
            group.held_objects,
            holder_step_text(&step_for_group(group)),
        );
        open.extend(below[index].iter().map(|within| (*within, depth + 1)));
    }
    rows.into_outline("Holders", "Holder and what it holds")
}

/// Builds the page's table with a row for each group of selected objects, and rows for their holders below it, the
/// nearest first.
fn object_outline(found: &[HolderRow]) -> Outline {
    let mut rows = OutlineBuilder::default();
    for row in found {
        let [object, holders @ ..] = &row.path[..] else {
            continue;
        };
        rows.add_row(0, row.bytes, row.objects, holder_step_text(object));
        let name = |holder: &HolderStep| format!("held by {}", holder_step_text(holder));
        holders
            .iter()
            .for_each(|holder| rows.add_row_without_amounts(1, name(holder)));
    }
    rows.into_outline("Objects", "Objects and what holds them, the nearest first")
}

/// Builds the page's table with a row for each class or size, up to [`MAX_ROWS`].
fn class_outline(classes: &[ClassRow]) -> Outline {
    let mut rows = OutlineBuilder::default();
    let shown = &classes[..classes.len().min(MAX_ROWS)];
    for class in shown {
        rows.add_row(0, class.held_bytes, class.objects, class.name.clone());
    }
    let own = shown.iter().map(|class| Some(class.bytes)).collect();
    let mut outline = rows.into_outline("Classes and sizes", "Class, type or size of the objects");
    let column = Column {
        title: "Of these",
        help: "In the objects themselves",
        wide: true,
        cells: Cells::Bytes(own),
    };
    outline.columns.insert(1, column);
    outline
}

/// Rows of an outline.
#[derive(Default)]
struct OutlineBuilder {
    depth: Vec<u32>,
    bytes: Vec<Option<u64>>,
    objects: Vec<Option<u64>>,
    names: Vec<String>,
}

impl OutlineBuilder {
    /// Adds a row at a nesting depth, 0 for outermost rows. Rows must be added after the row that they are below.
    fn add_row(&mut self, depth: u32, bytes: u64, objects: u64, name: String) {
        self.depth.push(depth);
        self.bytes.push(Some(bytes));
        self.objects.push(Some(objects));
        self.names.push(name);
    }

    /// Adds a row whose cells in the columns of amounts are empty.
    fn add_row_without_amounts(&mut self, depth: u32, name: String) {
        self.depth.push(depth);
        self.bytes.push(None);
        self.objects.push(None);
        self.names.push(name);
    }

    /// Builds the page's table from the rows. `names` is the tooltip of the column of names.
    fn into_outline(self, title: &'static str, names: &'static str) -> Outline {
        let column = |title, help, cells| Column {
            title,
            help,
            wide: false,
            cells,
        };
        Outline {
            title,
            empty: "Nothing is held.".to_owned(),
            depth: self.depth,
            columns: vec![
                column(
                    "Held",
                    "With what is held through them",
                    Cells::Bytes(self.bytes),
                ),
                column(
                    "Objects",
                    "With those that are held through them",
                    Cells::Count(self.objects),
                ),
                column("Name", names, Cells::Name(self.names)),
            ],
        }
    }
}
