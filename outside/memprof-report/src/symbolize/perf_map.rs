//! Reads names of JIT code from `/tmp/perf-PID.map`, which JIT compilers write for `perf`
//! (`tools/perf/Documentation/jit-interface.txt` of Linux): lines of `START SIZE name` in hexadecimal.

use std::cmp::Reverse;
use std::io::{self, BufRead, BufReader, Read};
use std::time::Instant;

use super::segment_tree::SegmentTree;
use crate::stacks::AddressId;

/// Most bytes read of a map.
const MAX_BYTES: u64 = 256 << 20;

/// Most entries that are stored.
const MAX_ENTRIES: usize = 1 << 18;

/// Most bytes of names that are kept, and that are returned for all addresses together.
const MAX_NAME_BYTES: usize = 64 << 20;

/// Lines between two looks at the clock.
const LINES_PER_CHECK: u32 = 1 << 12;

/// Longest line, in bytes; longer ones are truncated.
const MAX_LINE_BYTES: usize = 4 << 10;

/// Returns the names of the JIT code at `addresses`, which ascend, with the ids of these addresses. Leaves out
/// addresses that no entry of the map contains. The latest entry for an address wins: code is moved, and its memory
/// reused. Reading ends silently at an error, at the deadline, and at the limits for bytes and entries.
pub(super) fn read_names(
    map: impl Read,
    addresses: &[(u64, AddressId)],
    deadline: Instant,
) -> Vec<(AddressId, String)> {
    let mut map = BufReader::new(map.take(MAX_BYTES));
    let mut latest = SegmentTree::new(addresses.len());
    let mut names: Vec<String> = Vec::new();
    let mut kept_bytes = 0;
    let mut line = Vec::new();
    let mut lines: u32 = 0;
    while names.len() < MAX_ENTRIES
        && kept_bytes < MAX_NAME_BYTES
        && (!lines.is_multiple_of(LINES_PER_CHECK) || Instant::now() <= deadline)
        && read_line(&mut map, &mut line).is_ok_and(|has_line| has_line)
    {
        lines = lines.wrapping_add(1);
        if let Some((start, size, name)) = parse_entry(&line) {
            let first = addresses.partition_point(|&(address, _)| address < start);
            let count = addresses[first..].partition_point(|&(address, _)| address - start < size);
            if count > 0 {
                latest.insert(first..first + count, Reverse(names.len()));
                kept_bytes += name.len();
                names.push(name.to_owned());
            }
        }
    }
    let best = addresses.iter().zip(latest.best_candidates());
    let named = best.filter_map(|(&(_, id), name)| Some((id, &names[name?.0])));
    let mut returned_bytes = 0;
    // Many addresses may have one long name.
    let within_limit = named.take_while(|(_, name)| {
        returned_bytes += name.len();
        returned_bytes <= MAX_NAME_BYTES
    });
    within_limit.map(|(id, name)| (id, name.clone())).collect()
}

/// Reads the next line into `line`, without its newline. Skips the bytes of the line beyond [`MAX_LINE_BYTES`]. Returns
/// false at the end of the map.
fn read_line(map: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_line = false;
    loop {
        let bytes = map.fill_buf()?;
        if bytes.is_empty() {
            return Ok(has_line);
        }
        has_line = true;
        let end = memchr::memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE_BYTES - line.len())]);
        let used = part.len() + usize::from(end.is_some());
        map.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Parses a line `START SIZE NAME` with hexadecimal numbers. `None` if it is malformed.
fn parse_entry(line: &[u8]) -> Option<(u64, u64, &str)> {
    let text = str::from_utf8(line).ok()?;
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
    use std::time::Instant;

    use super::super::symbol_budget::TIME_LIMIT;
    use super::{MAX_LINE_BYTES, MAX_NAME_BYTES, read_line, read_names};
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
        let now = Instant::now();
        let check = |deadline, expected: &[_]| {
            assert_eq!(read_names(map.as_bytes(), &addresses, deadline), expected);
        };
        check(now + TIME_LIMIT, &expected);
        check(now, &[]);
    }

    #[test]
    fn long_name_of_many_addresses_is_limited() {
        const NAME_BYTES: usize = 4000;
        let map = format!("0 4e20 {}\n", "x".repeat(NAME_BYTES));
        let addresses: Vec<_> = (0..20_000).map(|id| (id.into(), AddressId(id))).collect();
        let deadline = Instant::now() + TIME_LIMIT;
        let found = read_names(map.as_bytes(), &addresses, deadline);
        assert_eq!(found.len(), MAX_NAME_BYTES / NAME_BYTES);
    }

    #[test]
    fn line_without_end_is_cut() {
        let endless = [&b"1000 10 "[..], &vec![b'x'; 1 << 20], b"\n2000 10 next"].concat();
        let (mut map, mut line) = (endless.as_slice(), Vec::new());
        assert!(read_line(&mut map, &mut line).unwrap());
        assert_eq!(line.len(), MAX_LINE_BYTES);
        assert!(line.capacity() <= 2 * MAX_LINE_BYTES);
        assert!(read_line(&mut map, &mut line).unwrap());
        assert_eq!(line, b"2000 10 next");
        assert!(!read_line(&mut map, &mut line).unwrap());
    }
}
