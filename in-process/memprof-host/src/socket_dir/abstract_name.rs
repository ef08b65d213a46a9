//! Abstract socket names (unix(7)), for processes that can write to no directory.
//!
//! A name belongs to a network namespace and has no owner: the users at both ends are known only from the kernel
//! (`SO_PEERCRED`). A host names its socket `@memprof-4711-…`. Outside of the process the path is
//! `/proc/4711/ns/net/@memprof-4711-…`, which contains the namespace in which one can connect to it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
#[cfg(any(feature = "adapter-attached", feature = "client"))]
use std::path::PathBuf;

/// Prefix of the names of control sockets. A program may listen at other abstract sockets.
const PREFIX: &str = "@memprof-";

/// Generates an abstract name for a control socket. It contains the pid and 64 random bits, so that it was never used
/// before. Fails with the errors of getrandom(2).
#[cfg(feature = "adapter-attached")]
pub(crate) fn generate_abstract_name() -> std::io::Result<PathBuf> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let random = u64::from_ne_bytes(random);
    let pid = std::process::id();
    Ok(PathBuf::from(format!("{PREFIX}{pid}-{random:016x}")))
}

/// Returns the bytes of an abstract name, without the `@`. `None` if the path is no abstract name of a control socket.
pub(crate) fn abstract_name_bytes(path: &Path) -> Option<&[u8]> {
    let path = path.as_os_str().as_bytes();
    path.starts_with(PREFIX.as_bytes()).then(|| &path[1..])
}

/// Returns the path by which a client names an abstract socket of a process that may be in another network namespace:
/// the abstract name below that namespace's link. `process` is `/proc/PID`.
#[cfg(feature = "client")]
pub(crate) fn path_in_process_namespace(process: &Path, name: &Path) -> PathBuf {
    process.join("ns/net").join(name)
}

/// Splits a path of [`path_in_process_namespace`], `/proc/PID/ns/net/@NAME`, into the namespace and the name's bytes.
/// `None` if it is another path.
#[cfg(feature = "client")]
pub(crate) fn split_namespace(path: &Path) -> Option<(&Path, &[u8])> {
    let namespace = path.parent()?;
    let is_namespace = namespace.starts_with("/proc") && namespace.ends_with("ns/net");
    let name = path.file_name()?;
    abstract_name_bytes(name.as_ref())
        .filter(|_| is_namespace)
        .map(|name| (namespace, name))
}
