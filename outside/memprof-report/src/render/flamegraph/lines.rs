//! Lines for inferno, without the parts of the picture that are too narrow to be drawn: a large profile has millions of
//! them, and inferno keeps each in memory.

use crate::comparison::Comparison;
use crate::fold::{Folded, FoldedStack};
use crate::names::StringId;

/// Least width that inferno draws, in percent: its default of `min_width`.
const MIN_WIDTH_PERCENT: f64 = 0.01;

/// Returns whether a flamegraph shows the stack: none of its values is negative, and one is positive.
pub(super) fn is_drawn(stack: &FoldedStack<'_>) -> bool {
    let Comparison { new, base, .. } = stack.values;
    new >= 0 && base >= 0 && new.max(base) > 0
}

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
    /// If a function's name has a `;`, which is written as `:`, all lines stay whole.
    pub(super) fn new(folded: &Folded, is_comparison: bool) -> Self {
        let stacks = || folded.stacks.iter().filter(is_drawn);
        // Two functions with one name are one box.
        let has_equal_names = folded.functions.iter().any(|name| name.contains(';'));
        let depths = match has_equal_names {
            true => vec![u32::MAX; folded.stacks.len()],
            false => drawn_depths(stacks),
        };
        Self::with_depths(folded, is_comparison, &depths)
    }

    /// Lines of the drawn stacks; in a comparison, each has the base's value, too. `depths` has for each stack the
    /// number of functions before the one at which its line ends; a stack with no more functions stays whole. Adjacent
    /// lines that are equal then are merged. In a comparison, a merged line never has the largest change, by which
    /// colours are scaled.
    fn with_depths(folded: &Folded, is_comparison: bool, depths: &[u32]) -> Self {
        let names: Vec<String> = (0..folded.functions.len() as u32)
            .map(|id| folded.functions.get(StringId(id)).replace(';', ":"))
            .collect();
        let stacks = || folded.stacks.iter().filter(is_drawn);
        // The colours of a comparison depend on the largest change of a line.
        let change = |values: Comparison| values.value().unsigned_abs();
        let max_change = stacks().map(|stack| change(stack.values)).max();
        let is_mergeable = |values: Comparison| !is_comparison || Some(change(values)) < max_change;
        let mut lines = Self::default();
        let mut pending: Option<(&[StringId], Comparison)> = None;
        for (stack, depth) in stacks().zip(depths) {
            let (values, depth) = (stack.values, *depth as usize);
            if depth >= stack.functions.len() {
                pending = lines.flush(pending, &names, is_comparison);
                lines.push(stack.functions, false, values, &names, is_comparison);
                continue;
            }
            let functions = &stack.functions[..=depth];
            if let Some((before, sum)) = pending
                && before == functions
                && is_mergeable(sum)
                && is_mergeable(values)
            {
                let mut merged = sum;
                merged += values;
                if is_mergeable(merged) {
                    pending = Some((functions, merged));
                    continue;
                }
            }
            lines.flush(pending, &names, is_comparison);
            pending = Some((functions, values));
        }
        lines.flush(pending, &names, is_comparison);
        lines
    }

    /// Lines such as `main;load 8`, in a comparison with the base's value first: `main;load 5 8`.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.text[start..*end])
    }

    /// Appends the line of `pending`, the stacks that were merged so far, unless it is `None`. Returns `None` always:
    /// no stacks are pending then.
    fn flush<'f>(
        &mut self,
        pending: Option<(&'f [StringId], Comparison)>,
        names: &[String],
        is_comparison: bool,
    ) -> Option<(&'f [StringId], Comparison)> {
        let (functions, values) = pending?;
        self.push(functions, true, values, names, is_comparison);
        None
    }

    /// Appends a line with the names of `functions`, which `names` has by id, and the value; in a comparison, the
    /// base's value is before it. With `is_cut`, an empty frame ends the stack.
    fn push(
        &mut self,
        functions: &[StringId],
        is_cut: bool,
        values: Comparison,
        names: &[String],
        is_comparison: bool,
    ) {
        for (index, function) in functions.iter().enumerate() {
            if index > 0 {
                self.text.push(';');
            }
            self.text.push_str(&names[function.0 as usize]);
        }
        if is_cut {
            self.text.push(';');
        }
        if is_comparison {
            self.text.push_str(&format!(" {}", values.base));
        }
        self.text.push_str(&format!(" {}", values.new));
        self.ends.push(self.text.len());
    }
}

/// Number of functions of each stack that are drawn, from the root; the next one is too narrow. The stacks must be
/// sorted by their functions, so that those of one box are neighbours.
fn drawn_depths<'f, S: Iterator<Item = FoldedStack<'f>>>(stacks: impl Fn() -> S) -> Vec<u32> {
    let values = stacks().map(|stack| stack.values.new);
    let total = values.fold(0, i64::saturating_add);
    let min_width = MIN_WIDTH_PERCENT / (100.0 / total as f64);
    let mut depths = Vec::new();
    // First stack of each box on the path to the last stack, and its width so far.
    let mut path: Vec<(usize, i64)> = Vec::new();
    let mut before: &[StringId] = &[];
    for stack in stacks().map(Some).chain([None]) {
        let functions = stack.map_or(&[][..], |stack| stack.functions);
        let same = functions.iter().zip(before);
        let common = same.take_while(|(one, other)| one == other).count();
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
        path.resize(functions.len(), (depths.len(), 0));
        if let (Some((_, width)), Some(stack)) = (path.last_mut(), stack) {
            *width = width.saturating_add(stack.values.new);
        }
        depths.push(functions.len() as u32);
        before = functions;
    }
    depths
}

#[cfg(test)]
mod tests {
    use inferno::flamegraph::from_lines;

    use super::super::shared_options;
    use super::*;

    /// Stacks of functions whose names start with each other, of which most are too narrow.
    fn folded(base: i64) -> Folded {
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
            let all = Lines::with_depths(&folded, is_comparison, &all);
            let few = Lines::new(&folded, is_comparison);
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
