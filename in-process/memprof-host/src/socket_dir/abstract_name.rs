//! Sockets that are no files (unix(7), abstract): for processes that can write nowhere.
//!
//! Such a name belongs to a network namespace and has no owner: who listens and who connects is told by the kernel only
//! (`SO_PEERCRED`). A host calls its own `@memprof-4711-…`; seen from outside it is
//! `/proc/4711/ns/net/@memprof-4711-…`, with the namespace in which it can be connected to.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
#[cfg(any(feature = "adapter-attached", feature = "client"))]
use std::path::PathBuf;

/// What the names of control sockets begin with: a program may listen at abstract sockets of its own.
const PREFIX: &str = "@memprof-";

/// A new name, which nobody can have taken before.
///
/// # Errors
/// The kernel gives no random bytes.
#[cfg(feature = "adapter-attached")]
pub(crate) fn new() -> std::io::Result<PathBuf> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let random = u64::from_ne_bytes(random);
    let pid = std::process::id();
    Ok(PathBuf::from(format!("{PREFIX}{pid}-{random:016x}")))
}

/// The bytes of the name, where a path is one of a control socket.
pub(crate) fn bytes(path: &Path) -> Option<&[u8]> {
    let path = path.as_os_str().as_bytes();
    path.starts_with(PREFIX.as_bytes()).then(|| &path[1..])
}

/// The same name as it is called outside of the process.
#[cfg(feature = "client")]
pub(crate) fn in_process_namespace(process: &Path, name: &Path) -> PathBuf {
    process.join("ns/net").join(name)
}

/// The network namespace and the name's bytes, where a path is what [`in_process_namespace`] makes.
#[cfg(feature = "client")]
pub(crate) fn in_namespace(path: &Path) -> Option<(&Path, &[u8])> {
    let namespace = path.parent()?;
    let is_namespace = namespace.starts_with("/proc") && namespace.ends_with("ns/net");
    let name = path.file_name()?;
    bytes(name.as_ref())
        .filter(|_| is_namespace)
        .map(|name| (namespace, name))
}
