//! Starts an attacker's process, and runs memprof on it as root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use testkit::LineReader;
use testkit::processes::wait_for_exit;
use xtask::dist::dist_dir;
use xtask::run::copy_program;

use super::forgery::Forgery;
use super::witness::{self, ResourceLimit, ResourceUse};
use crate::held_resources::HeldResources;

/// User and group ID of the account without privileges (Debian policy, 9.2.2).
const ATTACKER_UID: u32 = 65534;

/// Time that an attacker may take until it is ready, and until it ends.
const ATTACKER_TIMEOUT: Duration = Duration::from_secs(60);

/// Command of `memprof` that root runs on the attacker's process.
pub(super) struct RootCommand {
    pub(super) args: &'static [&'static str],
    /// Whether the process's pid is the last argument.
    pub(super) takes_pid: bool,
    pub(super) limit: ResourceLimit,
}

/// Attacker's process to start: a kind of `attacker.c` with its arguments.
pub(super) struct Attacker {
    pub(super) kind: &'static str,
    /// Change to the library that it maps.
    pub(super) forgery: Forgery,
    /// Last argument of the program: the link's target for `library-link`. If empty, the directory it may not write to.
    pub(super) argument: &'static str,
    pub(super) commands: &'static [RootCommand],
    /// Whether memprof need not wait for a timeout, so that short runs have it too.
    pub(super) is_fast: bool,
}

/// Starts the attacker as a user without privileges, and runs each of its commands on it as root. Returns the largest
/// use of time and memory of a command. `seed` selects the heap that the kind `heap` builds; other kinds ignore it.
///
/// # Errors
/// A command exceeds its limit, or changes the process, its resources or its directories.
pub(super) fn check_commands(attacker: &Attacker, seed: usize) -> Result<ResourceUse> {
    let dirs = AttackerDirs::create()?;
    let name = match attacker.kind.starts_with("jvm") {
        true => "libjvm.so",
        false => "library.so",
    };
    let library = attacker.forgery.create_library(&dirs.writable(), name)?;
    dirs.chown_to_attacker()?;
    let mut process = AttackerProcess::start(attacker, &dirs, &library, seed)?;
    let pid = process.child.id();
    let resources = HeldResources::read_settled(pid, true)?;
    let pid_text = pid.to_string();
    let mut worst = ResourceUse::default();
    for command in attacker.commands {
        let pid_arg = command.takes_pid.then_some(pid_text.as_str());
        let args: Vec<_> = command.args.iter().copied().chain(pid_arg).collect();
        let context = || args.join(" ");
        worst = worst
            .max(witness::run_within_limit("memprof", &args, command.limit).with_context(context)?);
        ensure!(
            process.child.try_wait()?.is_none(),
            "{}: it is dead",
            context()
        );
        resources
            .wait_until_restored(pid, true)
            .with_context(context)?;
        dirs.check_unchanged().with_context(context)?;
    }
    process.end()?;
    Ok(worst)
}

/// Temporary directory with the attacker's program, a directory of its own, and one where it may not write.
struct AttackerDirs(TempDir);

impl AttackerDirs {
    /// Creates the directories, and copies the attacker's program there.
    fn create() -> Result<Self> {
        let dirs = Self(tempfile::tempdir()?);
        fs::set_permissions(dirs.0.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(dirs.writable())?;
        fs::create_dir(dirs.guarded())?;
        copy_program(&dist_dir().join("torture/attacker"), &dirs.program())?;
        Ok(dirs)
    }

    /// Directory of the attacker's user, with the library.
    fn writable(&self) -> PathBuf {
        self.0.path().join("own")
    }

    /// Directory of root, in which the attacker may not write.
    fn guarded(&self) -> PathBuf {
        self.0.path().join("guarded")
    }

    /// Path of the attacker's program, a copy that its user may execute.
    fn program(&self) -> PathBuf {
        self.0.path().join("attacker")
    }

    /// Gives the attacker's directory and all files in it to the attacker's user.
    fn chown_to_attacker(&self) -> Result<()> {
        chown(self.writable(), Some(ATTACKER_UID), Some(ATTACKER_UID))?;
        for entry in fs::read_dir(self.writable())? {
            chown(entry?.path(), Some(ATTACKER_UID), Some(ATTACKER_UID))?;
        }
        Ok(())
    }

    /// Fails if root has created a file in one of the directories: any file in the guarded one, or a file of another
    /// owner in the attacker's.
    fn check_unchanged(&self) -> Result<()> {
        let entries = |path: &Path| Ok::<_, anyhow::Error>(fs::read_dir(path)?.flatten());
        if let Some(entry) = entries(&self.guarded())?.next() {
            bail!("made {}", entry.path().display());
        }
        for entry in entries(&self.writable())? {
            let owner = entry.metadata()?.uid();
            ensure!(owner == ATTACKER_UID, "made {}", entry.path().display());
        }
        Ok(())
    }
}

/// Running attacker, killed when dropped.
struct AttackerProcess {
    child: Child,
}

impl AttackerProcess {
    /// Starts the program as the attacker's user, and waits until it prints `ready`, or fails after
    /// [`ATTACKER_TIMEOUT`]. Its arguments are the kind, the
    /// path of the library or, for the kind `heap`, the seed of the heap that it builds, and the attacker's own
    /// argument or, without one, the guarded directory.
    fn start(
        attacker: &Attacker,
        dirs: &AttackerDirs,
        library: &Path,
        seed: usize,
    ) -> Result<Self> {
        let guarded = dirs.guarded().display().to_string();
        let argument = match attacker.argument {
            "" => &guarded,
            argument => argument,
        };
        let mut command = Command::new(dirs.program());
        command.arg(attacker.kind);
        match attacker.kind {
            "heap" => command.arg(seed.to_string()),
            _ => command.arg(library),
        };
        command.arg(argument).current_dir(dirs.writable());
        command.uid(ATTACKER_UID).gid(ATTACKER_UID);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().context("the attacker")?;
        // From here on, the process is killed on an error.
        let mut process = Self { child };
        let output = process.child.stdout.take().context("no output")?;
        let line = LineReader::new(output).read_line(ATTACKER_TIMEOUT)?;
        ensure!(line == "ready\n", "it said {line:?}");
        Ok(process)
    }

    /// Closes the process's input, and waits for its end. Fails unless it ends with success within
    /// [`ATTACKER_TIMEOUT`].
    fn end(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status =
            wait_for_exit(&mut self.child, ATTACKER_TIMEOUT)?.context("it does not end")?;
        ensure!(status.success(), "it ended: {status}");
        Ok(())
    }
}

impl Drop for AttackerProcess {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
