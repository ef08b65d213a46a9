//! Lines for inferno, without the parts of the picture that are too narrow to be drawn: a large profile has millions of
//! them, and inferno keeps each in memory.

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
    /// Makes the lines of the drawn stacks; in a comparison, each has the base's value, too. A line ends at the first
    /// function that is too narrow to be drawn, and stacks that are equal up to there share it. An empty frame follows
    /// that function, so that inferno sorts the line as it would sort the stacks.
    ///
    /// If a function's name has a `;`, which is written as `:`, all lines stay whole. Fails if the lines exceed the
    /// memory budget.
    pub(super) fn new(
        folded: &Folded<'_>,
        is_comparison: bool,
        memory_left: MemoryLeft,
    ) -> Result<Self> {
        // Two functions with one name are one box.
        let has_equal_names = folded.functions.iter().any(|name| name.contains(';'));
        let depths = match has_equal_names {
            true => vec![u32::MAX; folded.stacks.len()],
            false => drawn_depths(folded),
        };
        Self::with_depths(folded, is_comparison, &depths, memory_left)
    }

    /// Lines of the drawn stacks; in a comparison, each has the base's value, too. `depths` has for each of them the
    /// number of functions before the one at which its line ends; a stack with no more functions stays whole. Adjacent
    /// lines that are equal then are merged. In a comparison, a merged line never has the largest change, by which
    /// colours are scaled.
    fn with_depths(
        folded: &Folded<'_>,
        is_comparison: bool,
        depths: &[u32],
        memory_left: MemoryLeft,
    ) -> Result<Self> {
        let names = (0..folded.functions.len() as u32).map(StringId);
        let mut writer = LineWriter {
            lines: Self::default(),
            names: names
                .map(|id| folded.functions.get(id).replace(';', ":"))
                .collect(),
            is_comparison,
            memory_left,
        };
        // The colours of a comparison depend on the largest change of a line.
        let change = |values: Comparison| values.value().unsigned_abs();
        let drawn = folded.stacks.values().filter(|values| is_drawn(*values));
        let max_change = drawn.map(change).max();
        let is_mergeable = |values: Comparison| !is_comparison || Some(change(values)) < max_change;
        // The cut line that was merged so far.
        let (mut pending, mut pending_values) = (Vec::new(), None);
        let mut depths = depths.iter();
        let mut stacks = folded.stacks.cursor();
        while let Some(stack) = stacks.next_stack() {
            let values = stack.values;
            if !is_drawn(values) {
                continue;
            }
            let depth = depths.next().map_or(usize::MAX, |depth| *depth as usize);
            let functions = stack.functions.get(..=depth).unwrap_or(stack.functions);
            let is_cut = depth < stack.functions.len();
            if is_cut
                && let Some(sum) = pending_values
                && pending == functions
                && is_mergeable(sum)
                && is_mergeable(values)
            {
                let mut merged = sum;
                merged += values;
                if is_mergeable(merged) {
                    pending_values = Some(merged);
                    continue;
                }
            }
            if let Some(sum) = pending_values.take() {
                writer.push(&pending, true, sum)?;
            }
            if is_cut {
                pending.clear();
                pending.extend_from_slice(functions);
                pending_values = Some(values);
            } else {
                writer.push(functions, false, values)?;
            }
        }
        if let Some(sum) = pending_values {
            writer.push(&pending, true, sum)?;
        }
        Ok(writer.lines)
    }

    /// Lines such as `main;load 8`, in a comparison with the base's value first: `main;load 5 8`.
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
    fn push(&mut self, functions: &[StringId], is_cut: bool, values: Comparison) -> Result<()> {
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

/// Number of functions of each drawn stack that are drawn, from the root; the next one is too narrow. The stacks are
/// sorted by their functions, so those of one box are neighbours.
fn drawn_depths(folded: &Folded<'_>) -> Vec<u32> {
    let drawn = folded.stacks.values().filter(|values| is_drawn(*values));
    let total = drawn.map(|values| values.new).fold(0, i64::saturating_add);
    let min_width = MIN_WIDTH_PERCENT / (100.0 / total as f64);
    let mut depths = Vec::new();
    // First stack of each box on the path to the last stack, and its width so far.
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
    depths
}

#[cfg(test)]
mod tests {
    use inferno::flamegraph::from_lines;

    use super::super::shared_options;
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

    #[test]
    fn boxes_are_the_same_without_what_is_too_narrow() {
        for is_comparison in [false, true] {
            let folded = folded(i64::from(is_comparison));
            let draw = |lines: &Lines| {
                let mut svg = Vec::new();
                from_lines(&mut shared_options(), lines.iter(), &mut svg).unwrap();
                String::from_utf8(svg).unwrap()
            };
            let all = vec![u32::MAX; folded.stacks.len()];
            let all = Lines::with_depths(&folded, is_comparison, &all, MemoryLeft::default());
            let all = all.unwrap();
            let few = Lines::new(&folded, is_comparison, MemoryLeft::default()).unwrap();
            assert!(few.ends.len() < all.ends.len());
            // A box may lie elsewhere by less than the width of those that are left out.
            let boxes = |svg: &str| {
                let parts = svg.split("<title>").skip(1);
                let titles = parts.filter_map(|part| part.split("</title>").next());
                let mut titles: Vec<_> = titles.map(str::to_owned).collect();
                titles.sort_unstable();
                titles
            };
            assert!(boxes(&draw(&few)) == boxes(&draw(&all)), "{is_comparison}");
        }
    }
}
