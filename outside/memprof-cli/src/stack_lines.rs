//! How a text shows a stack.

use std::fmt::Display;

/// The frames that are shown, from the leaf.
const FRAMES: usize = 8;

/// The lines of a stack, leaf first.
pub(crate) fn frames(stack: &[impl Display]) -> impl Iterator<Item = String> {
    let more = stack.len().saturating_sub(FRAMES);
    let more = (more > 0).then(|| format!("    ... {more} callers"));
    let shown = stack.iter().take(FRAMES);
    let shown = shown.map(|frame| format!("    {frame}"));
    shown.chain(more)
}
