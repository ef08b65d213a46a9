//! Hosts that break the protocol of the control socket on purpose.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Uid;
use serde_json::{Value, json};

/// Kind of a host's misbehaviour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    /// Listens with a full queue, and never accepts a connection.
    NeverAccepts,
    /// Sends one line without an end.
    EndlessLine,
    /// Sends a space every 50 ms, and never a line.
    Drip,
    /// Each text of its replies has control characters.
    Escapes,
    /// Passes `/dev/zero` as the file of a dump.
    Device,
    /// Passes a FIFO that is never closed as the file of a dump.
    Fifo,
}

impl Misbehaviour {
    pub(super) const ALL: [Self; 6] = [
        Self::NeverAccepts,
        Self::EndlessLine,
        Self::Drip,
        Self::Escapes,
        Self::Device,
        Self::Fifo,
    ];
}

/// Text that would set the clipboard, clear the screen by a C1 character, overwrite a line and reverse the direction.
const HOSTILE_TEXT: &str = "\u{1b}]52;c;cm0=\u{7}\u{9b}2J\nPID\r\u{202e}fdp.exe";
/// Announced size in bytes of a dump from a device or FIFO, large enough to fill a disk noticeably.
const DEVICE_DUMP_SIZE: u64 = 1 << 30;

/// Hostile hosts, with their directory of sockets, which is removed when dropped.
#[derive(Debug)]
pub(super) struct HostileHosts {
    directory: PathBuf,
    pub(super) sockets: Vec<(Misbehaviour, PathBuf)>,
}

impl HostileHosts {
    /// Opens `count` sockets of each kind in `directory`, as user `uid` if given, and waits until clients can connect.
    /// The hosts are threads of this process, which run until it ends.
    pub(super) fn start(uid: Option<u32>, directory: &Path, count: usize) -> Result<Self> {
        let mut hostile = Self {
            directory: directory.to_owned(),
            sockets: Vec::new(),
        };
        for (number, kind) in (0..count).flat_map(|_| Misbehaviour::ALL).enumerate() {
            // A socket has the host's pid as name.
            let socket = directory.join(format!("{}.sock", 4_000_000 + number));
            let (opened, wait) = channel();
            let path = socket.clone();
            thread::spawn(move || {
                if let Err(error) = serve(kind, uid, &path, &opened) {
                    opened.send(Err(error)).unwrap_or(());
                }
            });
            wait.recv().context("it ended")??;
            hostile.sockets.push((kind, socket));
        }
        Ok(hostile)
    }
}

impl Drop for HostileHosts {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

/// Opens a socket, reports on `opened` that clients can connect, and serves it. Returns only if that fails. `uid` is
/// the user who opens the socket; `None` is this process's user.
fn serve(
    kind: Misbehaviour,
    uid: Option<u32>,
    path: &Path,
    opened: &Sender<Result<()>>,
) -> Result<()> {
    if let Some(uid) = uid {
        // Only this thread changes its user; SO_PEERCRED reports the user that called listen(2) (unix(7)).
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let directory = path.parent().context("it has a directory")?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    if matches!(kind, Misbehaviour::NeverAccepts) {
        rustix::net::listen(&listener, 0)?;
        // A backlog of 0 has room for one connection.
        let _queued = UnixStream::connect(path)?;
        opened.send(Ok(()))?;
        loop {
            thread::park();
        }
    }
    let dump = open_dump(kind, path)?;
    opened.send(Ok(()))?;
    for stream in listener.incoming().flatten() {
        let dump = dump.try_clone()?;
        // The thread ends when its client closes the connection.
        thread::spawn(move || drop(misbehave(kind, stream, &dump)));
    }
    Ok(())
}

/// Opens the file that a host of this kind passes as a dump: a device, a FIFO, or a regular file with [`HOSTILE_TEXT`].
fn open_dump(kind: Misbehaviour, socket: &Path) -> Result<File> {
    match kind {
        Misbehaviour::Device => Ok(File::open("/dev/zero")?),
        Misbehaviour::Fifo => {
            let path = socket.with_extension("fifo");
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // While this process has it open for writing, a reader waits and never sees its end.
            Ok(OpenOptions::new().read(true).write(true).open(path)?)
        }
        _ => {
            let path = socket.with_extension("heap");
            fs::write(&path, HOSTILE_TEXT)?;
            Ok(File::open(path)?)
        }
    }
}

/// Serves one connection with the misbehaviour of this kind until the client closes the connection. `dump` is the file
/// that the host passes as a dump.
fn misbehave(kind: Misbehaviour, mut stream: UnixStream, dump: &File) -> io::Result<()> {
    match kind {
        Misbehaviour::EndlessLine => loop {
            stream.write_all(&[b'x'; 65536])?;
        },
        Misbehaviour::Drip => loop {
            stream.write_all(b" ")?;
            thread::sleep(Duration::from_millis(50));
        },
        _ => {}
    }
    let requests = BufReader::new(stream.try_clone()?).lines();
    for request in requests {
        let request: Value = serde_json::from_str(&request?)?;
        let (result, passes_file) = reply_result(kind, &request);
        let line = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string();
        send_line(&stream, &(line + "\n"), passes_file.then_some(dump))?;
    }
    Ok(())
}

/// Returns the JSON-RPC result for a request, with [`HOSTILE_TEXT`] wherever it has text, and whether the dump's file
/// is passed with it.
fn reply_result(kind: Misbehaviour, request: &Value) -> (Value, bool) {
    let message = request["params"]["message"].as_str();
    let body = |body: Value| {
        let reply = json!({ "status_code": 0, "content_type": "application/json", "body": body });
        (reply, false)
    };
    match (request["method"].as_str(), message) {
        (Some("memprof.host"), _) => {
            let host = json!({
                "pid": 1, "name": HOSTILE_TEXT, "command": HOSTILE_TEXT, "version": HOSTILE_TEXT, "started": 0
            });
            (host, false)
        }
        (Some("memprof.plugins"), _) => {
            let plugin = json!({ "id": "memory_profile", "version": HOSTILE_TEXT, "messages": [HOSTILE_TEXT] });
            (json!([plugin]), false)
        }
        (_, Some("fetch")) => {
            let size = match kind {
                Misbehaviour::Device | Misbehaviour::Fifo => DEVICE_DUMP_SIZE,
                _ => HOSTILE_TEXT.len() as u64,
            };
            let reply = json!({ "status_code": 0, "content_type": HOSTILE_TEXT, "size": size });
            (reply, true)
        }
        (_, Some("dump")) => body(json!({
            "status": "ok", "text": HOSTILE_TEXT, "id": format!("../../{HOSTILE_TEXT}"), "warnings": [HOSTILE_TEXT]
        })),
        _ => body(json!({
            "status": "ok", "text": HOSTILE_TEXT, "profiling": HOSTILE_TEXT,
            "allocators": [{ "kind": HOSTILE_TEXT, "version": HOSTILE_TEXT }]
        })),
    }
}

/// Sends a line, with the descriptor of `file` beside it; `None` sends the line alone.
fn send_line(stream: &UnixStream, line: &str, file: Option<&File>) -> io::Result<()> {
    let descriptors: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let parts = [IoSlice::new(line.as_bytes())];
    sendmsg(stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
