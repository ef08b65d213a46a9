//! The door of a Node: its inspector, which opens on SIGUSR1, and has its JavaScript load the plugin as an addon.
//! Nothing stands still, and no right to trace is needed: only that to send it a signal.
//!
//! An open inspector obeys every user of the machine, so it is used where somebody asks for it, and is closed
//! again. The expression that loads the plugin does that too: also where this program is killed meanwhile.

mod connection;
mod inspector;
mod listener;
mod load_script;
mod program;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::Refusal;
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::attachment::Attachment;
use crate::error::{Error, InspectorError};
use crate::outcome::{AttachOutcome, InspectorPort};
use crate::plugin::Plugin;

use inspector::Inspector;
use listener::{Listener, listeners};
use load_script::LoadScript;

/// Node's own choice of a port.
const PORT: u16 = 9229;
/// How long a Node may take to open its inspector. It does so between two steps of its JavaScript.
const OPENING: Duration = Duration::from_secs(5);
/// When it is taken for one that had opened it before, and does nothing on the signal: its ports are the
/// program's too, which are better not asked.
const HAS_DONE_NOTHING: Duration = Duration::from_secs(1);
/// How long its JavaScript may take to answer.
const ANSWERING: Duration = Duration::from_secs(10);
/// How long it may take to close its inspector.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a call is waited for that the signal would disturb.
const MOMENT: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What to do about a refusal, where anything can be done: a Node that this user may not trace has another way in.
pub fn remedy(pid: u32, refusal: &Refusal) -> Option<String> {
    let remedy = refusal.remedy();
    match refusal {
        Refusal::Denied { .. } if program::require_node(pid).is_ok() => {
            let remedy = remedy.map(|remedy| format!("{remedy}; or "));
            let remedy = remedy.unwrap_or_default();
            Some(format!(
                "{remedy}have this Node load the plugin itself: memprof attach --node-inspector {pid}"
            ))
        }
        _ => remedy,
    }
}

/// Has a Node load the plugin through its inspector, and start it.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn attach_by_node_inspector(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, Error> {
    let process = program::require_node(pid)?;
    require_same_network(pid)?;
    let path = plugin.path_in_target(pid)?;
    let door = open(pid, &process)?;
    let expression = LoadScript {
        path,
        toml: &attachment.to_toml(),
        patience: ANSWERING,
        closes: !door.was_open,
    };
    let address = door.listener.address;
    let loaded = door.inspector.evaluate(&expression.to_string(), ANSWERING);
    if let Err(LoadFailure::Late) = loaded {
        let was_opened = !door.was_open;
        return Err(InspectorError::Late {
            address,
            was_opened,
        }
        .into());
    }
    let port = door.wait_until_closed(pid);
    match loaded {
        Ok(()) => Ok(AttachOutcome::ByNode { address, port }),
        Err(why) if port == InspectorPort::StillOpen => Err(Error::NotLoaded(format!(
            "{why}; its inspector is still open at {address}"
        ))),
        Err(why) => Err(Error::NotLoaded(why.to_string())),
    }
}

/// Its inspector would listen where nobody here can connect.
fn require_same_network(pid: u32) -> Result<(), Error> {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    match of(&pid.to_string()) {
        Ok(network) if of("self").is_ok_and(|own| own == network) => Ok(()),
        Ok(_) => Err(InspectorError::OtherNetwork { pid }.into()),
        Err(error) => Err(program::denied(pid, "ns/net", error)),
    }
}

impl Plugin {
    /// Its path, as JavaScript can open it.
    fn path_in_target(&self, pid: u32) -> Result<&str, Error> {
        let path = self.path.to_str().filter(|_| self.has_same_path(pid));
        let hidden = || InspectorError::HiddenPlugin(self.path.display().to_string());
        let path = path.ok_or_else(hidden)?;
        let maps = fs::read(format!("/proc/{pid}/maps"));
        let maps = maps.map_err(|error| program::denied(pid, "maps", error))?;
        match self.is_mapped_from_elsewhere(&maps) {
            true => Err(InspectorError::OtherPlugin.into()),
            false => Ok(path),
        }
    }
}

