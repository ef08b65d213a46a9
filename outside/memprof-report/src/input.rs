//! Detects the format of an input, decompresses and parses it.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Quoted, Result};
use crate::file_magic::read_magic;
use crate::limits::{Limits, reserve_in_steps};
use crate::profile::Profile;
use crate::{heap, pprof};

/// Reads a heap profile: text of jemalloc, tcmalloc or Go, symbolized or not, or pprof; gzip-compressed or not.
///
/// The values are raw: [`unsample`](crate::unsample()) converts them to estimates.
///
/// # Errors
/// The input has no known format, is malformed, exceeds `limits`, is truncated and `force` is false, or holds the dumps
/// of several processes.
pub fn parse_profile(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Profile> {
    let mut profiles = parse_profiles(input, limits, force)?;
    match (profiles.pop(), profiles.len()) {
        (Some(only), 0) => Ok(only),
        (_, others) => Err(Error::Usage(format!(
            "it holds the dumps of {} processes, not of one",
            others + 1
        ))),
    }
}

/// Reads the heap profiles of a file in any known format, which may hold the dumps of several processes, one after the
/// other. Returns at least one profile, with raw values. Fails if the format is unknown or malformed, a limit is
/// exceeded, or the file is truncated and `force` is false.
pub(crate) fn parse_profiles(
    input: &mut dyn BufRead,
    limits: &Limits,
    force: bool,
) -> Result<Vec<Profile>> {
    let magic = read_magic(input)?;
    let mut input = Cursor::new(&magic).chain(input);
    // Magic number of gzip (RFC 1952).
    let mut profiles = match magic.starts_with(&[0x1f, 0x8b]) {
        true => parse_gzip(&mut input, limits, force)?,
        false => parse_plain(
            &magic,
            &mut LimitedReader::new(&mut input, limits.bytes),
            limits,
            force,
        )?,
    };
    profiles.iter_mut().for_each(Profile::mark_missing_stacks);
    Ok(profiles)
}

/// Parses a gzip-compressed profile, within the limits for decompression. If the compressed data is truncated or
/// damaged, fails or, with `force`, reads the part before the damage and adds a warning.
fn parse_gzip(input: &mut dyn BufRead, limits: &Limits, force: bool) -> Result<Vec<Profile>> {
    let compressed = Cell::new(0);
    let damage = Cell::new(None);
    let counted = CountingReader {
        input,
        count: &compressed,
    };
    let decompressed = BombGuard {
        input: DamagedGzipReader {
            input: MultiGzDecoder::new(counted),
            damage: &damage,
            force,
        },
        compressed: &compressed,
        count: 0,
        limits,
    };
    let mut input = BufReader::with_capacity(256 << 10, decompressed);
    let result = read_magic(&mut input).and_then(|magic| {
        let mut input = Cursor::new(&magic).chain(&mut input);
        parse_plain(
            &magic,
            &mut LimitedReader::new(&mut input, limits.bytes),
            limits,
            force,
        )
    });
    let Some(damage) = damage.take() else {
        return result;
    };
    let problem = format!("its gzip data is cut off or damaged ({damage})");
    match result {
        Ok(mut profiles) => {
            // The damage ends the file, so it is the last dump's.
            if let Some(last) = profiles.last_mut() {
                last.warnings.insert(0, problem);
            }
            Ok(profiles)
        }
        // Without `force`, the damage is the error.
        Err(Error::Io { .. }) => Err(Error::Truncated { problem }),
        Err(error) => Err(error),
    }
}

/// Parses uncompressed input: as a text dump if it starts like one, else as a pprof profile. `magic` are the first
/// bytes, which `input` yields again. With `force`, reads the part that is there of a truncated profile.
fn parse_plain(
    magic: &[u8],
    input: &mut LimitedReader<'_>,
    limits: &Limits,
    force: bool,
) -> Result<Vec<Profile>> {
    let result = match heap::starts_dump(magic) {
        true => heap::parse_dumps(input, limits, force),
        false => parse_pprof(magic, input, limits, force).map(|profile| vec![profile]),
    };
    match result {
        Err(Error::Io { source, .. }) if is_bomb_error(&source) => Err(Error::Limit {
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

/// Reads a profile in the format `profile.proto`. Its fields have no order, so only decoding shows whether the input
/// has this format. Stops at the first impossible field, so that a large file of another kind is not read whole. A
/// truncated profile is an error or, with `force`, is read up to its last complete field and gets a warning. `magic`
/// are the first bytes, for the error.
fn parse_pprof(
    magic: &[u8],
    input: &mut LimitedReader<'_>,
    limits: &Limits,
    force: bool,
) -> Result<Profile> {
    let unrecognised = || Error::Unrecognised {
        found: Quoted(magic).to_string(),
    };
    let mut bytes = Vec::new();
    let mut scan = pprof::FieldScan::default();
    loop {
        let chunk = input.fill_buf();
        let chunk = chunk.map_err(Error::failed_to("read the pprof profile"))?;
        if chunk.is_empty() {
            break;
        }
        let length = chunk.len();
        reserve_in_steps(&mut bytes, length);
        bytes.extend_from_slice(chunk);
        input.consume(length);
        if !scan.advance(&bytes) {
            return Err(unrecognised());
        }
    }
    let complete = &bytes[..scan.scanned_bytes()];
    let missing = bytes.len() - complete.len();
    match (missing, force) {
        (0, _) if scan.has_strings() => pprof::parse_uncompressed(complete, limits),
        // Every profile has strings, but a truncated one may lack them.
        (0, _) => Err(unrecognised()),
        _ if !scan.is_likely_profile() => Err(unrecognised()),
        (_, false) => Err(Error::Truncated {
            problem: format!("its last field, after {} bytes, has no end", complete.len()),
        }),
        (_, true) => {
            let profile = pprof::parse_uncompressed(complete, limits);
            let mut profile = profile.map_err(|error| match error {
                Error::Pprof { problem } => Error::malformed_pprof(format!(
                    "it is cut off after {} bytes, and what is there does not suffice: {problem}",
                    bytes.len()
                )),
                error => error,
            })?;
            profile.warnings.push(format!(
                "the pprof profile is truncated: its last field, after {} bytes, has no end",
                complete.len()
            ));
            Ok(profile)
        }
    }
}

/// Reader that ends at a limit and records that it was exceeded.
struct LimitedReader<'a> {
    input: &'a mut dyn BufRead,
    remaining: u64,
    is_exceeded: bool,
}

impl<'a> LimitedReader<'a> {
    /// Creates a reader of up to `limit` bytes of `input`.
    fn new(input: &'a mut dyn BufRead, limit: u64) -> Self {
        Self {
            input,
            remaining: limit,
            is_exceeded: false,
        }
    }
}

impl BufRead for LimitedReader<'_> {
    /// Yields no bytes beyond the limit, and records in `is_exceeded` that the input has more.
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
    /// Fails with `QuotaExceeded` if the decompressed bytes exceed `limits.ratio` times the compressed ones, and
    /// `RATIO_FLOOR`.
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

/// Reader of decompressed bytes that records why the compressed ones cannot be decompressed. With `force`, it ends
/// there; otherwise it fails.
struct DamagedGzipReader<'a, R> {
    input: R,
    damage: &'a Cell<Option<String>>,
    force: bool,
}

impl<R: Read> Read for DamagedGzipReader<'_, R> {
    /// Records damage in `damage`. With `force`, damaged data is taken for the end of the input, else it is an error.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.input.read(out).or_else(|error| {
            let is_damage = matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidData
            );
            if !is_damage {
                return Err(error);
            }
            self.damage.set(Some(error.to_string()));
            match self.force {
                true => Ok(0),
                false => Err(error),
            }
        })
    }
}

/// Returns whether an error is that of [`BombGuard`]. An error of a system call may have the kind `QuotaExceeded` too,
/// but has no inner error.
fn is_bomb_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::QuotaExceeded && error.get_ref().is_some()
}
