//! Reads names of JIT code from `/tmp/perf-PID.map`, which JIT compilers write for `perf`
//! (`tools/perf/Documentation/jit-interface.txt` of Linux): lines of `START SIZE name` in hexadecimal.

use std::cmp::Reverse;
use std::io::{BufRead, BufReader, Read};

use super::segment_tree::SegmentTree;
use crate::stacks::AddressId;

/// Most bytes read of a map.
const MAX_BYTES: u64 = 256 << 20;

/// Most entries that are stored.
const MAX_ENTRIES: usize = 1 << 18;

/// Longest line, in bytes; longer ones are truncated.
const MAX_LINE_BYTES: usize = 4 << 10;

/// Returns the names of those `addresses`, ascending, that entries of the map contain. The latest entry for an address
/// wins: code is moved, and its memory reused. Reading ends silently at an error, and at the limits for bytes and
/// entries.
pub(super) fn read_names(
    map: impl Read,
    addresses: &[(u64, AddressId)],
) -> Vec<(AddressId, String)> {
    let mut map = BufReader::new(map.take(MAX_BYTES));
    let mut latest = SegmentTree::new(addresses.len());
    let mut names: Vec<String> = Vec::new();
    let mut line = Vec::new();
    while names.len() < MAX_ENTRIES && matches!(map.read_until(b'\n', &mut line), Ok(1..)) {
        if let Some((start, size, name)) = parse_entry(&line) {
            let first = addresses.partition_point(|&(address, _)| address < start);
            let count = addresses[first..].partition_point(|&(address, _)| address - start < size);
            if count > 0 {
                latest.insert(first..first + count, Reverse(names.len()));
                names.push(name.to_owned());
            }
        }
        line.clear();
    }
    let best = addresses.iter().zip(latest.best_candidates());
    best.filter_map(|(&(_, id), name)| Some((id, names[name?.0].clone())))
        .collect()
}

/// Parses a line `START SIZE NAME` with hexadecimal numbers. `None` if it is malformed. Bytes beyond `MAX_LINE_BYTES`
/// are ignored.
fn parse_entry(line: &[u8]) -> Option<(u64, u64, &str)> {
    let text = str::from_utf8(line.get(..line.len().min(MAX_LINE_BYTES))?).ok()?;
    let mut words = text.trim_end().splitn(3, ' ');
    let mut number = || {
        let word = words.next()?;
        u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    words.next().map(|name| (start, size, name))
}

#[cfg(test)]
mod tests {
    use super::read_names;
    use crate::stacks::AddressId;

    #[test]
    fn latest_entry_for_address_names_it() {
        let map = "1000 10 old\n1000 20 py::leak:/srv/app.py\n2000 zz broken\n3000\n0x4000 8 JS:~go /srv/a.js:1:1";
        let addresses: Vec<_> = [0xfff, 0x1000, 0x101f, 0x1020, 0x4007, 0x4008]
            .into_iter()
            .zip((0..).map(AddressId))
            .collect();
        let expected = [
            (AddressId(1), "py::leak:/srv/app.py".to_owned()),
            (AddressId(2), "py::leak:/srv/app.py".to_owned()),
            (AddressId(4), "JS:~go /srv/a.js:1:1".to_owned()),
        ];
        assert_eq!(read_names(map.as_bytes(), &addresses), expected);
    }
}
