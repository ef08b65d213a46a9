//! A host that does all that a host must not.

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

/// What a host does wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    AcceptsNobody,
    EndlessLine,
    Drip,
    /// Each of its texts would do something to a terminal.
    Escapes,
    /// It passes /dev/zero for a dump.
    Device,
    /// It passes a FIFO that nobody closes for a dump.
    Fifo,
}

pub(super) const KINDS: [Misbehaviour; 6] = [
    Misbehaviour::AcceptsNobody,
    Misbehaviour::EndlessLine,
    Misbehaviour::Drip,
    Misbehaviour::Escapes,
    Misbehaviour::Device,
    Misbehaviour::Fifo,
];

/// Sets the clipboard, clears the screen by a C1 character, begins a line, turns the direction.
const TEXT: &str = "\u{1b}]52;c;cm0=\u{7}\u{9b}2J\nPID\r\u{202e}fdp.exe";
/// What is announced for a device: what a disk would feel.
const SIZE: u64 = 1 << 30;

/// Somebody's directory of sockets, removed when dropped.
#[derive(Debug)]
pub(super) struct HostileHosts {
    directory: PathBuf,
    pub(super) sockets: Vec<(Misbehaviour, PathBuf)>,
}

impl HostileHosts {
    /// Opens `count` sockets of each kind, as that user.
    pub(super) fn start(uid: Option<u32>, directory: &Path, count: usize) -> Result<Self> {
        let mut hostile = Self {
            directory: directory.to_owned(),
            sockets: Vec::new(),
        };
        for (number, kind) in (0..count).flat_map(|_| KINDS).enumerate() {
            let socket = directory.join(format!("{}.sock", 4_000_000 + number));
            let (opened, wait) = channel();
            let path = socket.clone();
            // Lives until the process ends, as its connections do.
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

fn serve(
    kind: Misbehaviour,
    uid: Option<u32>,
    path: &Path,
    opened: &Sender<Result<()>>,
) -> Result<()> {
    if let Some(uid) = uid {
        // This thread's alone: the kernel remembers who listens.
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let directory = path.parent().context("it has a directory")?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    if matches!(kind, Misbehaviour::AcceptsNobody) {
        rustix::net::listen(&listener, 0)?;
        let _waits = UnixStream::connect(path)?;
        opened.send(Ok(()))?;
        loop {
            thread::park();
        }
    }
    let dump = dump(kind, path)?;
    opened.send(Ok(()))?;
    for stream in listener.incoming().flatten() {
        let dump = dump.try_clone()?;
        // Whoever asked leaves sooner or later.
        thread::spawn(move || drop(misbehave(kind, stream, &dump)));
    }
    Ok(())
}

/// What is passed for a dump.
fn dump(kind: Misbehaviour, socket: &Path) -> Result<File> {
    match kind {
        Misbehaviour::Device => Ok(File::open("/dev/zero")?),
        Misbehaviour::Fifo => {
            let path = socket.with_extension("fifo");
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            Ok(OpenOptions::new().read(true).write(true).open(path)?)
        }
        _ => {
            let path = socket.with_extension("heap");
            fs::write(&path, TEXT)?;
            Ok(File::open(path)?)
        }
    }
}

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
        let (result, passes) = answer(kind, &request);
        let line = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string();
        send(&stream, &(line + "\n"), passes.then_some(dump))?;
    }
    Ok(())
}

fn answer(kind: Misbehaviour, request: &Value) -> (Value, bool) {
    let message = request["params"]["message"].as_str();
    let body = |body: Value| {
        let reply = json!({ "status_code": 0, "content_type": "application/json", "body": body });
        (reply, false)
    };
    match (request["method"].as_str(), message) {
        (Some("memprof.host"), _) => {
            let host = json!({
                "pid": 1, "name": TEXT, "command": TEXT, "version": TEXT, "started": 0
            });
            (host, false)
        }
        (Some("memprof.plugins"), _) => {
            let plugin = json!({ "id": "memory_profile", "version": TEXT, "messages": [TEXT] });
            (json!([plugin]), false)
        }
        (_, Some("fetch")) => {
            let size = match kind {
                Misbehaviour::Device | Misbehaviour::Fifo => SIZE,
                _ => TEXT.len() as u64,
            };
            let reply = json!({ "status_code": 0, "content_type": TEXT, "size": size });
            (reply, true)
        }
        (_, Some("dump")) => body(json!({
            "status": "ok", "text": TEXT, "id": format!("../../{TEXT}"), "warnings": [TEXT]
        })),
        _ => body(json!({
            "status": "ok", "text": TEXT, "profiling": TEXT,
            "allocators": [{ "kind": TEXT, "version": TEXT }]
        })),
    }
}

fn send(stream: &UnixStream, line: &str, file: Option<&File>) -> io::Result<()> {
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
