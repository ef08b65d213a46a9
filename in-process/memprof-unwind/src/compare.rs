//! Compares two walks of one stack.

/// Frames that one walker found, from the leaf on.
#[derive(Debug)]
pub(crate) struct WalkedStack<'a> {
    pub(crate) frames: &'a [usize],
    /// Whether the buffer was full, so that frames may be missing.
    pub(crate) is_truncated: bool,
}

/// Maximum number of the saved walker's own frames, which it reports below its caller.
const MAX_FRAMES_BELOW: usize = 8;

/// Compares memprof's walk with that of the allocator's own walker, the saved one. If one of the walks is truncated,
/// compares the frames before its end.
///
/// `None` if the walks differ, if memprof's is empty, or if its first frame is not among the first [`MAX_FRAMES_BELOW`]
/// of the saved walker. Otherwise returns the saved walker's innermost frame, which may be a frame of that walker
/// itself. Returns 0 if this frame is memprof's first one, too.
pub(crate) fn leaf_if_walks_agree(own: &WalkedStack<'_>, saved: &WalkedStack<'_>) -> Option<usize> {
    let first = own.frames.first()?;
    let mut near = saved.frames.iter().take(MAX_FRAMES_BELOW);
    let below = near.position(|frame| frame == first)?;
    let common = saved.frames.get(below..)?;
    let is_whole = own.frames.len() == common.len()
        || saved.is_truncated && own.frames.len() > common.len()
        || own.is_truncated && own.frames.len() < common.len();
    let mut pairs = own.frames.iter().zip(common);
    let is_equal = is_whole && pairs.all(|(own, saved)| is_same_frame(*own, *saved));
    let leaf = saved.frames.first().filter(|_| below > 0);
    is_equal.then(|| leaf.copied().unwrap_or(0))
}

/// Returns whether two frames of different walkers belong to the same code. For a function that a signal interrupted,
/// the saved walker reports the address of the interruption, and memprof's walker that address plus 1.
fn is_same_frame(own: usize, saved: usize) -> bool {
    own == saved || own == saved.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_agree_from_first_common_frame_on() {
        let check = |own: &[usize], saved: &[usize], saved_is_truncated, expected| {
            let own = WalkedStack {
                frames: own,
                is_truncated: false,
            };
            let saved = WalkedStack {
                frames: saved,
                is_truncated: saved_is_truncated,
            };
            assert_eq!(
                leaf_if_walks_agree(&own, &saved),
                expected,
                "{own:?} {saved:?}"
            );
        };
        check(&[1, 2, 3], &[9, 8, 1, 2, 3], false, Some(9));
        check(&[1, 2, 3], &[1, 2, 3], false, Some(0));
        check(&[10, 21, 31, 40], &[9, 10, 20, 30, 40], false, Some(9));
        check(&[10, 20], &[9, 10, 21], false, None);
        check(&[1, 2, 3], &[9, 8, 1, 2], true, Some(9));
        check(&[1, 2, 3], &[9, 8, 1, 2], false, None);
        check(&[1, 2], &[9, 8, 1, 2, 3], false, None);
        check(&[1, 2], &[9, 8, 1, 2, 3], true, None);
        check(&[1, 4, 3], &[9, 8, 1, 2, 3], false, None);
        check(&[7, 1, 2, 3], &[9, 8, 1, 2, 3], false, None);
        check(&[], &[9, 8], false, None);
    }

    #[test]
    fn truncated_walk_is_compared_up_to_its_end() {
        let own = WalkedStack {
            frames: &[1, 2],
            is_truncated: true,
        };
        let saved = WalkedStack {
            frames: &[9, 1, 2, 3],
            is_truncated: false,
        };
        assert_eq!(leaf_if_walks_agree(&own, &saved), Some(9));
    }
}
