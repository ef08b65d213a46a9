//! The magic block, by which PostgreSQL knows for which of its versions a library was made (fmgr.h,
//! `Pg_magic_struct`). Pure: of the server it knows only the version.

use std::ops::RangeInclusive;

/// The block as bytes; only the first of them count, which the first four bytes number.
#[repr(C, align(8))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Magic([u8; SIZE]);

/// The largest one, of version 18.
const SIZE: usize = 72;

/// The major versions whose layouts are known. Another one gets the block of the nearest, which it refuses: "Server is
/// version 19, library is version 18."
const KNOWN: RangeInclusive<i32> = 12..=18;

/// `FUNC_MAX_ARGS`, `INDEX_MAX_KEYS` and `NAMEDATALEN`, as they are unless the source is changed.
const LIMITS: [i32; 3] = [100, 32, 64];
/// `FLOAT4PASSBYVAL`, up to version 12.
const FLOAT4_BY_VALUE: i32 = 1;
/// `FLOAT8PASSBYVAL` of a 64-bit server.
const FLOAT8_BY_VALUE: i32 = 1;
/// `FMGR_ABI_EXTRA`, since version 15. Servers that were derived from PostgreSQL have another one, and refuse this.
const EXTRA: &[u8; 32] = b"PostgreSQL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The block for a server of `version`, its `server_version_num`.
pub(super) fn magic(version: i32) -> Magic {
    let major = (version / 10_000).clamp(*KNOWN.start(), *KNOWN.end());
    let length = match major {
        12 => 28,
        13 | 14 => 24,
        15..18 => 56,
        // A name and a version follow, both null.
        _ => SIZE,
    };
    let [args, keys, name] = LIMITS;
    let head = [length as i32, major * 100, args, keys, name];
    let float4 = (major < 13).then_some(FLOAT4_BY_VALUE);
    let numbers = head.into_iter().chain(float4).chain([FLOAT8_BY_VALUE]);
    let extra = EXTRA.iter().filter(|_| major >= 15);
    let bytes = numbers.flat_map(i32::to_ne_bytes).chain(extra.copied());
    let mut magic = Magic([0; SIZE]);
    for (to, byte) in magic.0.iter_mut().zip(bytes) {
        *to = byte;
    }
    magic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_versions() {
        let check = |version: i32, numbers: &[i32], has_extra: bool| {
            let Magic(bytes) = magic(version);
            let read = |chunk: &[u8]| i32::from_ne_bytes(chunk.try_into().unwrap());
            let (head, rest) = bytes.split_at(4 * numbers.len());
            let found: Vec<i32> = head.chunks(4).map(read).collect();
            assert_eq!(found, numbers, "{version}");
            let extra = if has_extra { &EXTRA[..] } else { &[0; 32] };
            assert_eq!(&rest[..32], extra, "{version}");
            assert!(rest[32..].iter().all(|byte| *byte == 0), "{version}");
        };
        check(120_020, &[28, 1200, 100, 32, 64, 1, 1], false);
        check(130_016, &[24, 1300, 100, 32, 64, 1], false);
        check(140_013, &[24, 1400, 100, 32, 64, 1], false);
        check(150_018, &[56, 1500, 100, 32, 64, 1], true);
        check(160_004, &[56, 1600, 100, 32, 64, 1], true);
        check(170_000, &[56, 1700, 100, 32, 64, 1], true);
        check(180_003, &[72, 1800, 100, 32, 64, 1], true);
    }

    #[test]
    fn other_versions_get_a_block_that_they_refuse() {
        let check = |version, nearest| assert_eq!(magic(version), magic(nearest), "{version}");
        check(190_000, 180_000);
        check(i32::MAX, 180_000);
        check(110_022, 120_000);
        check(0, 120_000);
        check(-1, 120_000);
    }
}
