//! The checksum in a dump of memprof's: CRC-32 of all lines from the header on but its own, each ended by
//! a newline and without carriage returns.

use flate2::Crc;

/// Of a dump that is being read.
#[derive(Debug, Default)]
pub(super) struct DumpChecksum {
    found: Crc,
    /// Lines that are not in it yet: of single ones it would cost more than reading them.
    lines: Vec<u8>,
    announced: bool,
    written: Option<[u8; 8]>,
}

/// Whether a line tells of the checksum: what rewrites a dump leaves it out.
pub(super) fn is_about(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line == ANNOUNCEMENT || value(line).is_some()
}

/// Whether a line is that of a checksum.
pub(super) fn is_checksum(line: &[u8]) -> bool {
    value(line).is_some()
}

/// Stands ahead of the mappings, so that no cut behind them takes it away with the checksum.
const ANNOUNCEMENT: &[u8] = b"# memprof 2";

/// The digits of `# checksum: crc32 cbf43926`.
fn value(line: &[u8]) -> Option<[u8; 8]> {
    let digits = line.strip_prefix(b"# checksum: crc32 ")?;
    digits.try_into().ok()
}

/// Bytes of lines that are taken at once.
const TOGETHER: usize = 16 << 10;

impl DumpChecksum {
    pub(super) fn add(&mut self, line: &[u8]) {
        if self.written.is_none()
            && let Some(value) = value(line)
        {
            self.written = Some(value);
            return;
        }
        self.announced |= line == ANNOUNCEMENT;
        self.lines.extend_from_slice(line);
        self.lines.push(b'\n');
        if self.lines.len() >= TOGETHER {
            self.take_lines();
        }
    }

    fn take_lines(&mut self) {
        let mut rest = &self.lines[..];
        while let Some(at) = memchr::memchr(b'\r', rest) {
            self.found.update(&rest[..at]);
            rest = &rest[at + 1..];
        }
        self.found.update(rest);
        self.lines.clear();
    }

    /// The line that tells the checksum of the lines so far.
    pub(super) fn line(&mut self) -> String {
        self.take_lines();
        format!("# checksum: crc32 {:08x}", self.found.sum())
    }

    /// Whether the dump is not as it was written. One without a checksum is not asked.
    pub(super) fn mismatch(&mut self) -> bool {
        self.take_lines();
        match self.written {
            Some(written) => written != *format!("{:08x}", self.found.sum()).as_bytes(),
            None => self.announced,
        }
    }
}
