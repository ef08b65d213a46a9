//! /proc/PID/maps.

use std::ops::Range;

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// From its first address to the one behind its last.
    pub range: Range<u64>,
    /// `r-xp`: readable, writable, executable, private or shared.
    pub access: [u8; 4],
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The file's device, as `major:minor` in hexadecimal digits.
    pub device: &'a [u8],
    /// The file's inode; 0 for memory of no file.
    pub inode: u64,
    /// The file as the kernel names it, `[heap]` and the like, or nothing. A line break in it stands as
    /// `\012`; the name of a file that was removed has ` (deleted)` behind it.
    pub path: &'a [u8],
}

impl Mapping<'_> {
    /// Whether it holds code.
    pub fn is_executable(&self) -> bool {
        self.access[2] == b'x'
    }

    /// The last part of its path, without the mark of a removed file.
    pub fn file_name(&self) -> &[u8] {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(self.path);
        let start = path.iter().rposition(|byte| *byte == b'/');
        start.map_or(path, |slash| &path[slash + 1..])
    }
}

/// The mappings in a maps file, by address. Lines of another form are left out.
pub fn mappings(maps: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    maps.split(|byte| *byte == b'\n').filter_map(parse)
}

/// `7f2a4c000000-7f2a4c021000 r--p 00000000 08:01 1234                       /usr/lib/libc.so.6`
fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut columns = line.splitn(6, |byte| *byte == b' ');
    let mut next = || columns.next();
    let (start, end) = str::from_utf8(next()?).ok()?.split_once('-')?;
    let range = hex(start)?..hex(end)?;
    let access = next()?.try_into().ok()?;
    let offset = hex(str::from_utf8(next()?).ok()?)?;
    let device = next()?;
    let inode = str::from_utf8(next()?).ok()?.parse().ok()?;
    Some(Mapping {
        range,
        access,
        offset,
        device,
        inode,
        path: next().unwrap_or_default().trim_ascii_start(),
    })
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_each_kind() {
        fn check<'a>(line: &'a str, path: &str, file_name: &str) -> Mapping<'a> {
            let mapping = parse(line.as_bytes()).unwrap();
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
    fn own_code_is_among_them() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let here = own_code_is_among_them as fn() as usize as u64;
        let own = mappings(&maps).find(|mapping| mapping.range.contains(&here));
        assert!(own.unwrap().is_executable());
    }

    #[test]
    fn other_lines_are_left_out() {
        let maps = b"\nx\n1000 r--p\n1000-2000 r-xp 0 00:00 0\n1000-zz r--p 0 00:00 0\n";
        assert_eq!(mappings(maps).count(), 1);
    }
}
