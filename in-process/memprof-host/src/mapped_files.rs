//! Files that are mapped in this process, from `/proc/PID/maps`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the path of the file that is mapped at `address`. `None` if no file is. `maps` is the content of
/// /proc/PID/maps. The kernel follows a renamed file, and marks a removed one by ` (deleted)`.
pub(crate) fn mapped_file(maps: &[u8], address: usize) -> Option<&Path> {
    let mut mappings = maps.split(|&byte| byte == b'\n').filter_map(parse_mapping);
    let mapping = mappings.find(|mapping| mapping.addresses.contains(&address))?;
    Some(mapping.path)
}

/// Returns the files that are mapped as code: the program and its libraries. Each is listed once, in alphabetical
/// order. `maps` is the content of /proc/PID/maps.
pub(crate) fn files_mapped_as_code(maps: &[u8]) -> BTreeSet<&Path> {
    let mappings = maps.split(|&byte| byte == b'\n').filter_map(parse_mapping);
    let code = mappings.filter(|mapping| mapping.is_executable);
    code.map(|mapping| mapping.path).collect()
}

/// A mapping of a file.
struct FileMapping<'a> {
    addresses: Range<usize>,
    is_executable: bool,
    path: &'a Path,
}

/// Parses a line of /proc/PID/maps. `None` if the mapping is of no file, or if the line is malformed.
fn parse_mapping(line: &[u8]) -> Option<FileMapping<'_>> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (start, end) = str::from_utf8(fields.next()?).ok()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let rights = fields.next()?;
    // The path is the last field, and the only one with a slash.
    let path = line.iter().position(|&byte| byte == b'/')?;
    Some(FileMapping {
        addresses: number(start)?..number(end)?,
        is_executable: rights.contains(&b'x'),
        path: Path::new(OsStr::from_bytes(&line[path..])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"7f00-7f10 r-xp 00000000 00:2a 77 /opt/a b.so\n\
                          7f10-7f20 r-xp 00000000 00:2a 78 /opt/c.so (deleted)\n\
                          7f20-7f28 rw-p 00000000 00:00 0 \n\
                          7f28-7f30 r-xp 00000000 00:00 0 [vdso]\n\
                          7f30-7f40 r--p 00000000 00:2a 79 /opt/data\n\
                          7f40-7f50 r-xp 00008000 00:2a 77 /opt/a b.so\n";

    #[test]
    fn mapped_file_returns_path_at_address() {
        let check = |address, expected: Option<&str>| {
            assert_eq!(mapped_file(MAPS, address), expected.map(Path::new));
        };
        check(0x7eff, None);
        check(0x7f0f, Some("/opt/a b.so"));
        check(0x7f10, Some("/opt/c.so (deleted)"));
        check(0x7f20, None);
        check(0x7f28, None);
    }

    #[test]
    fn files_of_code_are_listed_once() {
        let files = files_mapped_as_code(MAPS).into_iter();
        let expected = ["/opt/a b.so", "/opt/c.so (deleted)"].map(Path::new);
        assert_eq!(files.collect::<Vec<_>>(), expected);
    }
}
