//! A line of a memory map, in the formats of the systems that write heap dumps:
//!
//! | line | written by |
//! |---|---|
//! | `400000-401000 r-xp 00001000 fe:00 77 /app` | Linux, NetBSD, Cygwin; gperftools on any system |
//! | `40000000-40015000: /lib/ld-2.3.2.so` | tcmalloc's `DumpAddressMap`, jemalloc on macOS |
//! | `0x40000-0x80000 /app (@ff00) abc123456` | pprof: file offset and build id may be missing |
//! | `0x800600000 0x80061a000 26 0 0xfffff800035a0000 r-x 75 33 0x1004 COW NC vnode /libexec/ld-elf.so.1 NCH -1` | FreeBSD |
//!
//! Sources: proc(5); `parseMappingEntry` of pprof's `legacy_profile.go`; `procfs_doprocmap` of FreeBSD;
//! `prof_dump_dyld_image_vmaddr` of jemalloc.

use super::numbers::parse_hexadecimal;
use crate::names::replace_unprintable;
use crate::profile::{Address, Mapping};

/// A mapping, and whether its line has a file offset.
#[derive(Debug)]
pub(super) struct MapLine {
    pub(super) mapping: Mapping,
    pub(super) has_offset: bool,
}

/// Parses a line of a memory map, in one of three forms: as in `/proc/PID/maps`, as in FreeBSD's `map`, or a range and
/// a path only. A line without permissions counts as code. `None` if it has another form, or if the mapping ends before
/// it starts.
pub(super) fn parse_map_line(line: &[u8]) -> Option<MapLine> {
    let (start, rest) = parse_address(line.trim_ascii())?;
    let is_range = rest.first() == Some(&b'-');
    let (end, rest) = match rest {
        [b'-', rest @ ..] | [b' ', rest @ ..] => parse_address(rest)?,
        _ => return None,
    };
    if end < start {
        return None;
    }
    let range = Mapping {
        start: Address(start),
        end: Address(end),
        ..Mapping::default()
    };
    if let Some(path) = rest.strip_prefix(b":") {
        return Some(parse_brief_fields(range, path, true));
    }
    if !matches!(rest.first(), None | Some(b' ' | b'\t')) {
        return None;
    }
    if !is_range && let Some(line) = parse_freebsd_fields(&range, rest) {
        return Some(line);
    }
    let (permissions, after) = split_word(rest);
    let (is_executable, rest) = match permissions {
        // A line without permissions counts as code.
        _ if !is_permissions(permissions) => (true, rest),
        permissions => (permissions.contains(&b'x'), after),
    };
    if let Some(line) = parse_proc_fields(&range, is_executable, rest) {
        return Some(line);
    }
    is_path(rest.trim_ascii()).then(|| parse_brief_fields(range, rest, is_executable))
}

/// Parses what follows the addresses (`range`) and the permissions in a line of /proc/PID/maps: `offset major:minor
/// inode path`. `None` if a field is missing or malformed.
fn parse_proc_fields(range: &Mapping, executable: bool, text: &[u8]) -> Option<MapLine> {
    let (offset, rest) = split_word(text);
    let (device, rest) = split_word(rest);
    let (inode, path) = split_word(rest);
    let (offset, []) = parse_hexadecimal(offset)? else {
        return None;
    };
    let (_major, minor) = parse_hexadecimal(device)?;
    let (_minor, []) = parse_hexadecimal(minor.strip_prefix(b":")?)? else {
        return None;
    };
    // Inodes are any 64 bits, and old versions of gperftools write them with a sign.
    let digits = inode.strip_prefix(b"-").unwrap_or(inode);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mapping = Mapping {
        offset,
        executable,
        path: path_text(path),
        ..range.clone()
    };
    Some(MapLine {
        mapping,
        has_offset: true,
    })
}

