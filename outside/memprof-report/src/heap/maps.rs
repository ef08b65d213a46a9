//! Reads the memory map at the end of a dump: mappings, variables in their paths, and comments.

use std::collections::HashMap;

use super::DumpReader;
use super::map_line::{MapLine, parse_map_line};
use crate::error::{Error, Quoted, Result};
use crate::limits::ProfileItem;
use crate::profile::{Address, Mapping};

/// State of the memory map.
#[derive(Debug, Default)]
pub(super) struct MemoryMap {
    lines: Vec<MapLine>,
    variables: Variables,
    /// Number of lines that are no mapping, and a text that quotes the first.
    odd_lines: u64,
    first_odd_line: String,
}

impl DumpReader<'_> {
    /// Reads a line after the mappings' header: a mapping, a definition of a variable (`NAME=VALUE`) or a comment. A
    /// variable in a line (`$NAME`) is replaced by its value first. Any other line is left out, and counted for a
    /// warning. Fails if a limit is exceeded.
    pub(super) fn read_mapping(&mut self, line: &[u8]) -> Result<()> {
        if let Some(comment) = line.strip_prefix(b"#") {
            return self.read_comment(comment);
        }
        if line.is_empty() {
            return Ok(());
        }
        let expanded = self.map.variables.expand(line, self.limits.line)?;
        let line = expanded.as_deref().unwrap_or(line);
        if let Some(parsed) = parse_map_line(line) {
            if self.map.lines.len() == self.limits.mappings {
                return Err(Error::Limit {
                    what: "mappings",
                    limit: self.limits.mappings as u64,
                });
            }
            let item = ProfileItem::Text(parsed.mapping.path.len());
            self.map.lines.push(parsed);
            return self.charge_memory(item);
        }
        if let Some((name, value)) = parse_variable(line) {
            let item = ProfileItem::Text(name.len() + value.len());
            self.map.variables.0.insert(name.to_vec(), value.to_vec());
            return self.charge_memory(item);
        }
        self.map.odd_lines += 1;
        if self.map.odd_lines == 1 {
            self.map.first_odd_line = format!("line {}, {}", self.line, Quoted(line));
        }
        Ok(())
    }
}

/// Variables by name, which lines after them use as `$NAME`.
#[derive(Debug, Default)]
struct Variables(HashMap<Vec<u8>, Vec<u8>>);

/// Longest name of a variable that is looked up.
const MAX_NAME_BYTES: usize = 64;

impl Variables {
    /// Replaces the variables in a line (`$NAME`) by their values; a `$` before any other text stays. `None` if the
    /// line has no `$`, or no variable is defined. Fails if the result is longer than `max_len` bytes.
    fn expand(&self, line: &[u8], max_len: usize) -> Result<Option<Vec<u8>>> {
        if self.0.is_empty() || memchr::memchr(b'$', line).is_none() {
            return Ok(None);
        }
        let check_length = |length: usize| match length <= max_len {
            true => Ok(()),
            false => Err(Error::Limit {
                what: "bytes in a line",
                limit: max_len as u64,
            }),
        };
        let mut expanded = Vec::new();
        let mut rest = line;
        while let Some(dollar) = memchr::memchr(b'$', rest) {
            expanded.extend_from_slice(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            match self.find_at_start(rest) {
                Some((length, value)) => {
                    expanded.extend_from_slice(value);
                    rest = &rest[length..];
                }
                None => expanded.push(b'$'),
            }
            check_length(expanded.len())?;
        }
        check_length(expanded.len() + rest.len())?;
        expanded.extend_from_slice(rest);
        Ok(Some(expanded))
    }

    /// Finds the variable whose name stands at the start of `text`; the longest one if there are several. Returns the
    /// length of the name and the value. `None` if no variable has such a name, or a letter, digit or underscore
    /// follows, because the name goes on.
    fn find_at_start(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
        let length = text
            .iter()
            .take(MAX_NAME_BYTES)
            .take_while(|byte| is_name(byte))
            .count();
        (1..=length).rev().find_map(|length| {
            let is_cut = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            if text.get(length).is_some_and(is_cut) {
                return None;
            }
            let value = self.0.get(&text[..length])?;
            Some((length, value.as_slice()))
        })
    }
}

/// Parses `NAME=VALUE`. `None` if it has no `=`, or its name is empty or has a blank.
fn parse_variable(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = memchr::memchr(b'=', line)?;
    let (name, value) = (line[..equals].trim_ascii(), line[equals + 1..].trim_ascii());
    let is_name = !name.is_empty() && !name.iter().any(u8::is_ascii_whitespace);
    is_name.then_some((name, value))
}

impl MemoryMap {
    /// Returns whether all mappings of files have file offsets.
    pub(super) fn has_offsets(&self) -> bool {
        let mut lines = self.lines.iter();
        lines.all(|line| line.has_offset || !line.mapping.is_file())
    }

