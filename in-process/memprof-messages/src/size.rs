//! Parses and formats sizes in bytes, as people write them.

/// First letter of each unit, and its size in bytes. `K`, `KB` and `KiB` are all 1024 bytes.
const UNITS: [(char, u64); 5] = [
    ('B', 1),
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

/// Examples of sizes, for help texts and errors.
pub const SIZE_EXAMPLE: &str = "64KiB, 8MiB or 4GiB (K, KB and KiB are all 1024 bytes)";

/// Parses a size into bytes: `64KiB`, `8 MB`, `4G`, `512B`, or a number of bytes. `None` if the text is not a size, or
/// if the bytes exceed 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        unit => unit_bytes(unit)?,
    };
    let digits = digits.trim_end();
    // `parse` would also accept a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse::<u64>().ok().filter(|_| is_number)?;
    count.checked_mul(factor)
}

/// Formats a size for a configuration, in the largest unit that divides it: `64KiB`.
pub fn format_size(bytes: u64) -> String {
    let fits = |(_, factor): &&(char, u64)| bytes != 0 && bytes.is_multiple_of(*factor);
    match UNITS.iter().rev().find(fits) {
        Some(('B', _)) | None => format!("{bytes}B"),
        Some((letter, factor)) => format!("{}{letter}iB", bytes / factor),
    }
}

/// Returns whether the text ends with a letter, as a size with a unit does.
pub fn has_unit(text: &str) -> bool {
    text.ends_with(|letter: char| letter.is_ascii_alphabetic())
}

/// Returns the size of a unit in bytes. `k`, `KB` and `KiB` are the same unit. `None` if the unit is unknown.
fn unit_bytes(unit: &str) -> Option<u64> {
    let mut letters = unit.chars();
    let first = letters.next()?.to_ascii_uppercase();
    let (_, factor) = UNITS.iter().find(|(letter, _)| *letter == first)?;
    let is_whole = match letters.as_str() {
        "" => true,
        "b" | "B" | "ib" | "iB" | "IB" => first != 'B',
        _ => false,
    };
    is_whole.then_some(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_size_accepts_units() {
        let check = |text: &str, expected| assert_eq!(parse_size(text), Some(expected), "{text}");
        check("0", 0);
        check("4096", 4096);
        check("512B", 512);
        for text in ["64K", "64k", "64KB", "64kb", "64KiB", "64kib", "64 KiB"] {
            check(text, 64 << 10);
        }
        check("1 GB", 1 << 30);
        check("4G", 4 << 30);
        check("8MiB", 8 << 20);
        check("1TiB", 1 << 40);
    }

    #[test]
    fn parse_size_refuses_other_texts() {
        for text in [
            "",
            "KiB",
            "4 parsecs",
            "4GG",
            "4BB",
            "4Bi",
            "-4GiB",
            "+4GiB",
            "1.5GiB",
            "4Gi B",
            "8%",
            "0x10",
            "99999999999GiB",
            "4 GiB ",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn formatted_size_parses_to_same_bytes() {
        let check = |bytes: u64, expected: &str| {
            assert_eq!(format_size(bytes), expected);
            assert_eq!(parse_size(expected), Some(bytes));
        };
        check(0, "0B");
        check(1, "1B");
        check(65536, "64KiB");
        check(65537, "65537B");
        check(3 << 40, "3TiB");
        check(u64::MAX, "18446744073709551615B");
    }

    #[test]
    fn has_unit_is_false_for_number() {
        assert!(!has_unit("4096"));
        assert!(has_unit("4096B"));
    }
}
