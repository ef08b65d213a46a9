//! Attaches through Node.js's inspector: SIGUSR1 opens it, and it makes JavaScript load the plugin as an addon. No
//! thread is stopped, and no right to trace is needed, only the right to send the process a signal.
//!
//! An open inspector obeys every user of the machine. So it is used only at the user's request, and is closed
//! afterwards. The script that loads the plugin closes it, so that this happens even if this program is killed
//! meanwhile.

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
use crate::error::{AttachError, InspectorError, explain_exit_or_exec};
use crate::maps_text::read_maps_text;
use crate::outcome::{AttachOutcome, InspectorPort};
use crate::plugin::Plugin;

use inspector::Inspector;
use listener::{Listener, list_listeners};
use load_script::LoadScript;

/// Port that Node's inspector uses by default.
const DEFAULT_PORT: u16 = 9229;
/// Timeout for Node to open its inspector, which it does between two steps of its JavaScript.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after the signal until, without a new port, the ports that were open before are tried too: one may be an
/// inspector, which then ignores the signal. They may also be the program's own, so they are not tried earlier.
const NO_NEW_PORT_DELAY: Duration = Duration::from_secs(1);
/// Timeout for JavaScript to load the plugin.
const EVALUATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for Node to close its inspector.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the main thread to leave a call that the signal would make fail.
const DISTURBED_CALL_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns how to fix a refusal to attach to a process; `None` if nothing can be done. If the right to trace is missing
/// and the process is a Node, also suggests its inspector, which needs no such right.
pub fn refusal_remedy(pid: u32, refusal: &Refusal) -> Option<String> {
    let remedy = refusal.remedy();
    match refusal {
        Refusal::Denied { .. } if program::open_node_process(pid).is_ok() => {
            let remedy = remedy.map(|remedy| format!("{remedy}; or "));
            let remedy = remedy.unwrap_or_default();
            Some(format!(
                "{remedy}have this Node load the plugin itself: memprof attach --node-inspector {pid}"
            ))
        }
        _ => remedy,
    }
}

/// Makes Node load the plugin through its inspector, and start it. Opens the inspector first if it is closed, and
/// closes it afterwards.
///
/// # Errors
/// The reason why the process was not attached to. The process continues as before.
pub fn attach_by_node_inspector(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, AttachError> {
    explain_exit_or_exec(pid, || load_by_inspector(pid, plugin, attachment))
}

/// Makes Node load the plugin through its inspector, and start it. Opens the inspector first if it is closed; the
/// loading script then closes it. Unlike [`attach_by_node_inspector`], does not watch for the end of the process. Fails
/// with the reason why the plugin was not loaded.
fn load_by_inspector(
    pid: u32,
    plugin: &Plugin,
    attachment: &Attachment,
) -> Result<AttachOutcome, AttachError> {
    let process = program::open_node_process(pid)?;
    require_same_network(pid)?;
    let path = plugin.path_in_target(pid)?;
    let opened = find_or_open_inspector(pid, &process)?;
    let expression = LoadScript {
        path,
        toml: &attachment.to_toml(),
        timeout: EVALUATE_TIMEOUT,
        closes: !opened.was_open,
    };
    let address = opened.listener.address;
    let loaded = opened
        .inspector
        .evaluate(&expression.to_string(), EVALUATE_TIMEOUT);
    if let Err(LoadFailure::Late) = loaded {
        let was_opened = !opened.was_open;
        return Err(InspectorError::Late {
            address,
            was_opened,
        }
        .into());
    }
    let port = opened.wait_until_closed(pid);
    match loaded {
        Ok(()) => Ok(AttachOutcome::ByNode { address, port }),
        Err(error) if port == InspectorPort::StillOpen => Err(AttachError::NotLoaded(format!(
            "{error}; its inspector is still open at {address}"
        ))),
        Err(error) => Err(AttachError::NotLoaded(error.to_string())),
    }
}

/// Fails if the process is in another network namespace, in which its inspector could not be reached from here.
fn require_same_network(pid: u32) -> Result<(), AttachError> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    match namespace(&pid.to_string()) {
        Ok(network) if namespace("self").is_ok_and(|own| own == network) => Ok(()),
        Ok(_) => Err(InspectorError::OtherNetwork { pid }.into()),
        Err(error) => Err(program::proc_error(pid, "ns/net", error)),
    }
}

impl Plugin {
    /// Returns the plugin's path. Fails if the target's JavaScript cannot open it (another root, not UTF-8), or the
    /// target has loaded the plugin from another path.
    fn path_in_target(&self, pid: u32) -> Result<&str, AttachError> {
        let path = self.path.to_str().filter(|_| self.has_same_path(pid));
        let hidden = || InspectorError::HiddenPlugin(self.path.display().to_string());
        let path = path.ok_or_else(hidden)?;
        let maps = read_maps_text(pid);
        let maps = maps.map_err(|error| program::proc_error(pid, "maps", error))?;
        match self.is_mapped_from_elsewhere(&maps) {
            true => Err(InspectorError::OtherPlugin.into()),
            false => Ok(path),
        }
    }
}

