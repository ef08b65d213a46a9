//! The name by which a running program was started, where its file has several: `redis-server` of Debian is a link to
//! redis-check-rdb.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::profile::Profile;

/// Longest path that the kernel accepts (`PATH_MAX`). The arguments of a process may have gigabytes.
const MAX_PATH_BYTES: u64 = 4096;

/// Another name of a program's file, by which it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramLink {
    /// Path of the file, as in /proc/PID/maps.
    pub path: String,
    /// File name of the link.
    pub name: String,
}

/// Finds the name by which a running program was started, from its first argument in /proc. `None` if this is also the
/// name of the program's file, if the argument is no link to the file, or if the process cannot be read.
pub fn program_link(pid: u32) -> Option<ProgramLink> {
    let proc_dir = PathBuf::from(format!("/proc/{pid}"));
    let path = fs::read_link(proc_dir.join("exe")).ok()?;
    let mut arguments = Vec::new();
    let command_line = File::open(proc_dir.join("cmdline")).ok()?;
    let mut command_line = command_line.take(MAX_PATH_BYTES);
    command_line.read_to_end(&mut arguments).ok()?;
    // Some programs append their state to the name, after a blank.
    let word = arguments.split(|byte| b"\0 ".contains(byte)).next()?;
    let word = Path::new(OsStr::from_bytes(word));
    let name = word.file_name()?;
    if path.file_name() == Some(name) {
        return None;
    }
    // A program that was not started by an absolute path is searched beside its file.
    let directory = match word.is_absolute() {
        true => word.parent()?,
        false => path.parent()?,
    };
    // The paths are those in the root directory of the process, which may be a container's.
    let directory = directory.strip_prefix("/").ok()?;
    let link = fs::metadata(proc_dir.join("root").join(directory).join(name)).ok()?;
    let file = fs::metadata(proc_dir.join("exe")).ok()?;
    let is_same = (link.dev(), link.ino()) == (file.dev(), file.ino());
    is_same.then(|| ProgramLink {
        path: path.to_string_lossy().into_owned(),
        name: name.to_string_lossy().into_owned(),
    })
}

/// Finds the name by which the program of a dump was started: the name of the host process, if the directory of the
/// program's file has a link to the file under this name. `None` if not, if the file has this name itself, or if the
/// dump is not of this `machine`, whose files are searched.
pub(crate) fn program_link_of_dump(
    profile: &Profile,
    machine: Option<&String>,
) -> Option<ProgramLink> {
    if machine.is_none() || profile.origin.machine.as_ref() != machine {
        return None;
    }
    let name = profile.origin.host.as_deref()?;
    let path = &profile.main_file()?.path;
    let file = Path::new(path);
    if name.contains('/') || !file.is_absolute() || file.file_name() == Some(OsStr::new(name)) {
        return None;
    }
    let link = fs::metadata(file.parent()?.join(name)).ok()?;
    let file = fs::metadata(file).ok()?;
    let is_same = (link.dev(), link.ino()) == (file.dev(), file.ino());
    is_same.then(|| ProgramLink {
        path: path.clone(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn link_is_the_name_only_if_it_leads_to_the_program() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("waiter");
        symlink("/bin/sleep", &link).unwrap();
        let check = |first: &OsStr, expected: Option<&str>| {
            let mut child = Command::new(&link).arg0(first).arg("1000").spawn().unwrap();
            // execve(2) closes the pipe for which spawn waits before it sets the command line.
            let command_line = format!("/proc/{}/cmdline", child.id());
            while std::fs::read(&command_line).unwrap().is_empty() {}
            let found = program_link(child.id()).map(|link| link.name);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found.as_deref(), expected, "{first:?}");
        };
        check(link.as_os_str(), Some("waiter"));
        let titled = format!("{} *:6379", link.display());
        check(OsStr::new(&titled), Some("waiter"));
        check(OsStr::new("sleep"), None);
        check(OsStr::new("/nowhere/waiter"), None);
        check(OsStr::new("-bash"), None);
    }
}
