//! Resident memory of a process, as the kernel counts it.

/// Resident memory of a process as the kernel counts it (`proc_pid_status(5)`), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    pub anonymous: u64,
    pub file: u64,
    pub shared: u64,
    /// Private writable memory that is not resident: never touched, released or swapped out.
    pub nonresident: u64,
    pub thread_count: u64,
}

impl ResidentMemory {
    /// Parses the text of /proc/PID/status. `None` if one of `RssAnon`, `RssFile` and `RssShmem` is missing or
    /// malformed. Other missing fields count as 0 bytes, and as one thread.
    pub(crate) fn parse(status: &str) -> Option<Self> {
        let value = |name: &str| {
            Some(
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))?
                    .trim(),
            )
        };
        let field = |name: &str| -> Option<u64> {
            let kib: u64 = value(name)?.strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        let anonymous = field("RssAnon:")?;
        // Data, heap and anonymous mappings, and the main thread's stack.
        let private = field("VmData:").unwrap_or(0) + field("VmStk:").unwrap_or(0);
        Some(Self {
            anonymous,
            file: field("RssFile:")?,
            shared: field("RssShmem:")?,
            nonresident: private.saturating_sub(anonymous),
            thread_count: value("Threads:")
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
        })
    }

    /// Resident memory in bytes (RSS).
    pub(crate) fn total_bytes(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_status_is_refused() {
        let status =
            "Name:\tx\nRssAnon:\t     100 kB\nRssFile:\t       2 kB\nRssShmem:\t       0 kB\n";
        let expected = ResidentMemory {
            anonymous: 102_400,
            file: 2048,
            thread_count: 1,
            ..ResidentMemory::default()
        };
        assert_eq!(ResidentMemory::parse(status), Some(expected));
        assert_eq!(ResidentMemory::parse("RssAnon: x kB"), None);
        assert_eq!(ResidentMemory::parse(""), None);
    }
}