/// Parses what follows the addresses (`range`) and the permissions in a line of pprof or tcmalloc: `path`, `path
/// (@offset)` or `path (@offset) build id`. Any other text is a path.
fn parse_brief_fields(range: Mapping, text: &[u8], executable: bool) -> MapLine {
    let whole = MapLine {
        mapping: Mapping {
            executable,
            path: path_text(text),
            ..range
        },
        has_offset: false,
    };
    let Some(start) = memchr::memmem::rfind(text, b" (@") else {
        return whole;
    };
    match parse_hexadecimal(&text[start + 3..]) {
        Some((offset, [b')', build_id @ ..])) => MapLine {
            mapping: Mapping {
                offset,
                path: path_text(&text[..start]),
                build_id: parse_build_id(build_id.trim_ascii()),
                ..whole.mapping
            },
            has_offset: true,
        },
        _ => whole,
    }
}

/// Parses the fields of FreeBSD after the range: resident pages, pages of the object, object, permissions, counts of
/// references and shadows, flags, `COW` or `NCOW`, `NC` or `NNC`, type, path, and in newer versions `CH` or `NCH` and a
/// user id. `None` if the fields of the permissions or of `COW` have another form. The format has no file offset. Only
/// a mapping of type `vnode` gets the path.
fn parse_freebsd_fields(range: &Mapping, text: &[u8]) -> Option<MapLine> {
    let mut rest = text;
    let mut next = || {
        let (word, after) = split_word(rest);
        rest = after;
        word
    };
    let [_resident, _pages, _object, permissions] = [next(), next(), next(), next()];
    let [_references, _shadows, _flags] = [next(), next(), next()];
    let [copy_on_write, _needs_copy, kind] = [next(), next(), next()];
    if !is_permissions(permissions) || !matches!(copy_on_write, b"COW" | b"NCOW" | b"NCO") {
        return None;
    }
    // The path ends before `CH` or `NCH`, if there is one.
    let path = match memchr::memmem::rfind(rest, b"CH ") {
        Some(end) if rest[..end].ends_with(b" N") => &rest[..end - 2],
        Some(end) if rest[..end].ends_with(b" ") => &rest[..end],
        _ => rest,
    };
    let mapping = Mapping {
        executable: permissions.contains(&b'x'),
        path: match kind {
            b"vnode" => path_text(path),
            _ => String::new(),
        },
        ..range.clone()
    };
    Some(MapLine {
        mapping,
        has_offset: false,
    })
}

/// Parses an address with or without `0x`, after blanks. Returns the address and the text after it; `None` without
/// digits or beyond 64 bits.
fn parse_address(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    parse_hexadecimal(text.strip_prefix(b"0x").unwrap_or(text))
}

/// Skips blanks and splits off the first word. Returns the word, which may be empty, and the text after it.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace);
    text.split_at(end.unwrap_or(text.len()))
}

/// Returns whether a word consists of three to five of the letters `rwxps-`: Linux writes `r-xp`, FreeBSD `r-x`.
fn is_permissions(word: &[u8]) -> bool {
    matches!(word.len(), 3..=5) && word.iter().all(|byte| b"rwxps-".contains(byte))
}

/// Returns whether a text may be a path or a name such as `[vdso]`; true if it is empty.
fn is_path(text: &[u8]) -> bool {
    matches!(
        text,
        [] | [b'/' | b'[' | b'.' | b'$' | b'\\', ..] | [_, b':', b'\\' | b'/', ..]
    )
}

/// Returns a path without blanks around it, and with unprintable characters replaced.
fn path_text(text: &[u8]) -> String {
    replace_unprintable(&String::from_utf8_lossy(text.trim_ascii())).into_owned()
}

