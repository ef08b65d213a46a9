//! This machine and its processes, as all profiles of an agent name them.

use std::collections::BTreeMap;

use memprof_host::RunningHost;
use sha2::{Digest, Sha256};

/// Properties of this machine, which all profiles of an agent have in common.
#[derive(Clone, Debug)]
pub(crate) struct MachineInfo {
    /// Host name.
    pub(crate) name: String,
    /// Id of this machine, container and boot, in hexadecimal: machines may share a name.
    pub(crate) id: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Milliseconds by which this machine's clock is ahead of the store's. `None` if unknown.
    pub(crate) clock_offset_ms: Option<i64>,
}

impl MachineInfo {
    /// Reads this machine's name and id. `labels` are stored in each profile of this machine. The offset of its clock
    /// is unknown at first.
    pub(crate) fn read(labels: BTreeMap<String, String>) -> Self {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Self {
            name,
            id: read_machine_id(),
            labels,
            clock_offset_ms: None,
        }
    }

    /// Returns the key that identifies the host's process across machines and restarts: `HOST/PID.START.ID`, START in
    /// clock ticks since boot (proc(5), starttime), ID that of the machine. The key does not depend on the wall clock
    /// or on attachments. If the process has ended, START is the start time that the host reported.
    pub(crate) fn process_key(&self, host: &RunningHost) -> String {
        let start = read_start_ticks(host.pid).unwrap_or(host.info.started);
        self.process_key_from_start(host.pid, start)
    }

    /// Returns the process key of any process of this machine; `start` is in clock ticks since boot.
    pub(crate) fn process_key_from_start(&self, pid: u32, start: u64) -> String {
        format!("{}/{pid}.{start}.{}", self.name, self.id)
    }
}

/// Returns the id of this machine, container and boot, in hexadecimal: the first 4 bytes of a hash of three things.
/// machine-id(5) is the same in copies of a machine, and the random id of the boot (proc(5), `boot_id`) in the
/// containers of a machine; the pid namespace distinguishes containers.
fn read_machine_id() -> String {
    let files = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
    // A missing file adds nothing to the hash.
    let texts = files.map(|file| std::fs::read(file).unwrap_or_default());
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let mut hash = Sha256::new();
    for text in texts
        .iter()
        .map(Vec::as_slice)
        .chain([namespace.as_os_str().as_encoded_bytes()])
    {
        hash.update(text);
        hash.update([0]);
    }
    let digest = hash.finalize();
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the start of a process, in clock ticks since boot (`starttime` of proc(5), stat). `None` if the process has
/// ended, or the file is malformed.
pub(crate) fn read_start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The program's name may contain any byte; the third field follows its parenthesis. `starttime` is the 22nd.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Returns the resident memory of a process in bytes (proc(5), status). `None` if the process has ended, or the file
/// has no valid value.
pub(crate) fn read_resident_bytes(pid: u32) -> Option<i64> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
