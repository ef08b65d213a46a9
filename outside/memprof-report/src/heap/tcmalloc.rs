//! Converts a dump of jemalloc to tcmalloc's text, which jeprof, google-pprof and `go tool pprof` all read:
//!
//! ```text
//! heap_v2/512                        heap profile: 9: 412 [0: 0] @ heap_v2/512
//!   t*: 9: 412 [0: 0]                9: 412 [0: 0] @ 0x7f9538aa262f 0x7f9538aa2d21
//!   t0: 9: 412 [0: 0]
//! @ 0x7f9538aa2630 0x7f9538aa2d21    MAPPED_LIBRARIES:
//!   t*: 9: 412 [0: 0]
//!   t0: 9: 412 [0: 0]
//!
//! MAPPED_LIBRARIES:
//! ```
//!
//! The values stay raw: these tools unsample a text with `heap_v2`. The text has no place for threads; pseudo frames
//! are written as comments at the end. Only the leaf is written less 1: these tools look it up unchanged, but every
//! other address less 1.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::mem;

use super::checksum;
use super::marker_lines::{is_mappings_header, starts_next_dump};
use super::stripped_frames::StrippedFrames;
use crate::error::{Error, Quoted, Result};
use crate::limits::Limits;
use crate::lines::{InputEnd, for_each_line, split_carriage_return};
use crate::profile::Address;

/// Kind of line that may come next.
#[derive(Clone, Copy)]
enum Expected {
    Header,
    Totals,
    StackTotals,
    /// A stack, the line of a thread, or the end of the stacks.
    Any,
    /// A stack of tcmalloc's text with its values, or the end of the stacks.
    Stacks,
    /// Lines that both formats share.
    Rest,
}

/// Rewrites a dump of jemalloc or tcmalloc as tcmalloc's text, line by line, without the frames at the leaf whose
/// addresses are in `allocator`; see
/// [`SymbolizedProfile::allocator_addresses`](crate::SymbolizedProfile::allocator_addresses). Pseudo frames become
/// comments at the end. Managed words and a checksum are left out. A file may have the dumps of several processes, one
/// after the other.
///
/// # Errors
/// `dump` is in neither format, is malformed or truncated, or has lines beyond the limits; writing to `out` fails.
pub fn write_tcmalloc(
    dump: &mut dyn BufRead,
    limits: &Limits,
    allocator: &HashSet<Address>,
    out: &mut dyn Write,
) -> Result<()> {
    let mut expected = Expected::Header;
    // Text that precedes the values in jemalloc's format and follows them in tcmalloc's.
    let mut pending = Vec::new();
    let mut stripped = StrippedFrames::default();
    let ending = for_each_line(dump, limits.line, |number, line| {
        let (line, _) = split_carriage_return(line);
        let unexpected = |what: &str| {
            let found = format!("expected {what}, found {}", Quoted(line));
            Error::malformed_line("heap dump", number, found)
        };
        if matches!(expected, Expected::Rest) && starts_next_dump(line) {
            write_pseudo_frame_comments(&mem::take(&mut stripped), out)?;
            pending.clear();
            expected = Expected::Header;
        }
        expected = match expected {
            Expected::Header => match line.strip_prefix(b"heap_v2/") {
                Some(interval) => {
                    pending.extend_from_slice(interval);
                    Expected::Totals
                }
                None if line.starts_with(b"heap profile:") => {
                    write_parts(out, &[line, b"\n"])?;
                    Expected::Stacks
                }
                None => return Err(unexpected("'heap_v2/' or 'heap profile:'")),
            },
            Expected::Totals => {
                let totals = totals_text(line).ok_or_else(|| unexpected("'t*:'"))?;
                let parts = [b"heap profile: ", totals, b" @ heap_v2/", &pending, b"\n"];
                write_parts(out, &parts)?;
                Expected::Any
            }
            Expected::StackTotals => {
                let totals = totals_text(line).ok_or_else(|| unexpected("'t*:'"))?;
                write_parts(out, &[totals, b" @", &pending, b"\n"])?;
                Expected::Any
            }
            Expected::Any => match line {
                [b'@', addresses @ ..] => {
                    pending = to_tcmalloc_stack(&stripped.strip(addresses), allocator);
                    Expected::StackTotals
                }
                [b' ', ..] => return Ok(()),
                [] => {
                    out.write_all(b"\n")?;
                    Expected::Rest
                }
                _ => return Err(unexpected("'@'")),
            },
            Expected::Stacks if is_mappings_header(line) => {
                write_parts(out, &[line, b"\n"])?;
                Expected::Rest
            }
            Expected::Stacks => {
                let line = match line.trim_ascii() {
                    [] => Cow::Borrowed(line),
                    _ => stripped.strip(line),
                };
                match memchr::memchr(b'@', &line) {
                    Some(at) => {
                        let stack = to_tcmalloc_stack(&line[at + 1..], allocator);
                        write_parts(out, &[&line[..=at], &stack, b"\n"])?;
                    }
                    None => write_parts(out, &[&line, b"\n"])?,
                }
                Expected::Stacks
            }
            // The checksum of the input does not match the output.
            Expected::Rest if checksum::is_checksum_line(line) => return Ok(()),
            Expected::Rest => {
                write_parts(out, &[line, b"\n"])?;
                return Ok(());
            }
        };
        Ok(())
    })?;
    let problem = match (ending, expected) {
        (InputEnd::Complete, Expected::Stacks | Expected::Rest) => {
            return write_pseudo_frame_comments(&stripped, out);
        }
        (InputEnd::Truncated(line), _) => format!("line {line} has no end"),
        (InputEnd::Complete, _) => "it has no mappings".into(),
    };
    Err(Error::Truncated { problem })
}

