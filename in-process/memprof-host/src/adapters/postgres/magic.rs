//! The magic block, which states for which version of PostgreSQL a library was built (fmgr.h, `Pg_magic_struct`). Pure:
//! the version is an argument.

use std::ops::RangeInclusive;

/// The block as bytes. Its first four bytes contain the length that counts.
#[repr(C, align(8))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Magic([u8; MAX_BLOCK_BYTES]);

/// Size of the largest block, that of version 18.
const MAX_BLOCK_BYTES: usize = 72;

/// Major versions whose layouts are known. For another version the block of the nearest one is returned, which the
/// server refuses: "Server is version 19, library is version 18."
const KNOWN_MAJORS: RangeInclusive<i32> = 12..=18;

/// `FUNC_MAX_ARGS`, `INDEX_MAX_KEYS` and `NAMEDATALEN` of an unmodified source.
const LIMITS: [i32; 3] = [100, 32, 64];
/// `FLOAT4PASSBYVAL`, up to version 12.
const FLOAT4_BY_VALUE: i32 = 1;
/// `FLOAT8PASSBYVAL` of a 64-bit server.
const FLOAT8_BY_VALUE: i32 = 1;
/// `FMGR_ABI_EXTRA`, since version 15. Servers that are derived from PostgreSQL have another one, and refuse this.
const ABI_EXTRA: &[u8; 32] = b"PostgreSQL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Returns the magic block that a server of `version`, a `server_version_num`, expects. A version beyond the known ones
/// gets the block of the nearest known major version.
pub(super) fn magic_block(version: i32) -> Magic {
    let major = (version / 10_000).clamp(*KNOWN_MAJORS.start(), *KNOWN_MAJORS.end());
    let length = match major {
        // Seven numbers, since version 13 six; since version 15 also the 32 bytes of `ABI_EXTRA`.
        12 => 28,
        13 | 14 => 24,
        15..18 => 56,
        // A null name and a null version follow.
        _ => MAX_BLOCK_BYTES,
    };
    let [args, keys, name] = LIMITS;
    // The block's second number is `PG_VERSION_NUM / 100`.
    let head = [length as i32, major * 100, args, keys, name];
    let float4 = (major < 13).then_some(FLOAT4_BY_VALUE);
    let numbers = head.into_iter().chain(float4).chain([FLOAT8_BY_VALUE]);
    let extra = ABI_EXTRA.iter().filter(|_| major >= 15);
    let bytes = numbers.flat_map(i32::to_ne_bytes).chain(extra.copied());
    let mut magic = Magic([0; MAX_BLOCK_BYTES]);
    for (target, byte) in magic.0.iter_mut().zip(bytes) {
        *target = byte;
    }
    magic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_depends_on_version() {
        let check = |version: i32, numbers: &[i32], has_extra: bool| {
            let Magic(bytes) = magic_block(version);
            let read = |chunk: &[u8]| i32::from_ne_bytes(chunk.try_into().unwrap());
            let (head, tail) = bytes.split_at(4 * numbers.len());
            let actual: Vec<i32> = head.chunks(4).map(read).collect();
            assert_eq!(actual, numbers, "{version}");
            let extra = if has_extra { &ABI_EXTRA[..] } else { &[0; 32] };
            assert_eq!(&tail[..32], extra, "{version}");
            assert!(tail[32..].iter().all(|byte| *byte == 0), "{version}");
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
    fn unknown_version_gets_block_of_nearest() {
        let check =
            |version, nearest| assert_eq!(magic_block(version), magic_block(nearest), "{version}");
        check(190_000, 180_000);
        check(i32::MAX, 180_000);
        check(110_022, 120_000);
        check(0, 120_000);
        check(-1, 120_000);
    }
}
