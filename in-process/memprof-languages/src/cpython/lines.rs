//! Tables of line numbers in code objects.

/// Format of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Until 3.9: `Objects/lnotab_notes.txt`.
    Lnotab,
    /// 3.10: PEP 626.
    Ranges,
    /// From 3.11 on: PEP 657, `Objects/locations.md`.
    Locations,
}

/// Returns the source line of the instruction at `offset`, in bytes from the function's first instruction. 0 if the
/// table says that the instruction has no line, or if the line is no 32-bit number; `first`, the function's own line,
/// if the table cannot be read. `byte` reads the byte at an index of the table, which has `len` bytes.
pub(super) fn source_line_at(
    format: LineFormat,
    first: u32,
    len: usize,
    byte: impl Fn(usize) -> Option<u8>,
    offset: usize,
) -> u32 {
    let line = match format {
        LineFormat::Lnotab => line_in_lnotab(first, len, byte, offset),
        LineFormat::Ranges => line_in_ranges(first, len, byte, offset),
        LineFormat::Locations => line_in_locations(first, len, byte, offset),
    };
    u32::try_from(line.unwrap_or(i64::from(first))).unwrap_or(0)
}

/// Reads a byte as a number from -128 to 127.
fn to_signed(byte: u8) -> i64 {
    i64::from(byte.cast_signed())
}

/// Looks up the line of the instruction at byte `offset` in a table of [`LineFormat::Lnotab`]: pairs of a distance in
/// bytes and a signed distance in lines, from line `first` on. `byte` reads the byte at an index of the table, which
/// has `len` bytes. `None` if a byte cannot be read.
fn line_in_lnotab(
    first: u32,
    len: usize,
    byte: impl Fn(usize) -> Option<u8>,
    offset: usize,
) -> Option<i64> {
    let (mut at, mut line) = (0, i64::from(first));
    // Without an incomplete pair at the end.
    for index in (0..len.saturating_sub(1)).step_by(2) {
        at += usize::from(byte(index)?);
        if at > offset {
            // This pair and the following ones belong to later instructions.
            break;
        }
        line += to_signed(byte(index + 1)?);
    }
    Some(line)
}

/// Looks up the line of the instruction at byte `offset` in a table of [`LineFormat::Ranges`]: pairs of a range's
/// length in bytes and a signed distance in lines, from line `first` on. Returns 0 for a range without a line. `byte`
/// reads the byte at an index of the table, which has `len` bytes. `None` if a byte cannot be read.
fn line_in_ranges(
    first: u32,
    len: usize,
    byte: impl Fn(usize) -> Option<u8>,
    offset: usize,
) -> Option<i64> {
    /// Delta of a range without a line.
    const NO_LINE: i64 = -128;
    let (mut at, mut line) = (0, i64::from(first));
    // Without an incomplete pair at the end.
    for index in (0..len.saturating_sub(1)).step_by(2) {
        let delta = to_signed(byte(index + 1)?);
        if delta != NO_LINE {
            line += delta;
        }
        at += usize::from(byte(index)?);
        if at > offset {
            return Some(if delta == NO_LINE { 0 } else { line });
        }
    }
    Some(line)
}

/// Looks up the line of the instruction at byte `offset` in a table of [`LineFormat::Locations`], whose distances count
/// from line `first` on. Returns 0 for a location without a line. `byte` reads the byte at an index of the table, which
/// has `len` bytes. `None` if a byte cannot be read, or if a distance is incomplete or too long.
fn line_in_locations(
    first: u32,
    len: usize,
    byte: impl Fn(usize) -> Option<u8>,
    offset: usize,
) -> Option<i64> {
    /// Bytes of an instruction.
    const UNIT: usize = 2;
    let (mut at, mut line, mut index) = (0, i64::from(first), 0);
    while index < len {
        // First byte of an entry: its highest bit is set; then the kind in 4 bits, and the number of instructions less
        // 1.
        let head = byte(index)?;
        index += 1;
        let kind = head >> 3 & 15;
        line += match kind {
            // With a distance of lines, without or with columns.
            13 | 14 => read_signed_varint(len, &byte, &mut index)?,
            // On one line, which is 0 to 2 lines below.
            10..=12 => i64::from(kind - 10),
            _ => 0,
        };
        // Columns follow, up to the next byte with its highest bit set.
        while index < len && byte(index)? & 128 == 0 {
            index += 1;
        }
        at += usize::from((head & 7) + 1) * UNIT;
        if at > offset {
            // Kind 15 has no line.
            return Some(if kind == 15 { 0 } else { line });
        }
    }
    Some(line)
}

