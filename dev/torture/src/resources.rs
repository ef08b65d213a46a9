//! Suite `resources`: a host that runs out of a resource, or changes its user or root, dumps completely or names the
//! cause, and survives.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use nix::unistd::{Gid, Uid, chown, geteuid};

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, StressHost, dump, is_out_of_memory, send_successfully};
use super::host_dir::{HostDir, create_private_dir};

/// User id without files.
const UNPRIVILEGED_UID: u32 = 65534;

/// Number of dumps by result: complete ones, and those that failed with the expected error.
#[derive(Debug, Default)]
struct Tally {
    whole: usize,
    named: usize,
}

type Case = (&'static str, fn(SuiteLength, &mut Tally) -> Result<()>);

const CASES: &[Case] = &[
    ("descriptors", check_descriptor_limit),
    ("file size", check_file_size_limit),
    ("address space", check_address_space_limit),
    ("alarms", check_dumps_with_alarms),
    ("main thread gone", check_dump_without_main_thread),
    ("PID namespace", check_dump_in_pid_namespace),
];

const CASES_OF_ROOT: &[Case] = &[
    ("chroot without /proc", check_chroot_without_proc),
    ("uid drop", check_uid_drop),
    ("threads", check_thread_limit),
];

/// Runs the suite `resources`, and returns its figures in one line; users other than root run fewer cases. Fails if a
/// host dies, writes a bad dump, or does not name the cause of an error.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let mut tally = Tally::default();
    let cases_of_root = if geteuid().is_root() {
        CASES_OF_ROOT
    } else {
        eprintln!("not root: without chroot, uid drop and thread limit");
        &[]
    };
    for (name, case) in CASES.iter().chain(cases_of_root) {
        case(length, &mut tally).context(*name)?;
    }
    Ok(format!(
        "{} cases: {} whole dumps, {} named errors, 0 bad files, every host alive",
        CASES.len() + cases_of_root.len(),
        tally.whole,
        tally.named
    ))
}

/// Dumps once, counts the result in `tally`, and returns whether the dump succeeded. The dump may fail because the host
/// has no memory for the request, or with an error whose message contains `expected`; another error is a failure.
fn dump_or_fail_with(expected: &str, client: &mut Client, tally: &mut Tally) -> Result<bool> {
    let reply = match dump(client) {
        Err(error) if is_out_of_memory(&error) => {
            tally.named += 1;
            return Ok(false);
        }
        reply => reply?,
    };
    if reply["status"] == "ok" {
        tally.whole += 1;
        return Ok(true);
    }
    let message = reply["error"]["message"].as_str().context("message")?;
    ensure!(
        message.contains(expected),
        "the cause is not named: {reply}"
    );
    tally.named += 1;
    Ok(false)
}

/// Dumps once, and fails unless the dump succeeds.
fn dump_successfully(client: &mut Client, tally: &mut Tally) -> Result<()> {
    send_successfully(client, "dump", "")?;
    tally.whole += 1;
    Ok(())
}

/// Checks that the host replies on a new connection, that no dump is running, and that its dump directory has no bad
/// files.
fn check_host_and_dumps(host: &mut StressHost, directory: &Path) -> Result<()> {
    host.check_alive()?;
    let status = send_successfully(&mut host.client()?, "status", "")?;
    ensure!(status["busy"] == false, "{status}");
    let found = scan_dump_dir(directory)?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    Ok(())
}

