//! Reads names of JIT code from `jit-PID.dump`, which JIT compilers write for `perf inject`
//! (`tools/perf/Documentation/jitdump-specification.txt` of Linux). The compiler maps a page of it as code, so the
//! profile's mappings contain its path.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Instant;

use super::segment_tree::SegmentTree;
use crate::profile::Mapping;
use crate::stacks::AddressId;

/// Most bytes read of a file, without the code in it, which is skipped.
const MAX_BYTES: u64 = 1 << 30;

/// Most pieces of code that are stored.
const MAX_ENTRIES: usize = 1 << 20;

/// Records between two looks at the clock.
const RECORDS_PER_CHECK: u32 = 1 << 10;

/// Most bytes of names that are returned, of all addresses together.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Longest name, in bytes; longer ones are truncated.
const MAX_NAME_BYTES: u64 = 4 << 10;

/// `JiTD`, in the byte order of x86-64 and arm64.
const MAGIC: u32 = 0x4a69_5444;

/// Bytes of a file's head and of a record's.
const FILE_HEAD: usize = 40;
const RECORD_HEAD: usize = 16;

/// Kinds of records: code was loaded, code was moved. Both have fields that end with the code's address, its size
/// and its index.
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;

/// Returns the id of the process that wrote the mapped jitdump, from the file's name. `None` unless the mapping is
/// executable and of a file `jit-PID.dump`.
pub(super) fn writer_pid(mapping: &Mapping) -> Option<u32> {
    let name = mapping.file_name();
    let number = name.strip_prefix("jit-")?.strip_suffix(".dump")?;
    number.parse().ok().filter(|_| mapping.executable)
}

/// Returns the names of the JIT code at `addresses`, which ascend, with the ids of these addresses. The latest record
/// for an address wins. Empty if the file is no jitdump of the process `writer`. If the file is truncated or damaged,
/// exceeds a limit, or is not read by the deadline, only the part before counts. Fails if the file cannot be read.
pub(super) fn read_names(
    mut dump: impl Read + Seek,
    writer: u32,
    addresses: &[(u64, AddressId)],
    deadline: Instant,
) -> io::Result<Vec<(AddressId, String)>> {
    let Some(mut position) = seek_to_first_record(&mut dump, writer)? else {
        return Ok(Vec::new());
    };
    let mut latest = SegmentTree::new(addresses.len());
    // Positions of names in the file: of code that contains an address, and of all code by its index.
    let mut name_positions: Vec<u64> = Vec::new();
    let mut loaded: HashMap<u64, u64> = HashMap::new();
    let mut records: u32 = 0;
    while name_positions.len() < MAX_ENTRIES
        && loaded.len() < MAX_ENTRIES
        && position < MAX_BYTES
        && (!records.is_multiple_of(RECORDS_PER_CHECK) || Instant::now() <= deadline)
    {
        records = records.wrapping_add(1);
        let mut head = [0; RECORD_HEAD];
        if !was_read_whole(dump.read_exact(&mut head))? {
            break;
        }
        // A record's head has its kind at offset 0, and its length at 4.
        let (kind, length) = (read_u32(&head, 0), u64::from(read_u32(&head, 4)));
        let mut fields = [[0; 8]; 6];
        let read = match kind {
            CODE_LOAD => &mut fields[1..],
            CODE_MOVE => &mut fields[..],
            _ => &mut [],
        };
        let read = read.as_flattened_mut();
        let head_len = (RECORD_HEAD + read.len()) as u64;
        if length < head_len || !was_read_whole(dump.read_exact(read))? {
            break;
        }
        // Other records leave zeros, a range without addresses.
        let [.., start, size, index] = fields.map(u64::from_le_bytes);
        if kind == CODE_LOAD {
            loaded.insert(index, position + head_len);
        }
        let first = addresses.partition_point(|&(address, _)| address < start);
        let count = addresses[first..].partition_point(|&(address, _)| address - start < size);
        if let Some(name) = loaded.get(&index).filter(|_| count > 0) {
            // The latest record for an address wins: code is moved, and its memory reused.
            latest.insert(first..first + count, Reverse(name_positions.len()));
            name_positions.push(*name);
        }
        dump.seek_relative((length - head_len) as i64)?;
        position += length;
    }
    let best = addresses.iter().zip(latest.best_candidates());
    let named = best.filter_map(|(&(_, id), best)| Some((id, name_positions[best?.0])));
    let mut found = Vec::new();
    let mut kept_bytes = 0;
    for (id, position) in named {
        if kept_bytes >= MAX_KEPT_BYTES || Instant::now() > deadline {
            break;
        }
        let name = read_text(&mut dump, position)?;
        kept_bytes += name.len();
        found.push((id, name));
    }
    Ok(found)
}

/// Seeks to the first record and returns its position in bytes. `None` if the file is truncated, or is no jitdump of
/// the process `writer`.
fn seek_to_first_record(dump: &mut (impl Read + Seek), writer: u32) -> io::Result<Option<u64>> {
    let mut head = [0; FILE_HEAD];
    let is_read = was_read_whole(dump.read_exact(&mut head))?;
    // The process id is at offset 20 of the head, its length at 8.
    if !is_read || read_u32(&head, 0) != MAGIC || read_u32(&head, 20) != writer {
        return Ok(None);
    }
    // A later version may have a longer head.
    let length = u64::from(read_u32(&head, 8)).max(FILE_HEAD as u64);
    dump.seek(SeekFrom::Start(length)).map(Some)
}

