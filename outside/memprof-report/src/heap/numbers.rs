//! Parses numbers in heap dumps, exactly.

use crate::profile::SampleValues;

/// Values `curobjs: curbytes [accumobjs: accumbytes]`, as both formats write them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) objects: i64,
    pub(super) bytes: i64,
    pub(super) accum_objects: i64,
    pub(super) accum_bytes: i64,
}

impl Counts {
    /// Returns whether a value is below 0; only gperftools writes such values.
    pub(super) fn has_negative(self) -> bool {
        let Self {
            objects,
            bytes,
            accum_objects,
            accum_bytes,
        } = self;
        objects.min(bytes).min(accum_objects).min(accum_bytes) < 0
    }

    /// Converts the counts to the values of a sample: accumulated counts are the allocated values, the others those in
    /// use.
    pub(super) fn values(self) -> SampleValues {
        SampleValues([
            self.accum_objects,
            self.accum_bytes,
            self.objects,
            self.bytes,
        ])
    }
}

/// Parses a decimal number without a sign. Returns the number and the text after it; `None` without digits or beyond
/// `i64`.
pub(super) fn parse_decimal(text: &[u8]) -> Option<(i64, &[u8])> {
    let mut number = 0_i64;
    let mut digits = 0;
    while let Some(digit @ b'0'..=b'9') = text.get(digits) {
        number = number
            .checked_mul(10)?
            .checked_add(i64::from(digit - b'0'))?;
        digits += 1;
    }
    (digits > 0).then_some((number, &text[digits..]))
}

/// Parses a decimal number with or without a minus sign. Returns the number and the text after it; `None` without
/// digits or beyond `i64`.
fn parse_signed(text: &[u8]) -> Option<(i64, &[u8])> {
    match text.strip_prefix(b"-") {
        Some(digits) => parse_decimal(digits).map(|(number, rest)| (-number, rest)),
        None => parse_decimal(text),
    }
}

/// Parses a hexadecimal number without `0x`. Returns the number and the text after it; `None` without digits or beyond
/// 64 bits.
pub(super) fn parse_hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let number = text[..digits].iter().try_fold(0_u64, |number, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        // The next digit needs the upper four bits.
        (number >> 60 == 0).then_some(number << 4 | u64::from(digit))
    })?;
    (digits > 0).then_some((number, &text[digits..]))
}

/// Parses `objects: bytes [objects: bytes]`, in which numbers may be negative. Returns the counts and the text after
/// their `]`; `None` if a number or a separator is missing.
pub(super) fn parse_counts(text: &[u8]) -> Option<(Counts, &[u8])> {
    let (objects, rest) = parse_signed(text.trim_ascii_start())?;
    let (bytes, rest) = parse_signed(rest.strip_prefix(b":")?.trim_ascii_start())?;
    let rest = rest.trim_ascii_start().strip_prefix(b"[")?;
    let (accum_objects, rest) = parse_signed(rest.trim_ascii_start())?;
    let (accum_bytes, rest) = parse_signed(rest.strip_prefix(b":")?.trim_ascii_start())?;
    Some((
        Counts {
            objects,
            bytes,
            accum_objects,
            accum_bytes,
        },
        rest.trim_ascii_start().strip_prefix(b"]")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::{Counts, parse_counts, parse_decimal, parse_hexadecimal};

    #[test]
    fn number_out_of_range_is_refused() {
        assert_eq!(
            parse_decimal(b"9223372036854775807:"),
            Some((i64::MAX, &b":"[..]))
        );
        assert_eq!(parse_decimal(b"9223372036854775808"), None);
        assert_eq!(parse_decimal(b"-1"), None);
        assert_eq!(
            parse_hexadecimal(b"ffffffffffffffff "),
            Some((u64::MAX, &b" "[..]))
        );
        assert_eq!(parse_hexadecimal(b"10000000000000000"), None);
    }

    #[test]
    fn counts_of_both_formats_are_parsed() {
        let expected = Counts {
            objects: 1,
            bytes: 64,
            accum_objects: 2,
            accum_bytes: 128,
        };
        assert_eq!(parse_counts(b"1: 64 [2: 128]"), Some((expected, &b""[..])));
        assert_eq!(
            parse_counts(b"     1:       64 [     2:      128] @ 0x1"),
            Some((expected, &b" @ 0x1"[..]))
        );
        assert_eq!(
            parse_counts(b"1: 64 [ 2: 128 ]"),
            Some((expected, &b""[..]))
        );
        assert_eq!(parse_counts(b"1: 64 [2: 128"), None);
        let negative = parse_counts(b"    -8: 520093696 [     8: 536870912] @");
        assert!(negative.is_some_and(|(counts, _)| counts.objects == -8 && counts.has_negative()));
        assert_eq!(parse_counts(b"--8: 64 [2: 128]"), None);
    }
}
