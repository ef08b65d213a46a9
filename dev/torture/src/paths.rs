//! Suite `paths`: attempts to make a host read or write outside of its dump directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, send_message, send_successfully};

const SECRET: &str = "heap_v2/1 the secret";

/// Ids in the form of dumps, for files of other kinds.
const LINK: &str = "20200101T000000Z.1.1.00000001";
const FIFO: &str = "20200101T000000Z.1.2.00000002";
const DIRECTORY: &str = "20200101T000000Z.1.3.00000003";
const PROC_LINK: &str = "20200101T000000Z.1.4.00000004";

/// Values for an id; `ID` stands for a valid one.
const IDS: [&str; 27] = [
    "..",
    ".",
    "",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "../secret",
    "../../secret",
    "./ID",
    "ID/",
    "ID/..",
    "ID/../../secret",
    "../dumps/ID",
    "ID.heap",
    ".ID",
    "ID\0",
    "ID\0.heap",
    "\0",
    "ID%00",
    "..%2fsecret",
    "..\\secret",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/proc/thread-self/maps",
    "file:///etc/passwd",
    "*",
    "~root/.profile",
];

/// Messages with arguments that they do not have.
const ARGUMENTS: [(&str, &str); 9] = [
    ("dump", "path=OUTSIDE/x.heap"),
    ("dump", "OUTSIDE/x.heap"),
    ("dump", "dump_dir=OUTSIDE"),
    ("dump", "prefix=../../x"),
    ("dump", "id=../x"),
    ("activate", "dump_dir=OUTSIDE"),
    ("activate", "path=/proc/self/mem"),
    ("stats", "file=OUTSIDE/stats"),
    ("list", "dir=OUTSIDE"),
];

/// Runs the suite `paths`, which has one length, and returns its figures in one line. Fails if a message reads or
/// changes a file outside of the dump directory, or if one of the attacks is accepted.
pub(super) fn run_suite(_: SuiteLength) -> Result<String> {
    let host = HostSetup::default().start()?;
    let mut client = host.client()?;
    let first = send_successfully(&mut client, "dump", "")?;
    let id = first["id"].as_str().context("a dump without an id")?;
    let outside = host.dir().path().join("outside");
    fs::create_dir(&outside)?;
    fs::write(outside.join("secret"), SECRET)?;
    fs::write(host.dir().path().join("secret"), SECRET)?;
    let dumps = host.dir().dump_dir();
    let planted = create_foreign_files(&dumps, &outside)?;
    let before = read_files(&outside)?;

    let mut attacks = 0;
    let mut attack = |message: &str, args: &str| -> Result<()> {
        attacks += 1;
        let reply = send_message(&mut client, message, args)?.to_string();
        ensure!(!reply.contains(SECRET), "{message} {args:?} read outside");
        ensure!(
            reply.contains("\"error\""),
            "{message} {args:?} was accepted: {reply}"
        );
        Ok(())
    };
    for hostile in IDS {
        attack("fetch", &format!("id={}", hostile.replace("ID", id)))?;
    }
    for planted in [LINK, FIFO, DIRECTORY, PROC_LINK] {
        attack("fetch", &format!("id={planted}"))?;
    }
    let outside_name = outside.display().to_string();
    for (message, args) in ARGUMENTS {
        attack(message, &args.replace("OUTSIDE", &outside_name))?;
    }
    // More dumps than are kept by default: retention deletes everything that it takes for a dump.
    for _ in 0..40 {
        send_successfully(&mut client, "dump", "")?;
    }
    ensure!(read_files(&outside)? == before, "something outside changed");
    for path in &planted {
        ensure!(
            path.symlink_metadata().is_ok(),
            "{} was removed",
            path.display()
        );
        if path.is_dir() {
            fs::remove_dir(path)?
        } else {
            fs::remove_file(path)?
        }
    }
    let found = scan_dump_dir(&dumps)?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    Ok(format!(
        "{attacks} attacks: 0 reads and 0 writes outside, {} dumps, all 0600",
        found.complete
    ))
}

/// Creates a link to a file in `outside`, a FIFO, a directory and a link to /proc in the dump directory, with the
/// names of dumps. Returns their paths.
fn create_foreign_files(dumps: &Path, outside: &Path) -> Result<Vec<std::path::PathBuf>> {
    let path = |id: &str| dumps.join(format!("{id}.heap"));
    symlink(outside.join("secret"), path(LINK))?;
    mkfifo(&path(FIFO), Mode::S_IRUSR | Mode::S_IWUSR)?;
    fs::create_dir(path(DIRECTORY))?;
    symlink("/proc/self/environ", path(PROC_LINK))?;
    Ok([LINK, FIFO, DIRECTORY, PROC_LINK].map(path).to_vec())
}

/// Reads every file of a directory: its content and its modification time in seconds, by its name.
fn read_files(directory: &Path) -> Result<BTreeMap<String, (Vec<u8>, i64)>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, (fs::read(entry.path())?, entry.metadata()?.mtime()));
    }
    Ok(files)
}
