//! The door of a Java virtual machine: HotSpot's attach protocol, by which `jcmd` loads agents. Nothing stands
//! still, and no right to trace is needed: HotSpot lets in its own user, and root.
//!
//! `open.rs` says when it is open: where it is not, or where it does not lead to the plugin, the way by a
//! borrowed thread is taken, which can also say why the plugin did not start.

mod open;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::attachment::Attachment;
use crate::error::Error;
use crate::plugin::{ENTRY_NAME, Plugin};

/// `AttachOperation::arg_length_max`, in bytes.
const LONGEST: usize = 1024;
/// Until the plugin is loaded: as long as for a borrowed thread.
const LOADING: Duration = Duration::from_secs(60);

/// Has the JVM load the plugin, and start it. False: it has no door, or did not do it.
pub(crate) fn attach(pid: u32, plugin: &Plugin, attachment: &Attachment) -> Result<bool, Error> {
    let options = format!("{ENTRY_NAME} {}", attachment.to_toml());
    let fits = options.len() <= LONGEST && plugin.path.as_os_str().len() <= LONGEST;
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else {
        return Ok(false);
    };
    if !fits || !plugin.has_same_path(pid) || plugin.is_mapped_from_elsewhere(&maps) {
        return Ok(false);
    }
    let Some(mut jvm) = open::open(pid, &maps) else {
        return Ok(false);
    };
    if ask_to_load(&mut jvm, &plugin.path, &options).is_err() {
        return Ok(false);
    }
    let mut reply = String::new();
    let read = jvm.read_to_string(&mut reply);
    let why = "the JVM did not say whether it loaded the plugin; `memprof ps` shows whether it is a host now";
    read.map_err(Error::io(why))?;
    Ok(is_loaded(&reply))
}

/// Version 1 of the protocol: texts that end with NUL. "true": the path is absolute.
fn ask_to_load(jvm: &mut UnixStream, plugin: &Path, options: &str) -> std::io::Result<()> {
    jvm.set_read_timeout(Some(LOADING))?;
    let words = [b"1", b"load".as_slice(), plugin.as_os_str().as_bytes()];
    let words = words.into_iter().chain([b"true", options.as_bytes()]);
    let request: Vec<u8> = words.flat_map(|word| [word, b"\0"].concat()).collect();
    jvm.write_all(&request)
}

/// The first line is the protocol's own code, the second what `Agent_OnAttach` returned, bare before Java 9.
fn is_loaded(reply: &str) -> bool {
    let mut lines = reply.lines();
    let protocol = lines.next();
    let agent = lines.next();
    protocol == Some("0") && matches!(agent, Some("0" | "return code: 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_java_8_and_17() {
        assert!(is_loaded("0\n0\n"));
        assert!(is_loaded("0\nreturn code: 0\n"));
        assert!(!is_loaded("0\nreturn code: 1\n"));
        assert!(!is_loaded("0\n/p.so was not loaded.\n/p.so: cannot open\n"));
        assert!(!is_loaded("101\n"));
        assert!(!is_loaded(""));
    }
}
