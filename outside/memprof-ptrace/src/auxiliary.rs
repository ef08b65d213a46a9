//! Parser of the auxiliary vector of a process (getauxval(3)): values that the kernel passed to its program at
//! execve(2). They are read from /proc/PID/auxv, which the program cannot write to.

use std::fs;
use std::io;

/// Key of the loader's load address; 0 if there is no loader, or if it was executed itself.
pub(crate) const AT_BASE: u64 = 7;
/// Key of the address of the executed file's program headers.
pub(crate) const AT_PHDR: u64 = 3;

/// Key of the address of the vDSO (vdso(7)).
pub(crate) const AT_SYSINFO_EHDR: u64 = 33;

/// Reads the auxiliary vector of the program that a process executes; empty if its main thread has ended.
///
/// # Errors
/// The process has ended, or this user may not read it.
pub(crate) fn read_auxv(pid: u32) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/auxv"))
}

/// Identity of the program that a process executes: its auxiliary vector. With address space layout randomization, each
/// execve(2) chooses other addresses of the stack, the loader and the vDSO.
#[derive(Debug, Default)]
pub(crate) struct ProgramIdentity(Vec<u8>);

impl ProgramIdentity {
    /// Reads the identity of the program that a process executes now. If /proc/PID/auxv cannot be read, the identity is
    /// empty, and [`Self::was_replaced`] returns false for every later program.
    pub(crate) fn for_pid(pid: u32) -> Self {
        Self(read_auxv(pid).unwrap_or_default())
    }

    /// Returns whether process `pid` executes another program by now. False if its auxiliary vector cannot be read now,
    /// or could not be read for this identity.
    pub(crate) fn was_replaced(&self, pid: u32) -> bool {
        let now = Self::for_pid(pid);
        !self.0.is_empty() && !now.0.is_empty() && self.0 != now.0
    }
}

/// Returns the value of a key (`AT_*`) in an auxiliary vector (getauxval(3)), which is a list of pairs of 64-bit
/// numbers, key and value. `None` if the value is 0 or missing.
pub(crate) fn auxv_value(vector: &[u8], key: u64) -> Option<u64> {
    let (entries, _) = vector.as_chunks::<16>();
    let words = entries.iter().map(|entry| {
        let (key, value) = entry.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        (word(key), word(value))
    });
    let mut found = words.filter(|(known, _)| *known == key);
    found
        .next()
        .map(|(_, value)| value)
        .filter(|value| *value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_follows_its_key() {
        let words = [AT_PHDR, 0x40, 6, AT_BASE, AT_BASE, 0x7000, 9, 0, 0, 0];
        let vector: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let check = |key, expected| assert_eq!(auxv_value(&vector, key), expected);
        check(AT_PHDR, Some(0x40));
        check(AT_BASE, Some(0x7000));
        check(9, None);
        check(5, None);
        assert_eq!(auxv_value(&vector[..40], AT_BASE), None);
        assert_eq!(auxv_value(&[], AT_BASE), None);
    }
}
