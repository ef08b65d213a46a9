//! Reads /proc/PID/maps. The process decides how long the text is: it may have a million mappings, and paths of any
//! length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use memprof_ptrace::maps::mappings;

/// Most bytes of the text that are kept: 65,530 mappings (`vm.max_map_count`) with lines of 1 KiB, or a million with
/// short lines.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Most bytes that are read: 65,530 lines of 16 KiB.
const MAX_READ_BYTES: u64 = 1 << 30;
/// Longest line: a path of 4 KiB (`PATH_MAX`) takes 16 KiB if it consists of line breaks, which the kernel writes as
/// `\012`. Only files in directories that were entered step by step have longer paths.
const MAX_LINE_BYTES: u64 = 32 << 10;
/// Length from which a line is shortened.
const LONG_LINE_BYTES: usize = 1 << 10;
const BUFFER_SIZE: usize = 64 << 10;

/// Reads the text of /proc/PID/maps. In lines of more than 1 KiB, the paths of shared mappings lack their directories:
/// programs and libraries are mapped privately.
///
/// # Errors
/// Those of open(2) and read(2). `FileTooLarge`: a line is longer than 32 KiB, or all lines together are longer than
/// 1 GiB, or than 64 MiB without these directories.
pub(crate) fn read_maps_text(pid: u32) -> io::Result<Vec<u8>> {
    let file = File::open(format!("/proc/{pid}/maps"))?;
    read_shortened_lines(BufReader::with_capacity(BUFFER_SIZE, file), MAX_READ_BYTES)
}

/// Reads the lines of a maps file, and shortens long ones. Fails with `FileTooLarge` as [`read_maps_text`] does, but
/// after `max_read` bytes.
fn read_shortened_lines(mut maps: impl BufRead, max_read: u64) -> io::Result<Vec<u8>> {
    let (mut text, mut line) = (Vec::new(), Vec::new());
    let mut unread = max_read;
    loop {
        line.clear();
        let length = maps
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(text);
        }
        if length as u64 == MAX_LINE_BYTES {
            return Err(too_large_error("a path in it is longer than 32 KiB"));
        }
        let rest = unread.checked_sub(length as u64);
        unread = rest.ok_or_else(|| too_large_error("it is longer than 1 GiB"))?;
        if length > LONG_LINE_BYTES {
            remove_directories_of_shared_mapping(&mut line);
        }
        if text.len() + line.len() > MAX_KEPT_BYTES {
            return Err(too_large_error(
                "it has more mappings than fit into 64 MiB of text",
            ));
        }
        text.extend_from_slice(&line);
    }
}

/// Removes the directories of the path in a line of a maps file, if the mapping is shared.
fn remove_directories_of_shared_mapping(line: &mut Vec<u8>) {
    let Some(mapping) = mappings(line).next() else {
        return;
    };
    if let Some(slash) = mapping.path.iter().rposition(|byte| *byte == b'/')
        && mapping.access[3] == b's'
    {
        let line_end = usize::from(line.ends_with(b"\n"));
        let path = line.len() - line_end - mapping.path.len();
        line.drain(path..=path + slash);
    }
}

/// Builds the error for a maps file that is too long.
fn too_large_error(reason: &str) -> io::Error {
    let message = format!("the list of its mappings is too long for memprof: {reason}");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line with a path of a directory and a file name.
    fn line(access: &str, directory: &str, file: &str) -> String {
        format!("7f0000000000-7f0000001000 {access} 00001000 fe:01 4711 /{directory}/{file}\n")
    }

    /// Reader of a line that is repeated.
    struct RepeatedLine {
        line: String,
        count: usize,
        position: usize,
    }

    impl Read for RepeatedLine {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.count == 0 {
                return Ok(0);
            }
            let length = (&self.line.as_bytes()[self.position..]).read(buffer)?;
            self.position += length;
            if self.position == self.line.len() {
                (self.count, self.position) = (self.count - 1, 0);
            }
            Ok(length)
        }
    }

    fn repeated(line: String, count: usize) -> impl BufRead {
        BufReader::new(RepeatedLine {
            line,
            count,
            position: 0,
        })
    }

    fn kept(maps: &str) -> String {
        String::from_utf8(read_shortened_lines(maps.as_bytes(), u64::MAX).unwrap()).unwrap()
    }

    #[test]
    fn directories_of_long_lines_of_shared_mappings_are_removed() {
        let long = "d".repeat(4000);
        let check = |line: &str, expected: &str| assert_eq!(kept(line), expected);
        let short = line("rw-s", "data", "a b");
        check(&short, &short);
        let code = line("r-xp", &long, "lib.so");
        check(&code, &code);
        let shared = line("rw-s", &long, "a b");
        let expected = "7f0000000000-7f0000001000 rw-s 00001000 fe:01 4711 a b\n";
        check(&shared, expected);
        check(shared.trim_end(), expected.trim_end());
        check(
            &[&*code, &shared, &short].concat(),
            &[&*code, expected, &short].concat(),
        );
        check("", "");
    }

    #[test]
    fn as_many_mappings_as_the_kernel_allows_are_read() {
        let long = "d".repeat(4000);
        let maps = repeated(line("rw-s", &long, "data"), 65_530);
        let kept = read_shortened_lines(maps, MAX_READ_BYTES).unwrap();
        assert_eq!(mappings(&kept).count(), 65_530);
        let code = line("r--p", &long[..900], "lib.so");
        let length = code.len() * 65_530;
        let kept = read_shortened_lines(repeated(code, 65_530), MAX_READ_BYTES).unwrap();
        assert_eq!(kept.len(), length);
    }

    #[test]
    fn longer_text_is_refused() {
        let check = |line: String, max_read: u64, expected: &str| {
            let error = read_shortened_lines(repeated(line, usize::MAX), max_read).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            assert!(error.to_string().contains(expected), "{error}");
        };
        let long = "d".repeat(40_000);
        check(line("rw-s", &long, "data"), u64::MAX, "32 KiB");
        check(line("r-xp", &long[..30_000], "lib.so"), u64::MAX, "64 MiB");
        check(line("rw-s", &long[..30_000], "data"), 1 << 20, "1 GiB");
    }

    #[test]
    fn own_mappings_are_read_whole() {
        let here = own_mappings_are_read_whole as fn() as usize as u64;
        let maps = read_maps_text(std::process::id()).unwrap();
        let own = mappings(&maps).find(|mapping| mapping.range.contains(&here));
        assert!(own.unwrap().is_executable());
        assert!(maps.ends_with(b"\n"));
    }
}
