//! Reads the mappings at the end of a dump: lines of `/proc/PID/maps`, or the short lines of tcmalloc.

use super::DumpReader;
use super::numbers::{parse_decimal, parse_hexadecimal};
use crate::error::{Error, Result};
use crate::limits::ProfileItem;
use crate::names::replace_unprintable;
use crate::profile::{Address, Mapping};

impl DumpReader<'_> {
    /// Reads a line after the mappings' header: a mapping or a comment.
    pub(super) fn read_mapping(&mut self, line: &[u8]) -> Result<()> {
        if let Some(comment) = line.strip_prefix(b"#") {
            return self.read_comment(comment);
        }
        if line.trim_ascii().is_empty() || line.starts_with(b"build=") {
            return Ok(());
        }
        if self.mappings.len() == self.limits.mappings {
            return Err(Error::Limit {
                what: "mappings",
                limit: self.limits.mappings as u64,
            });
        }
        match parse_mapping(line) {
            Some(mapping) => {
                let item = ProfileItem::Text(mapping.path.len());
                self.mappings.push(mapping);
                self.spend(item)
            }
            None => Err(self.unexpected_error("'start-end perms offset dev inode path'", line)),
        }
    }
}

/// Parses `55d62a6b1000-55d62a710000 r-xp 00000000 fe:00 10199045 /usr/bin/redis-server`, or tcmalloc's
/// `40000000-40015000: /lib/ld-2.3.2.so`. `None` if the line is neither, or the end is before the start.
fn parse_mapping(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = parse_hexadecimal(line.trim_ascii_start())?;
    let (end, rest) = parse_hexadecimal(rest.strip_prefix(b"-")?)?;
    if end < start {
        return None;
    }
    let range = Mapping {
        start: Address(start),
        end: Address(end),
        ..Mapping::default()
    };
    if let Some(path) = rest.strip_prefix(b":") {
        let path = trimmed_path(path);
        return Some(Mapping {
            executable: true,
            path,
            ..range
        });
    }
    let (permissions, rest) = rest.strip_prefix(b" ")?.split_first_chunk::<4>()?;
    if !permissions.iter().all(|byte| b"rwxps-".contains(byte)) {
        return None;
    }
    let (offset, rest) = parse_hexadecimal(rest.strip_prefix(b" ")?)?;
    let (_major, rest) = parse_hexadecimal(rest.strip_prefix(b" ")?)?;
    let (_minor, rest) = parse_hexadecimal(rest.strip_prefix(b":")?)?;
    let (_inode, rest) = parse_decimal(rest.strip_prefix(b" ")?)?;
    if !matches!(rest.first(), None | Some(b' ')) {
        return None;
    }
    Some(Mapping {
        offset,
        executable: permissions[2] == b'x',
        path: trimmed_path(rest),
        ..range
    })
}

fn trimmed_path(text: &[u8]) -> String {
    replace_unprintable(&String::from_utf8_lossy(text.trim_ascii())).into_owned()
}

/// Sorts the mappings by address, drops those that overlap an earlier one, with a warning, and sets the build ids,
/// which are given as (path, build id).
pub(super) fn arrange(
    mut mappings: Vec<Mapping>,
    build_ids: Vec<(String, String)>,
    warnings: &mut Vec<String>,
) -> Vec<Mapping> {
    mappings.sort_by_key(|mapping| mapping.start);
    let count = mappings.len();
    let mut end = Address(0);
    mappings.retain(|mapping| {
        let keep = mapping.start >= end;
        if keep {
            end = mapping.end;
        }
        keep
    });
    if mappings.len() < count {
        warnings.push(format!(
            "{} mappings overlap others and are left out",
            count - mappings.len()
        ));
    }
    let build_ids: std::collections::HashMap<String, String> = build_ids.into_iter().collect();
    for mapping in &mut mappings {
        mapping.build_id = build_ids.get(&mapping.path).cloned();
    }
    mappings
}
