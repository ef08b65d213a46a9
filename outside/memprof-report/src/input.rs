//! Detects the format of an input, decompresses and parses it.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Quoted, Result};
use crate::file_magic::read_magic;
use crate::limits::Limits;
use crate::profile::Profile;
use crate::{heap, pprof};

/// Reads a heap profile: jemalloc or tcmalloc text, symbolized or not, or pprof; gzip-compressed or not.
///
/// The values are raw: [`unsample`](crate::unsample()) converts them to estimates.
///
/// # Errors
/// The input has no known format, is malformed, exceeds `limits`, or is truncated and `force` is false.
pub fn parse(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Profile> {
    let magic = read_magic(input)?;
    let mut input = Cursor::new(&magic).chain(input);
    if magic.starts_with(&[0x1f, 0x8b]) {
        return parse_gzip(&mut input, limits, force);
    }
    parse_plain(
        &magic,
        &mut LimitedReader::new(&mut input, limits.bytes),
        limits,
        force,
    )
}

/// Parses a compressed profile, within the limits for decompression.
fn parse_gzip(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Profile> {
    let compressed = Cell::new(0);
    let counted = CountingReader {
        input,
        count: &compressed,
    };
    let decompressed = BombGuard {
        input: MultiGzDecoder::new(counted),
        compressed: &compressed,
        count: 0,
        limits,
    };
    let mut input = BufReader::with_capacity(256 << 10, decompressed);
    let magic = read_magic(&mut input)?;
    let mut input = Cursor::new(&magic).chain(input);
    parse_plain(
        &magic,
        &mut LimitedReader::new(&mut input, limits.bytes),
        limits,
        force,
    )
}

/// Detects the format by the first bytes and parses the input.
fn parse_plain(
    magic: &[u8],
    input: &mut LimitedReader<'_>,
    limits: &Limits,
    force: bool,
) -> Result<Profile> {
    let text_starts = [&b"heap_v2/"[..], b"heap profile:", b"--- symbol"];
    let result = if text_starts.iter().any(|start| magic.starts_with(start)) {
        heap::parse(input, limits, force)
    } else if looks_like_pprof(magic) {
        let mut bytes = Vec::new();
        match input.read_to_end(&mut bytes) {
            Ok(_) => pprof::parse(&bytes, limits),
            Err(error) => Err(Error::io("read the pprof profile")(error)),
        }
    } else {
        Err(Error::Unrecognised {
            found: Quoted(magic).to_string(),
        })
    };
    match result {
        Err(Error::Io { source, .. }) if is_limit_error(&source) => Err(Error::Limit {
            what: "decompressed bytes per compressed byte",
            limit: limits.ratio,
        }),
        _ if input.is_exceeded => Err(Error::Limit {
            what: "bytes",
            limit: limits.bytes,
        }),
        result => result,
    }
}

/// Returns whether a file starts like a `profile.proto`, with its first sample type: field 1, a short message of two
/// numbers.
fn looks_like_pprof(magic: &[u8]) -> bool {
    matches!(magic, [0x0a, ..=22, 0x08 | 0x10, ..])
}

/// Reader that ends at a limit and records that it was exceeded.
struct LimitedReader<'a> {
    input: &'a mut dyn BufRead,
    remaining: u64,
    is_exceeded: bool,
}

impl<'a> LimitedReader<'a> {
    fn new(input: &'a mut dyn BufRead, limit: u64) -> Self {
        Self {
            input,
            remaining: limit,
            is_exceeded: false,
        }
    }
}

impl BufRead for LimitedReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let buffer = self.input.fill_buf()?;
        self.is_exceeded |= buffer.len() as u64 > self.remaining;
        Ok(&buffer[..buffer
            .len()
            .min(usize::try_from(self.remaining).unwrap_or(usize::MAX))])
    }

    fn consume(&mut self, amount: usize) {
        self.remaining -= amount as u64;
        self.input.consume(amount);
    }
}

impl Read for LimitedReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

/// Reader that counts the consumed bytes.
struct CountingReader<'a> {
    input: &'a mut dyn BufRead,
    count: &'a Cell<u64>,
}

impl BufRead for CountingReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.count.set(self.count.get() + amount as u64);
        self.input.consume(amount);
    }
}

impl Read for CountingReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

/// Reader of decompressed bytes that fails for a gzip bomb.
struct BombGuard<'a, R> {
    input: R,
    compressed: &'a Cell<u64>,
    count: u64,
    limits: &'a Limits,
}

impl<R: Read> Read for BombGuard<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(out)?;
        self.count += count as u64;
        let max = self
            .compressed
            .get()
            .saturating_mul(self.limits.ratio)
            .max(Limits::RATIO_FLOOR);
        if self.count > max {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "gzip bomb"));
        }
        Ok(count)
    }
}

/// Returns whether [`BombGuard`] caused an error.
fn is_limit_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::QuotaExceeded && error.get_ref().is_some()
}