/// Waits, for 1 s at most, while the main thread is in a call that SIGUSR1 would make fail. Returns the kernel function
/// of the call if the thread is still in one after that time; else `None`.
fn wait_while_signal_would_disturb(pid: u32) -> Option<String> {
    let start = Instant::now();
    loop {
        let call = program::call_that_signal_would_disturb(pid)?;
        if start.elapsed() > DISTURBED_CALL_TIMEOUT {
            return Some(call);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// An inspector that accepts connections.
#[derive(Debug)]
struct OpenInspector {
    listener: Listener,
    inspector: Inspector,
    /// Whether it was open before the attachment.
    was_open: bool,
}

/// Finds the inspector of a Node process, or sends SIGUSR1 to open it and waits for it. An inspector at the default
/// port is used without the signal.
///
/// The signal is not sent while it would make a call of the main thread fail. Then an open inspector at any port is
/// used, and without one this fails. After the signal, new ports are tried first. Ports that were open before are tried
/// later, because the inspector may already have been open there.
fn find_or_open_inspector(pid: u32, process: &OwnedFd) -> Result<OpenInspector, AttachError> {
    let list = || list_listeners(pid).map_err(|error| program::proc_error(pid, "fd", error));
    let mut known = list()?;
    // An inspector that is open already needs no signal.
    let default = known
        .iter()
        .find(|known| known.address.port() == DEFAULT_PORT);
    if let Some(inspector) = default.and_then(|known| OpenInspector::connect(known, true)) {
        return Ok(inspector);
    }
    let before = known.clone();
    if let Some(call) = wait_while_signal_would_disturb(pid) {
        let was_open = before
            .iter()
            .find_map(|known| OpenInspector::connect(known, true));
        return was_open.ok_or_else(|| InspectorError::Disturbed { call }.into());
    }
    let signalled = pidfd_send_signal(process, Signal::USR1);
    signalled.map_err(|errno| match errno {
        Errno::SRCH => Refusal::Ended.into(),
        errno => AttachError::io_error("SIGUSR1")(errno.into()),
    })?;
    let start = Instant::now();
    let mut untried = before.iter();
    while start.elapsed() < OPEN_TIMEOUT {
        for listener in list()? {
            if known.contains(&listener) {
                continue;
            }
            if let Some(inspector) = OpenInspector::connect(&listener, false) {
                return Ok(inspector);
            }
            known.push(listener);
        }
        if start.elapsed() > NO_NEW_PORT_DELAY
            && let Some(listener) = untried.next()
            && let Some(inspector) = OpenInspector::connect(listener, true)
        {
            return Ok(inspector);
        }
        thread::sleep(POLL_INTERVAL);
    }
    let is_taken = listener::is_port_in_use(DEFAULT_PORT)
        && !before.iter().any(|own| own.address.port() == DEFAULT_PORT);
    Err(InspectorError::NotOpened { is_taken }.into())
}

impl OpenInspector {
    /// Requests the targets of the inspector that may listen at a port. `None` unless an inspector replies within a
    /// second. `was_open` says whether the port was open before the attachment; the result keeps it.
    fn connect(listener: &Listener, was_open: bool) -> Option<Self> {
        Some(Self {
            listener: *listener,
            inspector: Inspector::find(listener.address)?,
            was_open,
        })
    }

    /// Waits until Node has closed the inspector, and returns the state of its port. Does not wait if it was open
    /// before the attachment, and gives up after 5 s.
    fn wait_until_closed(&self, pid: u32) -> InspectorPort {
        if self.was_open {
            return InspectorPort::WasOpen;
        }
        let start = Instant::now();
        while start.elapsed() < CLOSE_TIMEOUT {
            // A process that has ended has no ports either.
            if list_listeners(pid).is_ok_and(|open| !open.contains(&self.listener)) {
                return InspectorPort::Closed;
            }
            thread::sleep(POLL_INTERVAL);
        }
        InspectorPort::StillOpen
    }
}

/// Reason why the plugin was not loaded.
#[derive(Debug, thiserror::Error)]
enum LoadFailure {
    /// JavaScript did not run in time.
    #[error("no answer came in time")]
    Late,
    /// Error text of the plugin, Node or the connection.
    #[error("{0}")]
    Message(String),
}

impl From<io::Error> for LoadFailure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Message(format!("Node's inspector: {error}")),
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
    fn remedy_for_an_untraceable_node_is_its_inspector() {
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
            let remedy = refusal_remedy(child.id(), refusal).unwrap();
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
