//! Lines for inferno, without the parts of the picture that are too narrow to be drawn: a large profile has millions of
//! them, and inferno keeps each in memory.

use std::collections::HashSet;

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::Folded;
use crate::limits::MemoryLeft;
use crate::names::StringId;

/// Least width that inferno draws, in percent: its default of `min_width`.
const MIN_WIDTH_PERCENT: f64 = 0.01;

/// Returns whether a flamegraph shows a stack with these values: none is negative, and one is positive.
fn is_drawn(values: Comparison) -> bool {
    let Comparison { new, base, .. } = values;
    new >= 0 && base >= 0 && new.max(base) > 0
}

/// Memory of a function in a line besides its name, in bytes: inferno's boxes.
const BYTES_PER_FUNCTION: u64 = 8;

/// Lines `a;b;c VALUE`, or `a;b;c BASE VALUE` in a comparison.
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: String,
    ends: Vec<usize>,
}

impl Lines {
    /// Creates the lines of the drawn stacks; in a comparison, each has the base's value, too. A line ends with the
    /// first function that is too narrow to be drawn. Stacks that are equal up to this function become one line.
    /// Neighbours with the same caller whose boxes are too narrow even together also become one line, with the name of
    /// the first. An empty frame follows the last function, so that inferno sorts the line as it would sort the stacks.
    ///
    /// If two functions have one name once `;` is written as `:`, inferno draws them as one box, whose width is not
    /// known here, so all lines stay whole. Fails if the lines exceed the memory budget.
    pub(super) fn new(
        folded: &Folded<'_>,
        is_comparison: bool,
        memory_left: MemoryLeft,
    ) -> Result<Self> {
        let names = box_names(folded);
        let cuts = match has_duplicate_box_names(&names) {
            true => Cuts::none(folded),
            false => Cuts::new(folded),
        };
        Self::with_cuts(folded, names, is_comparison, &cuts, memory_left)
    }

    /// Creates the lines of the drawn stacks, cut as `cuts` says; in a comparison, each has the base's value, too.
    /// `names` has, by function id, the name of the function's boxes. In a comparison, two stacks are merged only if
    /// neither of them nor the merged line has the largest change of all, by which inferno scales the colours. Fails if
    /// the lines exceed the memory budget.
    fn with_cuts(
        folded: &Folded<'_>,
        names: Vec<String>,
        is_comparison: bool,
        cuts: &Cuts,
        memory_left: MemoryLeft,
    ) -> Result<Self> {
        let mut writer = LineWriter {
            lines: Self::default(),
            names,
            is_comparison,
            memory_left,
        };
        // The colours of a comparison depend on the largest change of a line.
        let change = |values: Comparison| values.value().unsigned_abs();
        let drawn = folded.stacks.values().filter(|values| is_drawn(*values));
        let max_change = drawn.map(change).max();
        let is_mergeable = |values: Comparison| !is_comparison || Some(change(values)) < max_change;
        let mut pending: Option<CutLine> = None;
        let mut depths = cuts.depths.iter();
        let mut stacks = folded.stacks.cursor();
        while let Some(stack) = stacks.next_stack() {
            let values = stack.values;
            if !is_drawn(values) {
                continue;
            }
            let depth = depths.next().map_or(usize::MAX, |depth| *depth as usize);
            if depth >= stack.functions.len() {
                if let Some(line) = pending.take() {
                    writer.push_line(&line.functions, true, line.values)?;
                }
                writer.push_line(stack.functions, false, values)?;
                continue;
            }
            let functions = &stack.functions[..=depth];
            if let Some(line) = &mut pending
                && line.accepts(functions, values, cuts.min_width)
            {
                let mut merged = line.values;
                merged += values;
                line.width = line.width.saturating_add(values.new);
                if [line.values, values, merged].into_iter().all(is_mergeable) {
                    line.values = merged;
                    continue;
                }
                // A line of its own, in the same box.
                writer.push_line(&line.functions, true, line.values)?;
                line.values = values;
                continue;
            }
            if let Some(line) = pending.replace(CutLine::new(functions, values)) {
                writer.push_line(&line.functions, true, line.values)?;
            }
        }
        if let Some(line) = pending {
            writer.push_line(&line.functions, true, line.values)?;
        }
        Ok(writer.lines)
    }

    /// Iterates over lines such as `main;load 8`, in a comparison with the base's value first: `main;load 5 8`.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.text[start..*end])
    }
}

/// Writes lines within the memory budget.
struct LineWriter {
    lines: Lines,
    /// By function: its name as a line has it.
    names: Vec<String>,
    is_comparison: bool,
    memory_left: MemoryLeft,
}

