//! Resident memory of a process, and its text in a table.

use std::fs::File;
use std::io::Read;

/// Bytes for /proc/PID/statm: seven numbers of up to 20 digits.
const STATM_SIZE: usize = 160;

/// Returns the resident memory of a process in bytes; `None` if it has ended.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    let mut statm = [0; STATM_SIZE];
    let mut file = File::open(format!("/proc/{pid}/statm")).ok()?;
    let length = file.read(&mut statm).ok()?;
    let statm = str::from_utf8(&statm[..length]).ok()?;
    // The fields are `size` and `resident`, in pages (proc_pid_statm(5)).
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns the size with three digits and a letter, as top(1) shows it: `1.31G`, `694M`.
pub(super) fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // From 999.5 on, a value would be rounded to four digits.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    // From 9.995 and 99.95 on, a value would be rounded to four digits with another decimal place.
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, expected) in [
            (0, "0"),
            (999, "999"),
            (1023, "1.00K"),
            (28 << 10, "28.0K"),
            (694 << 20, "694M"),
            (1000 << 20, "0.98G"),
            (1341 << 20, "1.31G"),
            (20 << 40, "20.0T"),
        ] {
            assert_eq!(short_size(bytes), expected);
        }
    }
}
