//! Sources of symbols: files, directories and a running process.

use std::path::PathBuf;

use crate::program_link::{ProgramLink, program_link};

/// Sources of symbols. The default has none: every function is shown as an offset.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Replaces the main program's file.
    pub binary: Option<PathBuf>,
    /// Directories below which the mappings' paths are opened, in order, such as `/proc/PID/root` and `/`.
    pub roots: Vec<PathBuf>,
    /// Directory of binaries from another machine, found by path, by file name or by build id.
    pub binary_root: Option<PathBuf>,
    /// Name of this machine. A profile of another machine is symbolized from `binary_root` only, and only with
    /// equal build ids.
    pub machine: Option<String>,
    /// Running process whose JIT compiler provides names.
    pub pid: Option<u32>,
    /// Other name of the main program's file, by which it was started.
    pub link: Option<ProgramLink>,
    /// Symbolizes despite different build ids.
    pub force: bool,
}

impl Sources {
    /// Creates the sources for a running process or, without `pid`, for one that ran on this machine. Reads the name of
    /// this machine and, in /proc, whether the program's file was deleted and by which name it was started.
    pub fn for_process(pid: Option<u32>) -> Self {
        let root = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
        let machine = rustix::system::uname();
        Self {
            binary: pid.and_then(path_of_deleted_binary),
            roots: root.into_iter().chain([PathBuf::from("/")]).collect(),
            binary_root: None,
            machine: Some(machine.nodename().to_string_lossy().into_owned()),
            pid,
            link: pid.and_then(program_link),
            force: false,
        }
    }
}

/// Returns `/proc/PID/exe`, at which the kernel still has the main program of a process, if the program's file was
/// deleted or replaced. `None` if the file is still there, or /proc does not show the process.
fn path_of_deleted_binary(pid: u32) -> Option<PathBuf> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let target = std::fs::read_link(&exe).ok()?;
    let is_deleted = target.to_string_lossy().ends_with(" (deleted)");
    is_deleted.then_some(exe)
}