impl LineWriter {
    /// Appends a line with the names of `functions`, root first, and the value; in a comparison, the base's value is
    /// before it. With `is_cut`, an empty frame ends the stack. Fails if the lines exceed the memory budget.
    fn push_line(
        &mut self,
        functions: &[StringId],
        is_cut: bool,
        values: Comparison,
    ) -> Result<()> {
        let Lines { text, ends } = &mut self.lines;
        for (index, function) in functions.iter().enumerate() {
            if index > 0 {
                text.push(';');
            }
            let name = &self.names[function.0 as usize];
            self.memory_left
                .charge(name.len() as u64 + BYTES_PER_FUNCTION)?;
            text.push_str(name);
        }
        if is_cut {
            text.push(';');
        }
        if self.is_comparison {
            text.push_str(&format!(" {}", values.base));
        }
        text.push_str(&format!(" {}", values.new));
        ends.push(text.len());
        Ok(())
    }
}

/// Returns, by function id, the name of the function's boxes, in which a `;` is written as `:`.
fn box_names(folded: &Folded<'_>) -> Vec<String> {
    let names = folded.functions.iter();
    names.map(|name| name.replace(';', ":")).collect()
}

/// Returns whether two functions would get boxes of one name. Only names with a `:` can be equal, because [`box_names`]
/// may have changed them; the others are the functions' own names, which differ.
fn has_duplicate_box_names(names: &[String]) -> bool {
    let mut known = HashSet::new();
    let mut with_colon = names.iter().filter(|name| name.contains(':'));
    !with_colon.all(|name| known.insert(name.as_str()))
}

/// Cut stack, or several with the same caller that are too narrow together, as one line.
struct CutLine {
    /// Functions of the first stack, root first; the last one is too narrow.
    functions: Vec<StringId>,
    values: Comparison,
    /// Width of the box of the last function: of this line, and of those before it with the same functions.
    width: i64,
}

impl CutLine {
    /// Starts a line with one cut stack. `functions` are those up to the cut, root first; the last one is too narrow to
    /// be drawn.
    fn new(functions: &[StringId], values: Comparison) -> Self {
        Self {
            functions: functions.to_vec(),
            values,
            width: values.new,
        }
    }

    /// Returns whether a cut stack can be added to this line: it has the same functions, or it has the same callers and
    /// the box of the last function would still be narrower than `min_width`.
    fn accepts(&self, functions: &[StringId], values: Comparison, min_width: f64) -> bool {
        let callers = |functions: &[StringId]| functions.len() - 1;
        self.functions == functions
            || (self.functions[..callers(&self.functions)] == functions[..callers(functions)]
                && (self.width.saturating_add(values.new) as f64) < min_width)
    }
}

/// Ends of the drawn parts of stacks.
#[derive(Debug)]
struct Cuts {
    /// Number of functions of each drawn stack that are drawn, from the root; the next one is too narrow.
    depths: Vec<u32>,
    /// Least width of a drawn box, in the unit of the values.
    min_width: f64,
}

impl Cuts {
    /// Creates the cuts that leave all stacks of `folded` whole.
    fn none(folded: &Folded<'_>) -> Self {
        Self {
            depths: vec![u32::MAX; folded.stacks.len()],
            min_width: 0.0,
        }
    }

    /// Finds, for each drawn stack, the first box that is too narrow to be drawn, at which the stack is cut. The stacks
    /// are sorted by their functions, so those that share a box are neighbours.
    fn new(folded: &Folded<'_>) -> Self {
        let drawn = folded.stacks.values().filter(|values| is_drawn(*values));
        let total = drawn.map(|values| values.new).fold(0, i64::saturating_add);
        // Computed like inferno's `minwidth_time`, so that both round in the same way.
        let min_width = MIN_WIDTH_PERCENT / (100.0 / total as f64);
        let mut depths = Vec::with_capacity(folded.stacks.len());
        // For each box of the last stack, root first: the first stack in the box, and the box's width so far.
        let mut path: Vec<(usize, i64)> = Vec::new();
        let mut before: Vec<StringId> = Vec::new();
        let leave_boxes = |path: &mut Vec<(usize, i64)>, common: usize, depths: &mut Vec<u32>| {
            while path.len() > common
                && let Some((first, width)) = path.pop()
            {
                if (width as f64) < min_width {
                    depths[first..].fill(path.len() as u32);
                }
                if let Some((_, outer)) = path.last_mut() {
                    *outer = outer.saturating_add(width);
                }
            }
        };
        folded.stacks.for_each(|stack| {
            if !is_drawn(stack.values) {
                return;
            }
            let same = stack.functions.iter().zip(&before);
            let common = same.take_while(|(one, other)| one == other).count();
            leave_boxes(&mut path, common, &mut depths);
            path.resize(stack.functions.len(), (depths.len(), 0));
            if let Some((_, width)) = path.last_mut() {
                *width = width.saturating_add(stack.values.new);
            }
            depths.push(stack.functions.len() as u32);
            before.truncate(common);
            before.extend_from_slice(&stack.functions[common..]);
        });
        leave_boxes(&mut path, 0, &mut depths);
        Self { depths, min_width }
    }
}

