//! Names of processes: that of the program's file, of the process (`/proc/PID/comm`) or of its first argument.

use std::fs;
use std::path::Path;

use memprof_ptrace::read_proc_text;
use memprof_report::program_link;

/// Parses `NAME/PID`, and returns the pid if that process has the name. `None` if the text is not of that form.
///
/// # Errors
/// The process has another name, or no such process runs.
pub(crate) fn parse_named_pid(text: &str) -> Option<Result<u32, String>> {
    let (name, pid) = text.split_once('/')?;
    let pid = pid.parse().ok().filter(|_| !name.is_empty())?;
    Some(match has_name(pid, name) {
        true => Ok(pid),
        false => Err(format!("process {pid} is not called {name}")),
    })
}

/// Returns the pids of the processes that [`has_name`] accepts for a name, in ascending order, without this process.
pub(crate) fn pids_with_name(name: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids
        .filter(|pid| *pid != std::process::id() && has_name(*pid, name))
        .collect();
    pids.sort_unstable();
    pids
}

/// Returns whether a process has this name: as its name in the kernel, or as the file name of its program or first
/// argument.
pub(crate) fn has_name(pid: u32, name: &str) -> bool {
    let dir = Path::new("/proc").join(pid.to_string());
    let comm = || read_proc_text(dir.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let program = || fs::read_link(dir.join("exe")).is_ok_and(|file| has_file_name(&file, name));
    let first_argument = || {
        let line = fs::read(dir.join("cmdline")).unwrap_or_default();
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        has_file_name(Path::new(&*String::from_utf8_lossy(first)), name)
    };
    comm() || program() || first_argument()
}

/// Returns the name of a host for people: `name`, or the name of the link by which the program was started if `name` is
/// only that of the program's file.
pub(crate) fn host_display_name(pid: u32, name: String) -> String {
    match program_link(pid) {
        Some(link) if has_file_name(Path::new(&link.path), &name) => link.name,
        _ => name,
    }
}

/// Returns the pid and name of a process, for texts: `4711 (nginx)`; the pid alone if it has ended.
pub(crate) fn describe_process(pid: u32) -> String {
    match read_proc_text(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{pid} ({})", name.trim_end()),
        Err(_) => pid.to_string(),
    }
}

/// Returns whether the last component of a path is `name`.
fn has_file_name(file: &Path, name: &str) -> bool {
    file.file_name().is_some_and(|file| file == name)
}
