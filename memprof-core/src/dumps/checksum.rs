//! The checksum in a dump: without one, damage to an address or a path would pass for the truth.
//!
//! CRC-32 (of IEEE 802.3, as in gzip) of all bytes but its own line and but carriage returns, which
//! some ways of copying a text add.

use std::io::{Cursor, Read, Result};

use crc32fast::Hasher;

/// Says, ahead of what may be cut off, that a checksum follows.
pub(crate) const ANNOUNCED: &str = "# memprof 2\n";

/// The line that says it.
fn line(sum: u32) -> String {
    format!("# checksum: crc32 {sum:08x}\n")
}

/// A dump as it is copied: a profile, and text that has the checksum of all of it.
pub(crate) struct ChecksummedDump<R> {
    profile: R,
    sum: Hasher,
    before: String,
    after: String,
    /// What follows the profile, once that was read.
    tail: Option<Cursor<String>>,
}

impl<R: Read> ChecksummedDump<R> {
    /// `profile`, and a tail with the line of the checksum between its two parts.
    pub(crate) fn new(profile: R, [before, after]: [String; 2]) -> Self {
        Self {
            profile,
            sum: Hasher::new(),
            before,
            after,
            tail: None,
        }
    }

    /// The bytes that follow the profile.
    pub(crate) fn tail_len(&self) -> u64 {
        (self.before.len() + line(0).len() + self.after.len()) as u64
    }
}

impl<R: Read> Read for ChecksummedDump<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.tail.is_none() {
            let read = self.profile.read(out)?;
            if read > 0 || out.is_empty() {
                add(&mut self.sum, &out[..read]);
                return Ok(read);
            }
            add(&mut self.sum, self.before.as_bytes());
            add(&mut self.sum, self.after.as_bytes());
            let sum = line(self.sum.clone().finalize());
            let tail = format!("{}{sum}{}", self.before, self.after);
            self.tail = Some(Cursor::new(tail));
        }
        self.tail.as_mut().map_or(Ok(0), |tail| tail.read(out))
    }
}

fn add(sum: &mut Hasher, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(at) = memchr::memchr(b'\r', rest) {
        sum.update(&rest[..at]);
        rest = &rest[at + 1..];
    }
    sum.update(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_of_all_but_its_line() {
        let check = |profile: &str, before: &str, after: &str| {
            let mut sealed =
                ChecksummedDump::new(profile.as_bytes(), [before, after].map(str::to_owned));
            let length = profile.len() as u64 + sealed.tail_len();
            let mut text = String::new();
            sealed.read_to_string(&mut text).unwrap();
            // The check value of CRC-32: that of the digits.
            let line = "# checksum: crc32 cbf43926\n";
            assert_eq!(text, format!("{profile}{before}{line}{after}"));
            assert_eq!(text.len() as u64, length);
        };
        check("1234", "567", "89");
        check("", "123456789", "");
        check("123456789", "", "");
        check("1234\r", "\r567", "89\r\r");
    }
}