/// Converts the addresses of a stack to tcmalloc's text, each with a blank before it. Leaves out the allocator's
/// addresses at the leaf, but the outermost one stays if the stack has no others. The new leaf is written less 1,
/// because the readers look it up unchanged. If the new leaf is no address, or the stack is empty, the text stays as it
/// is.
fn to_tcmalloc_stack(addresses: &[u8], allocator: &HashSet<Address>) -> Vec<u8> {
    let words = addresses.split(|byte| *byte == b' ');
    let words: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
    let address = |word: &[u8]| {
        let digits = str::from_utf8(word).ok()?.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let is_allocator =
        |word: &&&[u8]| address(word).is_some_and(|own| allocator.contains(&Address(own)));
    let depth = words.iter().take_while(is_allocator).count();
    let kept = &words[depth.min(words.len().saturating_sub(1))..];
    let Some((leaf, callers)) = kept.split_first() else {
        return addresses.to_vec();
    };
    let Some(leaf) = address(leaf) else {
        return addresses.to_vec();
    };
    let mut stack = format!(" {:#x}", leaf.saturating_sub(1)).into_bytes();
    for caller in callers {
        stack.push(b' ');
        stack.extend_from_slice(caller);
    }
    stack
}

/// Returns the values of a `t*` line, which are those of all threads: `9: 412 [0: 0]` for `  t*: 9: 412 [0: 0]`. `None`
/// for another line.
fn totals_text(line: &[u8]) -> Option<&[u8]> {
    line.trim_ascii_start().strip_prefix(b"t*: ")
}

/// Writes the pseudo frames that were removed from a dump, as comments: one line each, with the numbers of the stacks.
fn write_pseudo_frame_comments(stripped: &StrippedFrames, out: &mut dyn Write) -> Result<()> {
    let mut comments = stripped.pseudo_frame_comments();
    comments.try_for_each(|comment| write_parts(out, &[comment.as_bytes(), b"\n"]))
}

/// Writes the parts one after the other, without a separator.
fn write_parts(out: &mut dyn Write, parts: &[&[u8]]) -> Result<()> {
    for part in parts {
        out.write_all(part)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_without(allocator: &[u64], dump: &str) -> Result<String> {
        let mut out = Vec::new();
        let allocator = allocator.iter().map(|address| Address(*address)).collect();
        write_tcmalloc(
            &mut dump.as_bytes(),
            &Limits::default(),
            &allocator,
            &mut out,
        )?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn convert(dump: &str) -> Result<String> {
        convert_without(&[], dump)
    }

    const DUMP: &str = "heap_v2/512\n  t*: 9: 412 [1: 2]\n  t0: 9: 412 [1: 2]\n@ 0x7f 0x80\n  \
                        t*: 9: 412 [1: 2]\n  t0: 9: 412 [1: 2]\n\nMAPPED_LIBRARIES:\n\
                        7f-80 r-xp 00000000 00:00 0 /x\n";

    #[test]
    fn dump_becomes_tcmalloc_text() {
        let text = |leaf: &str| {
            format!(
                "heap profile: 9: 412 [1: 2] @ heap_v2/512\n9: 412 [1: 2] @ {leaf} 0x80\n\n\
                 MAPPED_LIBRARIES:\n7f-80 r-xp 00000000 00:00 0 /x\n"
            )
        };
        assert_eq!(convert(DUMP).unwrap(), text("0x7e"));
        assert_eq!(convert(&text("0x7f")).unwrap(), text("0x7e"));
    }

    #[test]
    fn allocator_frames_are_left_out_at_the_leaf() {
        let check = |allocator: &[u64], stack: &str, expected: &str| {
            let legacy = |stack: &str| {
                format!("heap profile: 1: 8 [1: 8] @ heap_v2/1\n1: 8 [1: 8] @{stack}\n\n")
                    + "MAPPED_LIBRARIES:\n"
            };
            let jemalloc = format!(
                "heap_v2/1\n  t*: 1: 8 [1: 8]\n@{stack}\n  t*: 1: 8 [1: 8]\n\nMAPPED_LIBRARIES:\n"
            );
            for dump in [jemalloc, legacy(stack)] {
                let converted = convert_without(allocator, &dump).unwrap();
                assert_eq!(converted, legacy(expected), "{stack}");
            }
        };
        check(&[0x11, 0x12], " 0x11 0x12 0x21 0x11", " 0x20 0x11");
        check(&[0x11, 0x12], " 0x21 0x11", " 0x20 0x11");
        check(&[0x11, 0x12], " 0x11  0x12", " 0x11");
        check(&[0x11], "", "");
        check(&[0x11], " 0x11 0x21", " 0x20");
        check(&[0x11], " 0x0", " 0x0");
        check(&[0x11], " junk 0x21", " junk 0x21");
    }

    #[test]
    fn each_dump_of_a_file_is_converted() {
        let label = " 0x4d50010000000003";
        let jemalloc = DUMP.replace("@ 0x7f 0x80", &format!("@ 0x7f 0x80{label}"));
        let tcmalloc = convert(DUMP)
            .unwrap()
            .replace("0x80", &format!("0x80{label}"));
        let converted = |dump: &str| convert(dump).unwrap();
        for dumps in [
            [&jemalloc, &jemalloc],
            [&jemalloc, &tcmalloc],
            [&tcmalloc, &jemalloc],
        ] {
            let expected: String = dumps.map(|dump| converted(dump)).concat();
            assert!(expected.ends_with("# marks: label=1 of 1\n"), "{expected}");
            assert_eq!(converted(&dumps.map(String::as_str).concat()), expected);
        }
    }

    #[test]
    fn checksum_is_removed() {
        let comments = |checksum| format!("{DUMP}{checksum}# stacks: 1\n");
        let sealed = convert(&comments("# memprof 2\n# checksum: crc32 0badf00d\n"));
        assert_eq!(sealed.unwrap(), convert(&comments("")).unwrap());
    }

    #[test]
    fn carriage_returns_at_line_ends_are_removed() {
        let marked = DUMP.replace("@ 0x7f 0x80", "@ 0x7f 0x80 0x4d50010000000003");
        let sealed = format!("{marked}# memprof 2\n# checksum: crc32 0badf00d\n");
        let tcmalloc = "heap profile: 1: 8 [1: 8] @ heap_v2/1\n1: 8 [1: 8] @ 0x10 0x4d50010000000003\n\n\
                        MAPPED_LIBRARIES:\n";
        for dump in [DUMP, &sealed, tcmalloc] {
            let converted = convert(&dump.replace('\n', "\r\n")).unwrap();
            assert_eq!(converted, convert(dump).unwrap());
        }
    }

    #[test]
    fn both_formats_have_equal_totals() {
        let read = |text: &str| {
            let mut profile =
                crate::parse_profile(&mut text.as_bytes(), &Limits::default(), false).unwrap();
            crate::unsample(&mut profile).unwrap();
            (profile.totals(), profile.interval, profile.mappings.len())
        };
        assert_eq!(read(DUMP), read(&convert(DUMP).unwrap()));
    }

    #[test]
    fn truncated_dump_is_refused() {
        let check = |dump: &str, expected: &str| {
            let error = convert(dump).unwrap_err().to_string();
            assert!(error.contains(expected), "{dump:?}: {error}");
        };
        check("", "truncated");
        check(
            "heap_v1/1\n",
            "line 1: expected 'heap_v2/' or 'heap profile:'",
        );
        check(
            "heap_v2/1\n@ 0x1\n",
            "line 2: expected 't*:', found \"@ 0x1\"",
        );
        check("heap_v2/1\n  t*: 1: 1 [0: 0]\n@ 0x1\n", "no mappings");
        check(
            "heap_v2/1\n  t*: 1: 1 [0: 0]\n0x1\n",
            "line 3: expected '@'",
        );
        check(&DUMP[..DUMP.len() - 1], "line 9 has no end");
        check(&DUMP[..60], "has no end");
    }
}