/// Reads a number from the table at `index`, and moves `index` behind the number. Each byte has 6 bits of the number,
/// the lowest ones first, and the bit 64 if another byte follows; the number's lowest bit is the sign. `None` if the
/// number has more than five bytes (30 bits), or if a byte is beyond the table's `len` bytes or cannot be read.
fn read_signed_varint(
    len: usize,
    byte: &impl Fn(usize) -> Option<u8>,
    index: &mut usize,
) -> Option<i64> {
    let mut value = 0_i64;
    for shift in (0..30).step_by(6) {
        if *index >= len {
            return None;
        }
        let next = byte(*index)?;
        *index += 1;
        value |= i64::from(next & 63) << shift;
        if next & 64 == 0 {
            let distance = value >> 1;
            return Some(if value & 1 == 1 { -distance } else { distance });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: LineFormat, table: &[u8], lines: &[(usize, u32)]) {
        for (offset, line) in lines {
            let byte = |index: usize| table.get(index).copied();
            let found = source_line_at(format, 10, table.len(), byte, *offset);
            assert_eq!(found, *line, "{format:?} {offset}");
        }
    }

    #[test]
    fn lines_are_those_of_each_format() {
        // 3.8: line 11 from byte 0 on, 12 from 8 on, 9 from 20 on.
        let table = [0, 1, 8, 1, 12, 253];
        check(
            LineFormat::Lnotab,
            &table,
            &[(0, 11), (7, 11), (8, 12), (20, 9), (500, 9)],
        );
        // 3.10: bytes 0 to 8 are of line 11, 8 to 10 of none, then 9.
        let table = [8, 1, 2, 128, 10, 254];
        check(
            LineFormat::Ranges,
            &table,
            &[(0, 11), (7, 11), (8, 0), (10, 9), (500, 9)],
        );
        // 3.11: short form, one line more in 2 units; long form with -2; none.
        let table = [
            0x80 | 11 << 3 | 1,
            3,
            9,
            0x80 | 14 << 3,
            5,
            1,
            2,
            3,
            0x80 | 15 << 3,
        ];
        check(
            LineFormat::Locations,
            &table,
            &[(0, 11), (3, 11), (4, 9), (6, 0), (500, 9)],
        );
    }

    #[test]
    fn incomplete_or_too_long_distance_gives_line_of_function() {
        let head = 0x80 | 13 << 3;
        let check = |table: &[u8], line| check(LineFormat::Locations, table, &[(0, line)]);
        check(&[head, 64 | 2, 0], 11);
        check(&[head, 64 | 2], 10);
        check(&[head], 10);
        check(&[head, 64 | 2, 64, 64, 64, 0], 11);
        check(&[head, 64 | 2, 64, 64, 64, 64, 0], 10);
    }

    #[test]
    fn random_tables_end() {
        let mut random = 1_u64;
        for _ in 0..2000 {
            let table: [u8; 64] = core::array::from_fn(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as u8
            });
            for format in [
                LineFormat::Lnotab,
                LineFormat::Ranges,
                LineFormat::Locations,
            ] {
                for len in [0, 1, 2, 63, 64, 70] {
                    source_line_at(format, u32::MAX, len, |index| table.get(index).copied(), 40);
                }
            }
        }
    }
}
