//! Lines of a stack in a text.

use std::fmt::Display;

/// Frames shown, from the leaf.
const MAX_SHOWN_FRAMES: usize = 8;

/// Formats the first [`MAX_SHOWN_FRAMES`] frames of a stack, leaf first, and a line with the number of the other
/// callers.
pub(crate) fn format_frames(stack: &[impl Display]) -> impl Iterator<Item = String> {
    let more = stack.len().saturating_sub(MAX_SHOWN_FRAMES);
    let more = (more > 0).then(|| format!("    ... {more} callers"));
    let shown = stack.iter().take(MAX_SHOWN_FRAMES);
    let shown = shown.map(|frame| format!("    {frame}"));
    shown.chain(more)
}