/// Returns a build id in lower case. `None` unless it is hexadecimal digits only.
fn parse_build_id(text: &[u8]) -> Option<String> {
    let is_hexadecimal = !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit);
    is_hexadecimal.then(|| path_text(text).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::parse_map_line;

    /// `start-end x offset path build-id`: `x` if executable, `?` for an unknown offset.
    fn parsed(line: &str) -> Option<String> {
        let line = parse_map_line(line.as_bytes())?;
        let mapping = line.mapping;
        let offset = match line.has_offset {
            true => format!("{:x}", mapping.offset),
            false => "?".to_owned(),
        };
        Some(format!(
            "{:x}-{:x} {} {offset} {} {}",
            mapping.start.0,
            mapping.end.0,
            if mapping.executable { "x" } else { "-" },
            mapping.path,
            mapping.build_id.unwrap_or_default()
        ))
    }

    #[test]
    fn lines_of_all_systems_are_read() {
        for (line, expected) in [
            (
                "00400000-00401000 r-xp 00001000 fe:00 10199045   /usr/bin/a b",
                "400000-401000 x 1000 /usr/bin/a b ",
            ),
            ("55d6-55d7 rw-s 00000000 00:00 0", "55d6-55d7 - 0  "),
            (
                "55d6-55d7 r--p 00000000 00:2f 13835058055282163712 /a",
                "55d6-55d7 - 0 /a ",
            ),
            (
                "55d6-55d7 r--p 00000000 00:2f 18446744073709551615 /a",
                "55d6-55d7 - 0 /a ",
            ),
            (
                "55d6-55d7 r-xp 00002000 00:2f -4611686018427387904   /a",
                "55d6-55d7 x 2000 /a ",
            ),
            (
                "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
                "ffffffffff600000-ffffffffff601000 x 0 [vsyscall] ",
            ),
            (
                "7ff6a1b20000-7ff6a1b30000 r-xp 00000000 00:00 0 C:\\Program Files\\app.exe",
                "7ff6a1b20000-7ff6a1b30000 x 0 C:\\Program Files\\app.exe ",
            ),
            (
                "  40000000-40015000: /lib/ld-2.3.2.so",
                "40000000-40015000 x ? /lib/ld-2.3.2.so ",
            ),
            (
                "0000000104a3c000-0000000104a40000: /Users/me/My App.app/app",
                "104a3c000-104a40000 x ? /Users/me/My App.app/app ",
            ),
            (
                "  7fff63dfe000-7fff63e00000: [vdso]",
                "7fff63dfe000-7fff63e00000 x ? [vdso] ",
            ),
            (
                "7ff6a1b20000-7ff6a1b30000: D:/app.dll",
                "7ff6a1b20000-7ff6a1b30000 x ? D:/app.dll ",
            ),
            (
                "0x40000-0x80000 /path/to/binary      (@FF00)            abc123456",
                "40000-80000 x ff00 /path/to/binary abc123456",
            ),
            (
                "0x40000-0x80000 /path/to/binary (@0)",
                "40000-80000 x 0 /path/to/binary ",
            ),
            (
                "40000-80000 r--p /path/to/binary",
                "40000-80000 - ? /path/to/binary ",
            ),
            ("40000-80000", "40000-80000 x ?  "),
            (
                "0x800600000 0x80061a000 26 0 0xfffff800035a0000 r-x 75 33 0x1004 COW NC vnode /libexec/ld-elf.so.1 NCH -1",
                "800600000-80061a000 x ? /libexec/ld-elf.so.1 ",
            ),
            (
                "0x400000 0x401000 1 0 0xfffff80003a5c000 r-- 2 1 0x1000 COW NC vnode /home/a b/app CH 1001",
                "400000-401000 - ? /home/a b/app ",
            ),
            (
                "0x801000000 0x801400000 800 0 0xfffff80003a5c000 rw- 1 0 0x3000 NCOW NNC default - CH 1001",
                "801000000-801400000 - ?  ",
            ),
            (
                "0x8048000 0x8052000 8 0 0xc2dd1c60 r-x 1 0 0x0 COW NC vnode /bin/cat",
                "8048000-8052000 x ? /bin/cat ",
            ),
        ] {
            assert_eq!(parsed(line).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn other_lines_are_not_mappings() {
        for line in [
            "",
            "zzz",
            "source=/srv",
            "00400000",
            "00400000-",
            "00400000-00500000garbage",
            "00500000-00400000 r-xp 00000000 08:01 12 /a",
            "00400000-00500000 r-xp 00000000 08:01 zz /a",
            "00400000-00500000 r-xp 00000000 0801 12 /a",
            "00400000-00500000 some text",
            "10000000000000000-20000000000000000: /a",
            "ERROR: cannot read /proc/self/maps",
            "0x400000 0x401000 1 0 r-x",
            "# comment",
        ] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }
}