#[cfg(test)]
mod tests {
    use inferno::flamegraph::from_lines;

    use super::super::common_flamegraph_options;
    use super::*;

    /// Stacks of functions whose names start with each other, of which most are too narrow.
    fn folded(base: i64) -> Folded<'static> {
        const NAMES: [&str; 6] = ["a", "a b", "a.cold", "a1", "b", "a::<b>"];
        let mut seed = 7_u64;
        let mut random = |limit: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) as usize % limit
        };
        let stacks = (0..40_000).map(|_| {
            let depth = 1 + random(9);
            let functions: Vec<_> = (0..depth)
                .map(|_| NAMES[random(NAMES.len() * 2).saturating_sub(NAMES.len())])
                .collect();
            let new = random(20) as i64;
            (functions, new * new, base * random(50) as i64)
        });
        Folded::from_stacks(stacks)
    }

    /// Callees of one function: a wide one in the middle of `count` narrow ones with the value 3.
    fn many_callees(count: usize, base: i64) -> Folded<'static> {
        let names: Vec<_> = (0..count).map(|index| format!("f{index:06}")).collect();
        let stacks = names.iter().enumerate().map(|(index, name)| {
            let new = if index == count / 2 { 70_000 } else { 3 };
            let callers = ["main", "[u8; 8]", name.as_str()];
            (callers.to_vec(), new, base * (index % 5) as i64)
        });
        Folded::from_stacks(stacks)
    }

    /// Titles of the boxes, and how far they are from the left in percent of the width, sorted.
    fn boxes(lines: &Lines) -> Vec<(String, f64)> {
        let mut svg = Vec::new();
        from_lines(&mut common_flamegraph_options(), lines.iter(), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let parts = svg.split("<title>").skip(1);
        let boxes = parts.map(|part| {
            let (title, rest) = part.split_once("</title>").unwrap();
            let (_, left) = rest.split_once("<rect x=\"").unwrap();
            let (left, _) = left.split_once('%').unwrap();
            (title.to_owned(), left.parse().unwrap())
        });
        let mut boxes: Vec<(String, f64)> = boxes.collect();
        boxes.sort_unstable_by(|one, other| one.partial_cmp(other).unwrap());
        boxes
    }

    #[test]
    fn boxes_are_the_same_without_what_is_too_narrow() {
        let check = |folded: Folded<'_>, is_comparison: bool, max_lines: usize| {
            let (names, left) = (box_names(&folded), MemoryLeft::default());
            let all = Cuts::none(&folded);
            let all = Lines::with_cuts(&folded, names, is_comparison, &all, left).unwrap();
            let few = Lines::new(&folded, is_comparison, left).unwrap();
            assert!(few.ends.len() <= max_lines, "{}", few.ends.len());
            let (all, few) = (boxes(&all), boxes(&few));
            assert_eq!(all.len(), few.len());
            for ((all, all_left), (few, few_left)) in all.iter().zip(&few) {
                assert_eq!(all, few);
                // At each depth, less than the width of what is left out.
                let shift = (all_left - few_left).abs();
                assert!(shift < 10.0 * MIN_WIDTH_PERCENT, "{all}: {shift}");
            }
        };
        for is_comparison in [false, true] {
            let base = i64::from(is_comparison);
            check(folded(base), is_comparison, 30_000);
            // 130,000 in all: four of the narrow ones are too narrow together.
            check(many_callees(20_000, base), is_comparison, 20_000 / 4 + 5);
        }
    }

    #[test]
    fn names_that_differ_in_a_separator_are_one_box() {
        let stacks = |other| [(vec!["main", "a;b"], 1, 0), (vec!["main", other], 9999, 0)];
        for (other, expected) in [("a:b", true), ("a::b", false), ("a", false)] {
            let folded = Folded::from_stacks(stacks(other).into_iter());
            assert_eq!(
                has_duplicate_box_names(&box_names(&folded)),
                expected,
                "{other}"
            );
        }
    }
}
