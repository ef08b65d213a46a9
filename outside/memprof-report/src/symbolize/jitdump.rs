//! Names of code that a program made while it ran: `jit-PID.dump`, which just-in-time compilers write for
//! `perf inject` (`tools/perf/Documentation/jitdump-specification.txt` of Linux). A page of it is mapped as code,
//! so that mappings tell where it lies.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use super::segment_tree::SegmentTree;
use crate::profile::Mapping;
use crate::stacks::AddressId;

/// The most that is read of a file, without the code in it, which is passed over.
const LARGEST: u64 = 1 << 30;

/// Pieces of code that are kept.
const MOST: usize = 1 << 20;

/// Longer names are cut off.
const LONGEST: u64 = 4 << 10;

/// `JiTD`, in the order of bytes of x86-64 and of arm64.
const MAGIC: u32 = 0x4a69_5444;

/// The bytes of a file's head, and those of a record's.
const FILE_HEAD: usize = 40;
const RECORD_HEAD: usize = 16;

/// What a record's head is followed by: code that is loaded, code that is moved. Both end with the code's address,
/// its size and its number.
const LOAD: u32 = 0;
const MOVE: u32 = 1;

/// The process that wrote what is mapped there, if that is a jitdump.
pub(super) fn writer(mapping: &Mapping) -> Option<u32> {
    let name = mapping.file_name();
    let number = name.strip_prefix("jit-")?.strip_suffix(".dump")?;
    number.parse().ok().filter(|_| mapping.executable)
}

/// The names of some addresses, which are sorted. Empty where another process than `writer` wrote the file; one
/// that is cut off or damaged names what stands before that.
pub(super) fn names(
    mut dump: impl Read + Seek,
    writer: u32,
    addresses: &[(u64, AddressId)],
) -> io::Result<Vec<(AddressId, String)>> {
    let Some(mut at) = first_record(&mut dump, writer)? else {
        return Ok(Vec::new());
    };
    let mut latest = SegmentTree::new(addresses.len());
    // Where the names of what was offered lie in the file; and those of all code, by its number.
    let mut offered: Vec<u64> = Vec::new();
    let mut loaded: HashMap<u64, u64> = HashMap::new();
    while offered.len() < MOST && loaded.len() < MOST && at < LARGEST {
        let mut head = [0; RECORD_HEAD];
        if !is_whole(dump.read_exact(&mut head))? {
            break;
        }
        let (kind, length) = (number(&head, 0), u64::from(number(&head, 4)));
        let mut fields = [[0; 8]; 6];
        let read = match kind {
            LOAD => &mut fields[1..],
            MOVE => &mut fields[..],
            _ => &mut [],
        };
        let read = read.as_flattened_mut();
        let behind = (RECORD_HEAD + read.len()) as u64;
        if length < behind || !is_whole(dump.read_exact(read))? {
            break;
        }
        // All other records leave zeros, which are around no address.
        let [.., start, size, index] = fields.map(u64::from_le_bytes);
        if kind == LOAD {
            loaded.insert(index, at + behind);
        }
        let first = addresses.partition_point(|&(address, _)| address < start);
        let count = addresses[first..].partition_point(|&(address, _)| address - start < size);
        if let Some(name) = loaded.get(&index).filter(|_| count > 0) {
            // Of two around one address the later one is right: code is moved, and its place used again.
            latest.insert(first..first + count, Reverse(offered.len()));
            offered.push(*name);
        }
        dump.seek_relative((length - behind) as i64)?;
        at += length;
    }
    let found = addresses.iter().zip(latest.best());
    let named = found.filter_map(|(&(_, id), best)| Some((id, offered[best?.0])));
    named
        .map(|(id, at)| Ok((id, text(&mut dump, at)?)))
        .collect()
}

/// Where the first record begins, and goes there; none where it is no jitdump of that process.
fn first_record(dump: &mut (impl Read + Seek), writer: u32) -> io::Result<Option<u64>> {
    let mut head = [0; FILE_HEAD];
    let is_read = is_whole(dump.read_exact(&mut head))?;
    if !is_read || number(&head, 0) != MAGIC || number(&head, 20) != writer {
        return Ok(None);
    }
    // A later version may have a longer head.
    let length = u64::from(number(&head, 8)).max(FILE_HEAD as u64);
    dump.seek(SeekFrom::Start(length)).map(Some)
}

/// The text that begins there, up to its NUL.
fn text(dump: &mut (impl Read + Seek), at: u64) -> io::Result<String> {
    dump.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    dump.by_ref().take(LONGEST).read_to_end(&mut bytes)?;
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The four bytes from `at` on.
fn number(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// A compiler that still writes leaves half a record at the end.
fn is_whole(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::names;
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

    /// By the first of each pair: whose name is found.
    fn check(dump: &[u8], expected: &[(u64, &str)]) {
        let addresses = [0xfff, 0x1000, 0x101f, 0x1020, 0x2000, 0x2fff];
        let ids: Vec<_> = addresses.into_iter().zip((0..).map(AddressId)).collect();
        let found = names(Cursor::new(dump), WRITER, &ids).expect("it can be read");
        let found = found
            .iter()
            .map(|(id, name)| (addresses[id.0 as usize], name.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_last_code_around_an_address_names_it() {
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
        // A compiler is in the middle of a record.
        check(&dump[..dump.len() - 70], &all[..2]);
        let cut: Vec<usize> = (0..dump.len()).collect();
        for length in cut {
            let addresses = [(0x1000, AddressId(0))];
            let found = names(Cursor::new(&dump[..length]), WRITER, &addresses);
            assert!(found.is_ok(), "{length} bytes");
        }
    }

    #[test]
    fn what_is_no_jitdump_of_the_process_names_nothing() {
        let code = load(0x1000, 0x20, 1, "leak");
        let mut other = [head(), code.clone()].concat();
        other[20] += 1;
        check(&other, &[]);
        check(&code, &[]);
        check(&[], &[]);
        // Records that claim to be shorter than their own head, or to be longer than the file.
        for length in [0_u32, 15, 55, u32::MAX] {
            let mut dump = [head(), code.clone(), code.clone()].concat();
            let second = dump.len() - code.len();
            dump[second + 4..second + 8].copy_from_slice(&length.to_le_bytes());
            check(&dump, &[(0x1000, "leak"), (0x101f, "leak")]);
        }
        // A head that ends behind the file.
        let mut long = [head(), code].concat();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        check(&long, &[]);
    }
}
