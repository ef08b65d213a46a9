//! Where a server lives that is another user's, or gives up being root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::dist::dist;
use crate::host::TEST_TIMEOUT;
use crate::memprof::memprof;
use crate::processes::NOBODY;

/// A directory that all users can write to, with a copy of the plugin that all users can load.
pub(crate) fn open_place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o1777)).unwrap();
    copy_of_the_plugin(&plugin(place.path()));
    place
}

pub(crate) fn plugin(place: &Path) -> PathBuf {
    place.join("memory_profile.so")
}

/// A text of hosts-examples, whose paths are those that a package has, with those of `place`.
pub(crate) fn in_place(place: &Path, text: &str) -> String {
    let place = place.display().to_string();
    ["/usr/lib/memprof", "/etc/memprof"]
        .iter()
        .fold(text.to_owned(), |text, directory| {
            text.replace(directory, &place)
        })
}

pub(crate) fn copy_of_the_plugin(path: &Path) {
    copy_of("memory_profile.so", path);
}

/// Copies a plugin to `path`, executable by every user.
pub(crate) fn copy_of(plugin: &str, path: &Path) {
    fs::copy(dist("plugins").join(plugin), path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Copies a program that a test runs, by another process: a child that a test beside this one forks would have the copy
/// open for writing, and the kernel executes no such file (ETXTBSY).
pub(crate) fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success());
}

/// Runs a command as the user nobody if root starts it: some servers insist on not being root.
pub(crate) fn not_as_root(command: &mut Command) -> &mut Command {
    match geteuid().is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}

/// Makes the user of [`not_as_root`] the owner of a file or directory.
pub(crate) fn give(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Waits until `are` accepts the pids of the hosts with sockets in `sockets`, and returns these pids.
pub(crate) fn wait_for_hosts(sockets: &Path, are: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let listing = memprof(sockets, &["ps", "--json"]).json();
        let hosts = listing["hosts"].as_array().unwrap().iter();
        let own = hosts.filter(|host| {
            let socket = host["socket"].as_str().unwrap();
            Path::new(socket).parent() == Some(sockets)
        });
        let pids: Vec<u32> = own
            .map(|host| u32::try_from(host["pid"].as_u64().unwrap()).unwrap())
            .collect();
        if are(&pids) {
            return pids;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{listing:#}");
        testkit::pause();
    }
}
