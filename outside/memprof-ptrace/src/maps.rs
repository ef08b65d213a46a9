//! Parser of /proc/PID/maps (proc(5)).

use std::ops::Range;

/// One line of the file: a mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Addresses of the mapping.
    pub range: Range<u64>,
    /// Permissions as in the file, e.g. `r-xp`: read, write, execute, then private or shared.
    pub access: [u8; 4],
    /// Offset of the mapping's start in its file, in bytes.
    pub offset: u64,
    /// Device of the file, as `major:minor` in hexadecimal digits.
    pub device: &'a [u8],
    /// Inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// Path of the file, a name such as `[heap]`, or empty. The kernel writes a line break as `\012` and appends `
    /// (deleted)` if the file was removed.
    pub path: &'a [u8],
}

impl<'m> Mapping<'m> {
    /// Returns whether the mapping may be executed.
    pub fn is_executable(&self) -> bool {
        self.access[2] == b'x'
    }

    /// Returns the last component of the path, without the suffix of a removed file.
    pub fn file_name(&self) -> &'m [u8] {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(self.path);
        let start = path.iter().rposition(|byte| *byte == b'/');
        start.map_or(path, |slash| &path[slash + 1..])
    }
}

/// Iterates over the mappings of a maps file, by address. Skips malformed lines.
pub fn mappings(maps: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    maps.split(|byte| *byte == b'\n')
        .filter_map(parse_maps_line)
}

/// Parses a line of /proc/PID/maps; `None` if it is malformed. Example: `7f2a4c000000-7f2a4c021000 r--p 00000000 08:01
/// 1234 /usr/lib/libc.so.6`
fn parse_maps_line(line: &[u8]) -> Option<Mapping<'_>> {
    let mut rest = line;
    let mut next = |separator: u8| {
        let end = rest.iter().position(|byte| *byte == separator);
        let column = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or(&[], |end| &rest[end + 1..]);
        column
    };
    let start = parse_number(next(b'-'), 16)?;
    Some(Mapping {
        range: start..parse_number(next(b' '), 16)?,
        access: next(b' ').try_into().ok()?,
        offset: parse_number(next(b' '), 16)?,
        device: next(b' '),
        inode: parse_number(next(b' '), 10)?,
        path: rest.trim_ascii_start(),
    })
}

/// Parses a number of base `radix` without a prefix. `None` if there is no digit, if a byte is no digit, or if the
/// number does not fit into 64 bits.
fn parse_number(digits: &[u8], radix: u32) -> Option<u64> {
    let add_digit = |number: u64, digit: &u8| {
        let digit = char::from(*digit).to_digit(radix)?;
        number
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))
    };
    let number = digits.iter().try_fold(0, add_digit)?;
    (!digits.is_empty()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_each_kind_are_parsed() {
        fn check<'a>(line: &'a str, path: &str, file_name: &str) -> Mapping<'a> {
            let mapping = parse_maps_line(line.as_bytes()).unwrap();
            assert_eq!(mapping.path, path.as_bytes());
            assert_eq!(mapping.file_name(), file_name.as_bytes());
            mapping
        }
        let code = check(
            "7f0e1c226000-7f0e1c37b000 r-xp 00026000 fe:01 21934                      /usr/lib/libc.so.6",
            "/usr/lib/libc.so.6",
            "libc.so.6",
        );
        assert_eq!(code.range, 0x7f0e_1c22_6000..0x7f0e_1c37_b000);
        assert_eq!(
            (code.offset, code.inode, code.is_executable()),
            (0x26000, 21934, true)
        );
        assert_eq!(code.device, b"fe:01");
        let anonymous = check("7f0e1c226000-7f0e1c37b000 rw-p 00000000 00:00 0 ", "", "");
        assert!(!anonymous.is_executable());
        check(
            "7ffc-8000 rw-p 00000000 00:00 0                          [stack]",
            "[stack]",
            "[stack]",
        );
        check(
            "1000-2000 r--s 00000000 00:01 7   /memfd:memory_profile.so (deleted)",
            "/memfd:memory_profile.so (deleted)",
            "memfd:memory_profile.so",
        );
        check(
            "1000-2000 r--s 00000000 00:01 7   /tmp/a  b\\012c",
            "/tmp/a  b\\012c",
            "a  b\\012c",
        );
    }

    #[test]
    fn own_code_is_in_own_mappings() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let here = own_code_is_in_own_mappings as fn() as usize as u64;
        let own = mappings(&maps).find(|mapping| mapping.range.contains(&here));
        assert!(own.unwrap().is_executable());
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let maps = b"\nx\n1000 r--p\n1000-2000 r-xp 0 00:00 0\n1000-zz r--p 0 00:00 0\n";
        assert_eq!(mappings(maps).count(), 1);
    }
}