/// The call of the main thread, which gets the signal, that would fail by it: as long as it lasts, and no longer
/// than a moment.
fn interruptible_call(pid: u32) -> Option<String> {
    let begun = Instant::now();
    loop {
        let call = program::disturbed_call(pid)?;
        if begun.elapsed() > MOMENT {
            return Some(call);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// An open inspector.
#[derive(Debug)]
struct OpenInspector {
    listener: Listener,
    inspector: Inspector,
    was_open: bool,
}

/// Finds the inspector of a Node, or has it opened.
fn open(pid: u32, process: &OwnedFd) -> Result<OpenInspector, Error> {
    let look = || listeners(pid).map_err(|error| program::denied(pid, "fd", error));
    let mut known = look()?;
    let at_its_port = known.iter().find(|known| known.address.port() == PORT);
    if let Some(door) = at_its_port.and_then(|known| OpenInspector::at(known, true)) {
        return Ok(door);
    }
    let before = known.clone();
    if let Some(call) = interruptible_call(pid) {
        let was_open = before
            .iter()
            .find_map(|known| OpenInspector::at(known, true));
        return was_open.ok_or_else(|| InspectorError::Disturbed { call }.into());
    }
    let signalled = pidfd_send_signal(process, Signal::USR1);
    signalled.map_err(|errno| match errno {
        Errno::SRCH => Refusal::Ended.into(),
        errno => Error::io("SIGUSR1")(errno.into()),
    })?;
    let begun = Instant::now();
    let mut not_asked = before.iter();
    while begun.elapsed() < OPENING {
        for listener in look()? {
            if known.contains(&listener) {
                continue;
            }
            if let Some(door) = OpenInspector::at(&listener, false) {
                return Ok(door);
            }
            known.push(listener);
        }
        if begun.elapsed() > HAS_DONE_NOTHING
            && let Some(listener) = not_asked.next()
            && let Some(door) = OpenInspector::at(listener, true)
        {
            return Ok(door);
        }
        thread::sleep(LOOK_AGAIN);
    }
    let is_taken =
        listener::is_port_in_use(PORT) && !before.iter().any(|own| own.address.port() == PORT);
    Err(InspectorError::NotOpened { is_taken }.into())
}

impl OpenInspector {
    fn at(listener: &Listener, was_open: bool) -> Option<Self> {
        Some(Self {
            listener: *listener,
            inspector: Inspector::at(listener.address)?,
            was_open,
        })
    }

    /// Waits until Node has closed it, if that is to be.
    fn wait_until_closed(&self, pid: u32) -> InspectorPort {
        if self.was_open {
            return InspectorPort::WasOpen;
        }
        let begun = Instant::now();
        while begun.elapsed() < CLOSING {
            // A process that has ended has no ports either.
            if listeners(pid).is_ok_and(|open| !open.contains(&self.listener)) {
                return InspectorPort::Closed;
            }
            thread::sleep(LOOK_AGAIN);
        }
        InspectorPort::StillOpen
    }
}

/// Why the plugin is not loaded, as far as the inspector tells.
#[derive(Debug, thiserror::Error)]
enum LoadFailure {
    /// JavaScript does not run.
    #[error("no answer came in time")]
    Late,
    /// The plugin, Node or the connection said so.
    #[error("{0}")]
    Because(String),
}

impl From<io::Error> for LoadFailure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Because(format!("Node's inspector: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use memprof_ptrace::Denial;
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_node_that_may_not_be_traced_has_another_way_in() {
        let denied = Refusal::Denied {
            file: "/proc/PID/mem".to_owned(),
            errno: Errno::EACCES,
            denial: Denial::Yama(1),
        };
        let check = |program: &str, script: &str, refusal: &Refusal, is_named: bool| {
            let mut command = Command::new(program);
            let mut child = command
                .args(["-e", script])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = String::new();
            BufReader::new(child.stdout.take().unwrap())
                .read_line(&mut ready)
                .unwrap();
            let remedy = remedy(child.id(), refusal).unwrap();
            let words = format!(
                "; or have this Node load the plugin itself: memprof attach --node-inspector {}",
                child.id()
            );
            assert_eq!(remedy.ends_with(&words), is_named, "{remedy}");
            assert!(remedy.starts_with(&refusal.remedy().unwrap()), "{remedy}");
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let node = "setInterval(() => {}, 1000); console.log('ready')";
        check("node", node, &denied, true);
        check("node", node, &Refusal::Musl, false);
        let perl = "$| = 1; $SIG{USR1} = sub {}; print qq(ready\n); sleep 1 while 1";
        check("perl", perl, &denied, false);
    }
}