    /// Returns the mappings, sorted by address, without those that overlap an earlier one. `build_ids` are pairs of a
    /// path and the build id of its file. Adds warnings for what was left out or assumed.
    pub(super) fn finish(
        self,
        build_ids: Vec<(String, String)>,
        warnings: &mut Vec<String>,
    ) -> Vec<Mapping> {
        if self.odd_lines > 0 {
            warnings.push(format!(
                "lines of the memory map left out because they are no mapping: {}, the first is {}",
                self.odd_lines, self.first_odd_line
            ));
        }
        let mut lines = self.lines;
        lines.sort_by_key(|line| line.mapping.start);
        let count = lines.len();
        let mut end = Address(0);
        lines.retain(|line| {
            let keep = line.mapping.start >= end;
            if keep {
                end = line.mapping.end;
            }
            keep
        });
        if lines.len() < count {
            warnings.push(format!(
                "{} mappings overlap others and are left out",
                count - lines.len()
            ));
        }
        warnings.extend(assume_missing_offsets(&mut lines));
        let build_ids: HashMap<String, String> = build_ids.into_iter().collect();
        let mappings = lines.into_iter().map(|line| line.mapping);
        mappings
            .map(|mapping| Mapping {
                build_id: build_ids.get(&mapping.path).cloned().or(mapping.build_id),
                ..mapping
            })
            .collect()
    }
}

/// Sets missing file offsets to the distance from the first mapping of the same file. These offsets only serve to show
/// addresses without a symbol, as in `app+0x1234`, because symbols are found by the load address. `lines` are sorted by
/// address. Returns a note if a file has several mappings without an offset, else `None`.
fn assume_missing_offsets(lines: &mut [MapLine]) -> Option<String> {
    let mut starts: HashMap<String, Address> = HashMap::new();
    let mut is_assumed = false;
    for MapLine {
        mapping,
        has_offset,
    } in lines
    {
        if *has_offset || !mapping.is_file() {
            continue;
        }
        match starts.get(&mapping.path) {
            Some(start) => {
                mapping.offset = mapping.start.0 - start.0;
                is_assumed = true;
            }
            None => drop(starts.insert(mapping.path.clone(), mapping.start)),
        }
    }
    is_assumed.then(|| {
        "the memory map has no file offsets: the number of a function without a name, as in app+0x1234, counts from the \
         first mapping of its file"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;
    use crate::profile::Profile;

    fn read(map: &str) -> Profile {
        let text = format!(
            "heap_v2/512\n  t*: 1: 64 [0: 0]\n@ 0x1\n  t*: 1: 64 [0: 0]\n\nMAPPED_LIBRARIES:\n{map}"
        );
        super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false)
            .unwrap_or_else(|error| panic!("{error}: {map}"))
            .swap_remove(0)
    }

    fn paths(map: &str) -> Vec<String> {
        let profile = read(map);
        assert_eq!(profile.warnings, Vec::<String>::new(), "{map}");
        let mappings = profile.mappings.into_iter();
        mappings.map(|mapping| mapping.path).collect()
    }

    #[test]
    fn variables_are_expanded() {
        for (map, expected) in [
            (
                "  source=/srv\n  00400000-00500000: $source/app\n",
                "/srv/app",
            ),
            (
                "build=/b\n00400000-00500000 r-xp 0 08:01 12 $build/app\n",
                "/b/app",
            ),
            ("A = /a b\nB=$A/c\n400000-500000: $B/app\n", "/a b/c/app"),
            ("A=/a\nAB=/ab\n400000-500000: $AB/app\n", "/ab/app"),
            ("A=/a\n400000-500000: $AB/app\n", "$AB/app"),
            ("A=/a\nA=/b\n400000-500000: $A/app\n", "/b/app"),
            ("lib-dir=/a\n400000-500000: $lib-dir/app\n", "/a/app"),
            (
                "v=1.2\n400000-500000: /lib/libx-$v.so\n",
                "/lib/libx-1.2.so",
            ),
            ("400000-500000: /a/Outer$Inner.so\n", "/a/Outer$Inner.so"),
            ("A=/a\n400000-500000: /x/$.so$\n", "/x/$.so$"),
        ] {
            assert_eq!(paths(map), [expected], "{map}");
        }
    }

    #[test]
    fn endless_expansion_exceeds_limit() {
        let map = format!("a=xxxxxxxxxxxxxxxx\n{}", "a=$a$a\n".repeat(40));
        let text = format!("heap_v2/512\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n{map}");
        let error = super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false);
        let error = error.expect_err("it doubles").to_string();
        assert_eq!(
            error,
            "the input passes the limit of 131072 bytes in a line"
        );
    }

    #[test]
    fn odd_lines_are_quoted_once() {
        let profile = read("zzz\n400000-500000: /a\n500000-400000: /b\nERROR x y\n");
        assert_eq!(
            profile.warnings,
            [
                "lines of the memory map left out because they are no mapping: 3, the first is line 7, \"zzz\""
            ]
        );
        assert_eq!(profile.mappings.len(), 1);
    }

    #[test]
    fn offsets_that_freebsd_does_not_write_are_assumed() {
        let line = |range: &str, permissions: &str| {
            format!(
                "{range} 1 0 0xfffff80003a5c000 {permissions} 2 1 0x1000 COW NC vnode /app NCH -1\n"
            )
        };
        let map = line("0x201000 0x203000", "r--") + &line("0x203000 0x209000", "r-x");
        let profile = read(&map);
        let offsets: Vec<_> = profile
            .mappings
            .iter()
            .map(|mapping| mapping.offset)
            .collect();
        assert_eq!(offsets, [0, 0x2000]);
        assert!(
            profile.warnings[0].contains("no file offsets"),
            "{:?}",
            profile.warnings
        );
    }

    #[test]
    fn build_id_of_line_is_kept() {
        let profile = read("0x40000-0x80000 /app (@1000) abc123456\n");
        let mapping = &profile.mappings[0];
        assert_eq!(
            (mapping.offset, mapping.build_id.as_deref()),
            (0x1000, Some("abc123456"))
        );
    }
}