/// Dumps with 0 to 7 descriptors left. Fails unless each dump succeeds or names the cause, and the host survives.
fn check_descriptor_limit(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let mut host = HostSetup::default().start()?;
    let mut client = host.client()?;
    dump_successfully(&mut client, tally).context("before the limit")?;
    for spare in 0..8 {
        host.set_limit(&format!(
            "--nofile={}:1024",
            host.descriptor_count()? + spare
        ))?;
        dump_or_fail_with("(EMFILE)", &mut client, tally)?;
        host.set_limit("--nofile=1024:1024")?;
    }
    dump_successfully(&mut client, tally).context("after the limit")?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps with limits of the file size that are smaller than a dump. Fails unless each dump succeeds or names the cause,
/// and the host survives.
fn check_file_size_limit(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let mut host = HostSetup::default().start()?;
    let mut client = host.client()?;
    for limit in [0, 1, 4096, 16 << 10] {
        host.set_limit(&format!("--fsize={limit}:unlimited"))?;
        dump_or_fail_with("(EFBIG)", &mut client, tally)?;
    }
    host.set_limit("--fsize=unlimited:unlimited")?;
    dump_successfully(&mut client, tally).context("after the limit")?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps with little address space left. Fails unless each dump succeeds or names the cause, and the host survives.
fn check_address_space_limit(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let mut host = HostSetup::default().start()?;
    let mut client = host.client()?;
    // A new thread needs memory; this dump starts the threads before the limit.
    dump_successfully(&mut client, tally).context("before the limit")?;
    for spare_kib in [0, 64, 256, 1024, 16 << 10] {
        let limit = (host.status_field("VmSize:")? + spare_kib) << 10;
        host.set_limit(&format!("--as={limit}:unlimited"))?;
        // The error must name an errno, such as `(ENOMEM)`.
        dump_or_fail_with("(E", &mut client, tally).with_context(|| host.log())?;
        host.check_alive()
            .with_context(|| format!("{spare_kib} KiB spare"))?;
    }
    host.set_limit("--as=unlimited:unlimited")?;
    dump_successfully(&mut client, tally).context("after the limit")?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps again and again while signals of a timer interrupt the host. Fails unless each dump succeeds, and more than
/// 100 signals a second came.
fn check_dumps_with_alarms(length: SuiteLength, tally: &mut Tally) -> Result<()> {
    let time = length.pick(Duration::from_secs(1), Duration::from_secs(10));
    let mut host = HostSetup::with_options("allocate=2 alarms=1").start()?;
    let mut client = host.client()?;
    let start = Instant::now();
    while start.elapsed() < time {
        dump_successfully(&mut client, tally)?;
    }
    let alarms = host.counters()?.alarms;
    ensure!(
        alarms as f64 > 100.0 * time.as_secs_f64(),
        "only {alarms} alarms"
    );
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps, and requests the ledger, after the host's main thread has ended. Fails unless both succeed.
fn check_dump_without_main_thread(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let mut host = HostSetup::with_options("allocate=2 main=ends").start()?;
    let mut client = host.client()?;
    dump_successfully(&mut client, tally)?;
    send_successfully(&mut client, "ledger", "")?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps in a PID namespace of the host's own. Fails unless the dump succeeds.
fn check_dump_in_pid_namespace(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let mut wrapper = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !geteuid().is_root() {
        wrapper.push("--map-root-user");
    }
    let mut host = HostSetup {
        wrapper: wrapper.into_iter().map(str::to_owned).collect(),
        ..HostSetup::default()
    }
    .start()?;
    dump_successfully(&mut host.client()?, tally)?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps after chroot(2) to a directory without /proc. Fails unless a dump directory on a disk is refused with a
/// reason, and one in memory gets a dump.
fn check_chroot_without_proc(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let start = |dir: HostDir| {
        let option = format!(
            "allocate=2 chroot={}",
            dir.create_root_without_proc()?.display()
        );
        HostSetup::with_options(&option).start_in(dir)
    };
    // Without /proc an allocator needs a file name, which memprof does not give it on a disk.
    let mut host = start(HostDir::new()?)?;
    let inside = host.dir().dump_dir_in_root();
    let reason = "neither /dev/shm nor the dump directory is on a memory file system";
    ensure!(
        !dump_or_fail_with(reason, &mut host.client()?, tally)?,
        "a dump by disk"
    );
    check_host_and_dumps(&mut host, &inside)?;

    let mut host = start(HostDir::new_in_memory()?)?;
    let inside = host.dir().dump_dir_in_root();
    dump_successfully(&mut host.client()?, tally)?;
    ensure!(
        scan_dump_dir(&inside)?.complete == 1,
        "no dump in the new root"
    );
    check_host_and_dumps(&mut host, &inside)
}

/// Dumps after the host has changed its user. Fails unless the dump into a directory of root is refused with EACCES,
/// and one into a directory of that user succeeds.
fn check_uid_drop(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let dir = HostDir::new()?;
    dir.make_searchable()?;
    create_private_dir(&dir.dump_dir())?;
    let mut host =
        HostSetup::with_options(&format!("allocate=2 uid={UNPRIVILEGED_UID}")).start_in(dir)?;
    let mut client = host.client()?;
    ensure!(
        !dump_or_fail_with("(EACCES)", &mut client, tally)?,
        "a dump into the directory of another user"
    );
    let dumps = host.dir().dump_dir();
    give_to_unprivileged(&dumps)?;
    dump_successfully(&mut client, tally)?;
    check_host_and_dumps(&mut host, &dumps)
}

/// Dumps, and connects, while the host may create no more threads. Fails unless a dump on an open connection succeeds,
/// and a new connection gets the error that there is no thread for it.
fn check_thread_limit(_: SuiteLength, tally: &mut Tally) -> Result<()> {
    let dir = HostDir::new()?;
    dir.make_searchable()?;
    create_private_dir(&dir.dump_dir())?;
    give_to_unprivileged(&dir.dump_dir())?;
    let mut host =
        HostSetup::with_options(&format!("allocate=2 uid={UNPRIVILEGED_UID}")).start_in(dir)?;
    let mut client = host.client()?;
    dump_successfully(&mut client, tally).context("before the limit")?;
    host.set_limit("--nproc=0:1000")?;
    dump_successfully(&mut client, tally).context("on an open connection")?;
    // A connection without a thread is refused with a reply. Threads of earlier connections may serve the first ones.
    let mut served = Vec::new();
    let refused = loop {
        ensure!(served.len() < 8, "threads beyond the limit");
        let mut further = host.client()?;
        match send_successfully(&mut further, "status", "") {
            Ok(_) => served.push(further),
            Err(refused) => break refused,
        }
    };
    ensure!(
        format!("{refused:#}").contains("no thread for this connection"),
        "{refused:#}"
    );
    host.set_limit("--nproc=1000:1000")?;
    let dumps = host.dir().dump_dir();
    check_host_and_dumps(&mut host, &dumps)
}

/// Makes [`UNPRIVILEGED_UID`] the owner and the group of a directory. Needs root.
fn give_to_unprivileged(path: &Path) -> Result<()> {
    let (uid, gid) = (
        Uid::from_raw(UNPRIVILEGED_UID),
        Gid::from_raw(UNPRIVILEGED_UID),
    );
    chown(path, Some(uid), Some(gid)).with_context(|| path.display().to_string())
}
