//! Two walks of one stack.

/// What a walker found, from the leaf on.
#[derive(Debug)]
pub(crate) struct WalkedStack<'a> {
    pub(crate) frames: &'a [usize],
    /// There was no room for more.
    pub(crate) is_cut: bool,
}

/// The saved walker has no more frames of its own, below the one that called it.
const MOST_BELOW: usize = 8;

/// The frame that the saved walker puts below ours, or 0, where both walks tell the same
/// otherwise.
pub(crate) fn common_leaf(ours: &WalkedStack<'_>, theirs: &WalkedStack<'_>) -> Option<usize> {
    let first = ours.frames.first()?;
    let mut near = theirs.frames.iter().take(MOST_BELOW);
    let below = near.position(|frame| frame == first)?;
    let same = theirs.frames.get(below..)?;
    let is_same = ours.frames == same
        || theirs.is_cut && ours.frames.starts_with(same)
        || ours.is_cut && same.starts_with(ours.frames);
    let leaf = theirs.frames.first().filter(|_| below > 0);
    is_same.then(|| leaf.copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_the_same_from_the_first_common_frame_on() {
        let check = |ours: &[usize], theirs: &[usize], theirs_is_cut, expected| {
            let ours = WalkedStack {
                frames: ours,
                is_cut: false,
            };
            let theirs = WalkedStack {
                frames: theirs,
                is_cut: theirs_is_cut,
            };
            assert_eq!(common_leaf(&ours, &theirs), expected, "{ours:?} {theirs:?}");
        };
        check(&[1, 2, 3], &[9, 8, 1, 2, 3], false, Some(9));
        check(&[1, 2, 3], &[1, 2, 3], false, Some(0));
        check(&[1, 2, 3], &[9, 8, 1, 2], true, Some(9));
        check(&[1, 2, 3], &[9, 8, 1, 2], false, None);
        check(&[1, 2], &[9, 8, 1, 2, 3], false, None);
        check(&[1, 2], &[9, 8, 1, 2, 3], true, None);
        check(&[1, 4, 3], &[9, 8, 1, 2, 3], false, None);
        check(&[7, 1, 2, 3], &[9, 8, 1, 2, 3], false, None);
        check(&[], &[9, 8], false, None);
    }

    #[test]
    fn a_walk_without_room_for_more_is_compared_as_far_as_it_goes() {
        let ours = WalkedStack {
            frames: &[1, 2],
            is_cut: true,
        };
        let theirs = WalkedStack {
            frames: &[9, 1, 2, 3],
            is_cut: false,
        };
        assert_eq!(common_leaf(&ours, &theirs), Some(9));
    }
}