/// Reads the text at `position`, up to its NUL or `MAX_NAME_BYTES`. Invalid UTF-8 is replaced.
fn read_text(dump: &mut (impl Read + Seek), position: u64) -> io::Result<String> {
    dump.seek(SeekFrom::Start(position))?;
    let mut bytes = Vec::new();
    dump.by_ref().take(MAX_NAME_BYTES).read_to_end(&mut bytes)?;
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Returns the four bytes at `offset` as a little-endian number. Panics if `bytes` is too short.
fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(number)
}

/// Returns whether a read found all bytes. An early end of the file is no error, but false: a compiler that is still
/// writing leaves an incomplete record at the end.
fn was_read_whole(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Instant;

    use super::super::symbol_budget::TIME_LIMIT;
    use super::read_names;
    use crate::stacks::AddressId;

    const WRITER: u32 = 77;

    fn head() -> Vec<u8> {
        let numbers = [super::MAGIC, 1, 48, 62, 0, WRITER, 0, 0, 0, 0, 0, 0];
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    fn record(kind: u32, fields: &[u64], rest: &[u8]) -> Vec<u8> {
        let length = super::RECORD_HEAD + 8 * fields.len() + rest.len();
        let head = [kind, length as u32, 0, 0];
        let head = head.iter().flat_map(|number| number.to_le_bytes());
        let fields = fields.iter().flat_map(|field| field.to_le_bytes());
        head.chain(fields).chain(rest.iter().copied()).collect()
    }

    fn load(start: u64, size: u64, index: u64, name: &str) -> Vec<u8> {
        record(
            0,
            &[0, start, start, size, index],
            &[name.as_bytes(), b"\0code"].concat(),
        )
    }

    fn deadline() -> Instant {
        Instant::now() + TIME_LIMIT
    }

    /// Compares the names found for fixed addresses.
    fn check(dump: &[u8], expected: &[(u64, &str)]) {
        let addresses = [0xfff, 0x1000, 0x101f, 0x1020, 0x2000, 0x2fff];
        let ids: Vec<_> = addresses.into_iter().zip((0..).map(AddressId)).collect();
        let found = read_names(Cursor::new(dump), WRITER, &ids, deadline());
        let found = found.expect("it can be read");
        let found = found
            .iter()
            .map(|(id, name)| (addresses[id.0 as usize], name.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn latest_code_at_address_names_it() {
        let moved = record(1, &[0, 0x2000, 0x7000, 0x2000, 0x10, 2], &[]);
        let dump = [
            head(),
            load(0x1000, 0x10, 1, "old"),
            record(2, &[0x1000, 0], b"debug"),
            load(0x1000, 0x20, 1, "JS:~leak /srv/a.js:1:1"),
            load(0x7000, 0x10, 2, "py::go:/srv/a.py"),
            moved,
            record(1, &[0, 0, 0, 0x2fff, 1, 99], &[]),
        ]
        .concat();
        let leak = "JS:~leak /srv/a.js:1:1";
        let all = [(0x1000, leak), (0x101f, leak), (0x2000, "py::go:/srv/a.py")];
        check(&dump, &all);
        // A compiler is writing a record.
        check(&dump[..dump.len() - 70], &all[..2]);
        let cut: Vec<usize> = (0..dump.len()).collect();
        for length in cut {
            let addresses = [(0x1000, AddressId(0))];
            let part = Cursor::new(&dump[..length]);
            let found = read_names(part, WRITER, &addresses, deadline());
            assert!(found.is_ok(), "{length} bytes");
        }
    }

    #[test]
    fn long_name_of_many_addresses_is_limited() {
        const ADDRESSES: u32 = 20_000;
        let long = "x".repeat(5000);
        let dump = [head(), load(0, ADDRESSES.into(), 1, &long)].concat();
        let addresses: Vec<_> = (0..ADDRESSES)
            .map(|id| (id.into(), AddressId(id)))
            .collect();
        let found = read_names(Cursor::new(dump), WRITER, &addresses, deadline()).unwrap();
        let expected = super::MAX_KEPT_BYTES / super::MAX_NAME_BYTES as usize;
        assert_eq!(found.len(), expected);
    }

    #[test]
    fn file_that_is_no_jitdump_of_process_names_nothing() {
        let code = load(0x1000, 0x20, 1, "leak");
        let mut other = [head(), code.clone()].concat();
        other[20] += 1;
        check(&other, &[]);
        check(&code, &[]);
        check(&[], &[]);
        // Records that declare to be shorter than their head, or longer than the file.
        for length in [0_u32, 15, 55, u32::MAX] {
            let mut dump = [head(), code.clone(), code.clone()].concat();
            let second = dump.len() - code.len();
            dump[second + 4..second + 8].copy_from_slice(&length.to_le_bytes());
            check(&dump, &[(0x1000, "leak"), (0x101f, "leak")]);
        }
        // A head that ends after the file.
        let mut long = [head(), code].concat();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        check(&long, &[]);
    }
}
