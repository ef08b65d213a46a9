//! An attacker's process, and what root does with it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use xtask::dist::dist;

use super::forged::Forged;
use super::witness::{self, Bound, ResourceUse};
use crate::zoo::HeldResources;

/// `nobody` (Debian policy, 9.2.2).
const NOBODY: u32 = 65534;

/// What root does with a process. Its pid follows the words.
pub(super) struct Work {
    pub(super) words: &'static [&'static str],
    /// Whether the pid is one of the words.
    pub(super) takes_pid: bool,
    pub(super) bound: Bound,
}

/// An attacker: a kind of attacker.c.
pub(super) struct Attacker {
    pub(super) kind: &'static str,
    /// What the file is that it maps.
    pub(super) forged: Forged,
    /// The kind's last argument; of `heap`, the seed is drawn.
    pub(super) other: &'static str,
    pub(super) works: &'static [Work],
    pub(super) is_short: bool,
}

/// Runs each of root's commands. The process and the machine must be as before each time.
pub(super) fn visit(attacker: &Attacker, seed: usize) -> Result<ResourceUse> {
    let dir = Place::new()?;
    let name = match attacker.kind.starts_with("jvm") {
        true => "libjvm.so",
        false => "library.so",
    };
    let library = attacker.forged.make(&dir.own(), name)?;
    dir.give_all()?;
    let mut running = Running::start(attacker, &dir, &library, seed)?;
    let pid = running.child.id();
    let held = HeldResources::read_settled(pid, true)?;
    let text = pid.to_string();
    let mut worst = ResourceUse::default();
    for work in attacker.works {
        let pid_word = work.takes_pid.then_some(text.as_str());
        let words: Vec<_> = work.words.iter().copied().chain(pid_word).collect();
        let after = || words.join(" ");
        worst = worst.worst(witness::run("memprof", &words, work.bound).with_context(after)?);
        ensure!(
            running.child.try_wait()?.is_none(),
            "{}: it is dead",
            after()
        );
        held.wait_until_restored(pid, true).with_context(after)?;
        dir.is_as_before().with_context(after)?;
    }
    running.end()?;
    Ok(worst)
}

/// A directory with one of the attacker's, and one where it may not write.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let dir = Self(tempfile::tempdir()?);
        fs::set_permissions(dir.0.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(dir.own())?;
        fs::create_dir(dir.guarded())?;
        fs::copy(dist().join("torture/attacker"), dir.program())?;
        Ok(dir)
    }

    fn own(&self) -> PathBuf {
        self.0.path().join("own")
    }

    fn guarded(&self) -> PathBuf {
        self.0.path().join("guarded")
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("attacker")
    }

    /// Makes all in the attacker's directory its own.
    fn give_all(&self) -> Result<()> {
        chown(self.own(), Some(NOBODY), Some(NOBODY))?;
        for entry in fs::read_dir(self.own())? {
            chown(entry?.path(), Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    /// Root has made no file for the attacker.
    fn is_as_before(&self) -> Result<()> {
        let entries = |path: &Path| Ok::<_, anyhow::Error>(fs::read_dir(path)?.flatten());
        if let Some(entry) = entries(&self.guarded())?.next() {
            bail!("made {}", entry.path().display());
        }
        for entry in entries(&self.own())? {
            let owner = entry.metadata()?.uid();
            ensure!(owner == NOBODY, "made {}", entry.path().display());
        }
        Ok(())
    }
}

/// The process, killed when dropped.
struct Running {
    child: Child,
}

impl Running {
    fn start(attacker: &Attacker, dir: &Place, library: &Path, seed: usize) -> Result<Self> {
        let guarded = dir.guarded().display().to_string();
        let other = match attacker.other {
            "" => &guarded,
            other => other,
        };
        let mut command = Command::new(dir.program());
        command.arg(attacker.kind);
        match attacker.kind {
            "heap" => command.arg(seed.to_string()),
            _ => command.arg(library),
        };
        command.arg(other).current_dir(dir.own());
        command.uid(NOBODY).gid(NOBODY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the attacker")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let running = Self { child };
        ensure!(line == "ready\n", "it said {line:?}");
        Ok(running)
    }

    /// It ends by itself once its input does.
    fn end(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended: {status}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
