//! Checksum of memprof's dumps: CRC-32 of all lines from the header on except the checksum's own, each ended by a
//! newline and without carriage returns.

use flate2::Crc;

/// Checksum of a dump that is being read.
#[derive(Debug, Default)]
pub(super) struct DumpChecksum {
    crc: Crc,
    /// Lines that are not yet in `crc`: updating it line by line would cost more than reading them.
    lines: Vec<u8>,
    is_announced: bool,
    written: Option<[u8; 8]>,
}

/// Returns whether a line contains or announces a checksum. Tools that rewrite a dump remove both kinds of line.
pub(super) fn is_checksum_line(line: &[u8]) -> bool {
    line == ANNOUNCEMENT || checksum_digits(line).is_some()
}

/// Returns whether a line contains a checksum, rather than announces one.
pub(super) fn has_checksum(line: &[u8]) -> bool {
    checksum_digits(line).is_some()
}

/// Line before the mappings that announces a checksum, so that a dump truncated in the mappings is detected.
const ANNOUNCEMENT: &[u8] = b"# memprof 2";

/// Digits of `# checksum: crc32 cbf43926`. `None` for other lines.
fn checksum_digits(line: &[u8]) -> Option<[u8; 8]> {
    let digits = line.strip_prefix(b"# checksum: crc32 ")?;
    digits.try_into().ok()
}

/// Bytes of lines after which the CRC is updated.
const BATCH_BYTES: usize = 16 << 10;

impl DumpChecksum {
    /// Adds a line, given without its newline and carriage return, to the checksum. The first line that contains a
    /// checksum is not added; its value is stored for [`is_mismatch`](Self::is_mismatch).
    pub(super) fn add_line(&mut self, line: &[u8]) {
        if self.written.is_none()
            && let Some(value) = checksum_digits(line)
        {
            self.written = Some(value);
            return;
        }
        self.is_announced |= line == ANNOUNCEMENT;
        self.lines.extend_from_slice(line);
        self.lines.push(b'\n');
        if self.lines.len() >= BATCH_BYTES {
            self.update_crc();
        }
    }

    /// Updates the CRC with the pending lines and clears them. Carriage returns do not count.
    fn update_crc(&mut self) {
        let mut rest = &self.lines[..];
        while let Some(index) = memchr::memchr(b'\r', rest) {
            self.crc.update(&rest[..index]);
            rest = &rest[index + 1..];
        }
        self.crc.update(rest);
        self.lines.clear();
    }

    /// Formats the comment with the checksum of the lines so far, without a newline: `# checksum: crc32 cbf43926`.
    pub(super) fn format_comment(&mut self) -> String {
        self.update_crc();
        format!("# checksum: crc32 {:08x}", self.crc.sum())
    }

    /// Returns whether the lines so far differ from the checksum that the dump contains, or the dump announces a
    /// checksum but does not contain one. False for a dump with neither.
    pub(super) fn is_mismatch(&mut self) -> bool {
        self.update_crc();
        match self.written {
            Some(written) => written != *format!("{:08x}", self.crc.sum()).as_bytes(),
            None => self.is_announced,
        }
    }
}
