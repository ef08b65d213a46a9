//! Sets of addresses or offsets, as sorted ranges.

use std::ops::Range;

/// Merges overlapping and adjacent ranges; returns them sorted by address.
pub(crate) fn merge_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Appends to `rest` the parts of `range` that are in none of `others`, which are sorted and do not overlap.
pub(crate) fn push_difference(
    range: Range<u64>,
    others: &[Range<u64>],
    rest: &mut Vec<Range<u64>>,
) {
    let mut start = range.start;
    let first = others.partition_point(|other| other.end <= start);
    for other in others[first..]
        .iter()
        .take_while(|other| other.start < range.end)
    {
        if other.start > start {
            rest.push(start..other.start);
        }
        start = start.max(other.end);
    }
    if start < range.end {
        rest.push(start..range.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtract_keeps_parts_between_others() {
        let check = |others: &[(u64, u64)], expected: &[(u64, u64)]| {
            let others: Vec<_> = others.iter().map(|(start, end)| *start..*end).collect();
            let mut rest = Vec::new();
            push_difference(10..20, &others, &mut rest);
            let rest: Vec<_> = rest
                .into_iter()
                .map(|range| (range.start, range.end))
                .collect();
            assert_eq!(rest, expected);
        };
        check(&[], &[(10, 20)]);
        let others = [(0, 10), (12, 14), (14, 15), (18, 30)];
        check(&others, &[(10, 12), (15, 18)]);
        check(&[(0, 30)], &[]);
        check(&[(10, 12), (20, 22)], &[(12, 20)]);
    }
}
