//! The dump directory: listing, publishing and deleting dumps.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memprof_own::move_above_stdio;
use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use crate::dumps::hidden_file;
use crate::dumps::hidden_file::PRIVATE;
use crate::dumps::name::DumpName;
use crate::dumps::publish::{may_mean_no_nameless_files, publish_dump};
use crate::dumps::retention::{DumpFile, NewDump, RetentionPolicy, select_expired_dumps};
use crate::error::{Error, ErrorKind, Result};
use memprof_messages::KeptDump;

/// Suffix of a dump's file name.
const EXTENSION: &str = ".heap";

/// Clock difference to tolerate: the clock of another process that stores dumps here may be slightly ahead.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// A kept dump, opened for reading.
#[derive(Debug)]
pub struct OpenedDump {
    /// Positioned at the start.
    pub file: File,
    /// Length in bytes.
    pub bytes: u64,
    /// Absolute path.
    pub path: PathBuf,
}

/// The directory with a program's dumps. Other files in it are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    directory: PathBuf,
    keep: RetentionPolicy,
}

/// Returns the default dump directory `memprof/PROGRAM` of a program: below `XDG_STATE_HOME`, below /var/lib for root,
/// or below `~/.local/state`. Without a home directory, it is below /var/lib, too. `variable` reads the environment.
/// Relative paths in variables are ignored.
pub fn default_dump_dir(
    program: &str,
    is_root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> PathBuf {
    let absolute = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| is_root.then(|| PathBuf::from("/var/lib")))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"));
    state.join("memprof").join(program)
}

impl Store {
    /// Creates a store in `directory`, an absolute path. The directory is created when it is first needed.
    pub fn new(directory: PathBuf, keep: RetentionPolicy) -> Self {
        Self { directory, keep }
    }

    /// Absolute path of the dump directory, which may be missing yet.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Lists the kept dumps (those in the dump directory), newest first. A missing directory counts as empty.
    ///
    /// # Errors
    /// `Io`: the directory cannot be read, or other users may write to it.
    pub fn list_dumps(&self) -> Result<Vec<KeptDump>> {
        let Some(directory) = self.open_directory_if_exists("read")? else {
            return Ok(Vec::new());
        };
        let entries = self.read_entries(&directory)?;
        Ok(entries
            .iter()
            .map(|entry| self.describe_dump(entry))
            .collect())
    }

    /// Opens a kept dump (one in the dump directory) for reading.
    ///
    /// # Errors
    /// `InvalidArgument`: no kept dump has this id. `Io`: the directory or the file cannot be read, or other users may
    /// write to the directory.
    pub fn open_dump(&self, id: &str) -> Result<OpenedDump> {
        let unknown = || {
            let message = format!("no kept dump has the id {id:?}");
            Error::new(ErrorKind::InvalidArgument, message).with_remedy("send `list` for the ids")
        };
        let name = dump_file_name(&DumpName::parse(id).ok_or_else(unknown)?);
        let directory = self
            .open_directory_if_exists("open a dump in")?
            .ok_or_else(unknown)?;
        let failed = |errno: Errno| self.directory_error("open a dump in", errno.into());
        // `NONBLOCK`: opening a FIFO must not block this thread.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            match retry_on_intr(|| rustix::fs::openat(&directory, &name, flags, Mode::empty()))
                .and_then(move_above_stdio)
            {
                Err(Errno::NOENT | Errno::LOOP) => return Err(unknown()),
                file => File::from(file.map_err(failed)?),
            };
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(unknown());
        }
        Ok(OpenedDump {
            file,
            bytes: stat.st_size.unsigned_abs(),
            path: self.directory.join(name),
        })
    }

    /// Publishes a dump under the new `name`. `started` is the start time of its process, and `size` the length of
    /// `body` in bytes. Before that, removes the unfinished dumps of killed processes, and deletes the dumps that the
    /// retention policy no longer allows. Returns the dump's id, path and length.
    ///
    /// # Errors
    /// `Io`: the directory cannot be created, is not safe, or accepts no file, or an expired dump cannot be deleted. No
    /// part of the new dump is left behind.
    pub(crate) fn add_dump(
        &self,
        name: &DumpName,
        started: SystemTime,
        size: u64,
        body: &mut dyn Read,
    ) -> Result<KeptDump> {
        let directory = self.open_or_create_directory()?;
        hidden_file::remove_abandoned_dumps(&directory)
            .map_err(|errno| self.directory_error("list", errno.into()))?;
        let new_dump = NewDump {
            name,
            bytes: size,
            started,
        };
        self.delete_expired_dumps(&directory, &new_dump)?;
        let bytes =
            publish_dump(&directory, &dump_file_name(name), body).map_err(|(act, cause)| {
                self.directory_error(&format!("{act} in"), cause)
                    .with_further_remedy(
                        "free space or choose another dump_dir in the plugin's config",
                    )
            })?;
        Ok(self.describe_dump(&DumpFile {
            name: name.clone(),
            bytes,
        }))
    }

    /// Opens the dump directory, and creates it with mode 0700 if it is missing. Checks that no other user can write to
    /// it or replace it.
    ///
    /// # Errors
    /// `Io`: the directory cannot be created or opened, or fails that check.
    pub(crate) fn open_or_create_directory(&self) -> Result<OwnedFd> {
        let opened = match self.open_directory() {
            Err(Errno::NOENT) => DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory)
                .and_then(|()| Ok(self.open_directory()?)),
            result => result.map_err(io::Error::from),
        };
        let directory = opened.map_err(|cause| {
            self.directory_error("use", cause)
                .with_further_remedy("set dump_dir to a directory that this user owns")
        })?;
        self.check_directory_safe(&directory)?;
        Ok(directory)
    }

    /// Opens the dump directory, and checks that no other user can write to it or replace it. `None` if it does not
    /// exist. `act` is the purpose for error messages, such as `"read"`.
    ///
    /// # Errors
    /// `Io`: the directory cannot be opened, or fails that check.
    fn open_directory_if_exists(&self, act: &str) -> Result<Option<OwnedFd>> {
        match self.open_directory() {
            Ok(directory) => {
                self.check_directory_safe(&directory)?;
                Ok(Some(directory))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.directory_error(act, errno.into())),
        }
    }

    /// Checks that only this user may write to the directory, and that not every user may replace it.
    ///
    /// # Errors
    /// `Io`: the directory is not safe, or cannot be examined.
    fn check_directory_safe(&self, directory: &OwnedFd) -> Result<()> {
        let stat =
            rustix::fs::fstat(directory).map_err(|e| self.directory_error("check", e.into()))?;
        self.check_ownership(&stat)?;
        self.check_parent_directories()
    }

    /// Checks that no parent directory is world-writable without the sticky bit, because any user could then replace
    /// this directory. Accepts a parent that cannot be examined.
    ///
    /// # Errors
    /// `Io`, with the path of that parent.
    fn check_parent_directories(&self) -> Result<()> {
        // Checks the parents of the given path, and those of its target if it contains symbolic links.
        let real = std::fs::canonicalize(&self.directory);
        let given = self.directory.ancestors().skip(1);
        let real = real.iter().flat_map(|real| real.ancestors().skip(1));
        for parent in given.chain(real) {
            let mode = parent.metadata().map_or(0, |parent| parent.mode());
            // World-writable, and not sticky.
            if mode & 0o1002 == 0o002 {
                let (directory, parent) = (self.directory.display(), parent.display());
                return Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "dump directory {directory} is not safe: everybody may write to {parent}"
                    ),
                )
                .with_remedy(format!("chmod o-w {parent}, or choose another dump_dir")));
            }
        }
        Ok(())
    }

    /// Opens the dump directory, creating it if it is missing. Checks that no other user can write to it, and that a
    /// file can be created in it. Leaves no file behind.
    ///
    /// # Errors
    /// `Io`: the directory cannot be created or opened, or fails one of these checks.
    pub(crate) fn open_writable_directory(&self) -> Result<OwnedFd> {
        let directory = self.open_or_create_directory()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match retry_on_intr(|| rustix::fs::openat(&directory, ".", flags, PRIVATE)) {
            // The nameless file is closed here, which deletes it.
            Ok(_) => Ok(directory),
            // `publish_dump` uses a hidden name then.
            Err(errno) if may_mean_no_nameless_files(errno) => Ok(directory),
            Err(errno) => Err(self
                .directory_error("create a file in", errno.into())
                .with_further_remedy("set dump_dir to a directory that this user can write to")),
        }
    }

    /// Checks the permissions of the dump directory, or of the closest existing parent if it is missing. Creates
    /// nothing.
    ///
    /// # Errors
    /// `Io`: this process may not write to that directory.
    pub fn require_writable(&self) -> Result<()> {
        let existing = self.directory.ancestors().find(|path| path.exists());
        let existing = existing.unwrap_or(Path::new("/"));
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(CWD, existing, access, AtFlags::EACCESS).map_err(|errno| {
            let act = format!(
                "keep dumps in {}: no way to write to",
                self.directory.display()
            );
            Error::io(&format!("{act} {}", existing.display()), &errno.into()).with_further_remedy(
                "set dump_dir, or MEMPROF_DUMP_DIR (memprof run --dump-dir DIR)",
            )
        })
    }

    /// Checks by `stat` that the directory belongs to this user, and that no other user may write to it.
    ///
    /// # Errors
    /// `Io`: it belongs to another user, or another user may write to it.
    fn check_ownership(&self, stat: &Stat) -> Result<()> {
        let own = rustix::process::geteuid().as_raw();
        let complaint = if stat.st_uid != own {
            format!(
                "it belongs to uid {}, this process runs as {own}",
                stat.st_uid
            )
        } else if stat.st_mode & 0o022 != 0 {
            "others may write to it".to_owned()
        } else {
            return Ok(());
        };
        let directory = self.directory.display();
        Err(Error::new(
            ErrorKind::Io,
            format!("dump directory {directory} is not safe: {complaint}"),
        )
        .with_remedy(format!(
            "chown and chmod 0700 {directory}, or choose another dump_dir"
        )))
    }

    /// Opens the directory. Fails on a symbolic link.
    fn open_directory(&self) -> std::result::Result<OwnedFd, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::open(&self.directory, flags, Mode::empty()))
            .and_then(move_above_stdio)
    }

    /// Reads the names and lengths of the dumps in the directory, newest first. Skips other files and those that are
    /// not regular.
    ///
    /// # Errors
    /// `Io`: the directory or a dump cannot be read.
    fn read_entries(&self, directory: &OwnedFd) -> Result<Vec<DumpFile>> {
        let failed = |errno: Errno| self.directory_error("list", errno.into());
        let mut entries = Vec::new();
        for entry in Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let id = entry.file_name().to_str().ok();
            let id = id.and_then(|name| name.strip_suffix(EXTENSION));
            let Some(name) = id.and_then(DumpName::parse) else {
                continue;
            };
            let stat = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            match stat {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    let bytes = stat.st_size.unsigned_abs();
                    entries.push(DumpFile { name, bytes });
                }
                // Another process of this program may have deleted the dump since it was listed.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        entries.sort_by_cached_key(|entry| {
            let name = &entry.name;
            Reverse((name.taken, name.sequence, name.to_string()))
        });
        Ok(entries)
    }

    /// Describes a dump for replies. The trigger and the RSS are missing for a dump of an earlier version.
    fn describe_dump(&self, entry: &DumpFile) -> KeptDump {
        let DumpFile { name, bytes } = entry;
        KeptDump {
            id: name.to_string(),
            path: self.directory.join(dump_file_name(name)),
            bytes: *bytes,
            taken: humantime::format_rfc3339_seconds(name.taken).to_string(),
            pid: name.pid,
            kind: name.kind.into(),
            trigger: name.cause.map(|cause| cause.trigger.into()),
            rss_bytes: name.cause.map(|cause| cause.rss_kib.saturating_mul(1024)),
        }
    }

    /// Deletes the dumps that the retention policy does not allow in addition to `new_dump`, oldest first. A dump whose
    /// time is more than [`CLOCK_SLACK`] ahead counts as the oldest: the clock was set back after it was taken.
    ///
    /// # Errors
    /// `Io`: the directory cannot be read, or a dump cannot be deleted.
    fn delete_expired_dumps(&self, directory: &OwnedFd, new_dump: &NewDump<'_>) -> Result<()> {
        let mut entries = self.read_entries(directory)?;
        // A dump with a time in the future was taken before the clock was set back, so it is older than the others: it
        // moves to the end of the list.
        let latest = new_dump.name.taken + CLOCK_SLACK;
        entries.sort_by_key(|entry| entry.name.taken > latest);
        for DumpFile { name, .. } in select_expired_dumps(&entries, new_dump, &self.keep) {
            match rustix::fs::unlinkat(directory, dump_file_name(name), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => log::debug!("pruned dump {name}"),
                Err(errno) => return Err(self.directory_error("prune a dump in", errno.into())),
            }
        }
        Ok(())
    }

    /// `Io` error for an action on the dump directory. `act` is, for example, `"list"`; the message adds the
    /// directory's path.
    fn directory_error(&self, act: &str, cause: io::Error) -> Error {
        Error::io(&format!("{act} {}", self.directory.display()), &cause)
    }
}

/// Returns the name of a dump's file: the dump's name and [`EXTENSION`].
fn dump_file_name(name: &DumpName) -> String {
    format!("{name}{EXTENSION}")
}

#[cfg(test)]
mod tests {
    use memprof_messages::{DumpId, ProfileKind, TriggerKind};

    use super::*;
    use crate::dumps::name::DumpCause;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const STARTED: SystemTime = SystemTime::UNIX_EPOCH;

    fn name(seconds: u64, sequence: u32) -> DumpName {
        let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564 + seconds);
        DumpName {
            taken,
            pid: 42,
            sequence,
            random: 0xbeef,
            cause: None,
            kind: ProfileKind::Heap,
        }
    }

    fn store(keep: RetentionPolicy) -> (tempfile::TempDir, Store) {
        let parent = tempfile::tempdir().unwrap();
        let store = Store::new(parent.path().join("dumps"), keep);
        (parent, store)
    }

    #[test]
    fn require_writable_creates_nothing() {
        let (parent, store) = store(RetentionPolicy::default());
        store.require_writable().unwrap();
        assert!(!store.directory().exists());
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        let below = Store::new(file.join("memprof/web"), RetentionPolicy::default());
        let refused = below.require_writable().unwrap_err().to_string();
        let expected = format!("no way to write to {}", file.display());
        assert!(refused.contains(&expected), "{refused}");
    }

    fn add(store: &Store, name: &DumpName, body: &[u8]) -> KeptDump {
        store
            .add_dump(name, STARTED, body.len() as u64, &mut &*body)
            .unwrap()
    }

    #[test]
    fn dumps_are_private_complete_and_listed_newest_first() {
        let (_parent, store) = store(RetentionPolicy::default());
        assert_eq!(store.list_dumps().unwrap(), []);
        let first = add(&store, &name(0, 1), b"one");
        let second = add(&store, &name(0, 2), b"three");
        assert_eq!(store.list_dumps().unwrap(), [second.clone(), first]);
        let parsed = DumpId::parse(&second.id).map(|id| (id.taken, id.pid));
        assert_eq!(parsed, Some((second.taken.clone(), second.pid)));
        assert_eq!(std::fs::read(&second.path).unwrap(), b"three");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&second.path), 0o600);
        assert_eq!(mode(store.directory()), 0o700);
    }

    #[test]
    fn publish_of_existing_name_fails() {
        let (_parent, store) = store(RetentionPolicy::default());
        let kept = add(&store, &name(0, 1), b"one");
        let refused = store
            .add_dump(&name(0, 1), STARTED, 3, &mut &b"two"[..])
            .unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::EXIST), "{refused}");
        assert_eq!(std::fs::read(kept.path).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(store.directory()).unwrap().count(), 1);
    }

    #[test]
    fn oldest_dumps_are_deleted_first() {
        let check = |keep: RetentionPolicy, expected: &[u32]| {
            let (_parent, store) = store(keep);
            for sequence in 1..=4 {
                add(&store, &name(u64::from(sequence), sequence), b"12345");
            }
            let kept: Vec<_> = store
                .list_dumps()
                .unwrap()
                .iter()
                .map(|kept| DumpName::parse(&kept.id).unwrap().sequence)
                .collect();
            assert_eq!(kept, expected, "{keep:?}");
        };
        check(
            RetentionPolicy {
                count: 2,
                bytes: 1000,
                ..RetentionPolicy::default()
            },
            &[4, 3],
        );
        check(
            RetentionPolicy {
                count: 9,
                bytes: 16,
                ..RetentionPolicy::default()
            },
            &[4, 3, 2],
        );
        let one = RetentionPolicy {
            count: 1,
            bytes: 1,
            ..RetentionPolicy::default()
        };
        check(one, &[4]);
    }

    #[test]
    fn newest_dump_is_kept_after_clock_change() {
        const YEAR: u64 = 365 * 24 * 3600;
        let check = |taken: &[u64], expected: &[u32]| {
            let (_parent, store) = store(RetentionPolicy {
                count: 2,
                ..RetentionPolicy::default()
            });
            for (sequence, seconds) in (1..).zip(taken) {
                add(&store, &name(*seconds, sequence), b"12345");
            }
            let mut kept: Vec<_> = store
                .list_dumps()
                .unwrap()
                .iter()
                .map(|kept| DumpName::parse(&kept.id).unwrap().sequence)
                .collect();
            kept.sort_unstable();
            assert_eq!(kept, expected, "{taken:?}");
        };
        check(&[0, 1, YEAR, YEAR + 1], &[3, 4]);
        check(&[YEAR, YEAR + 1, 0, 1], &[3, 4]);
        check(&[YEAR, 0, 1, YEAR + 2], &[3, 4]);
    }

    #[test]
    fn ten_thousand_dumps_never_exceed_quota() {
        const QUOTA: usize = 8;
        // In memory, because each dump is synced to its disk.
        let parent = tempfile::tempdir_in("/dev/shm").unwrap();
        let keep = RetentionPolicy {
            count: QUOTA,
            ..RetentionPolicy::default()
        };
        let store = Store::new(parent.path().join("dumps"), keep);
        let words = TriggerKind::ALL;
        let mut most = 0;
        for at in 0..10_000_u32 {
            let cause = Some(DumpCause {
                trigger: words[at as usize % words.len()],
                rss_kib: u64::from(at),
            });
            let name = DumpName {
                cause,
                ..name(u64::from(at) / 7, at)
            };
            add(&store, &name, b"12345");
            most = most.max(std::fs::read_dir(store.directory()).unwrap().count());
        }
        assert_eq!(most, QUOTA);
        let kept = store.list_dumps().unwrap();
        assert_eq!(kept.len(), QUOTA);
        let newest = (kept[0].trigger.clone(), kept[0].rss_bytes);
        let last = words[9_999 % words.len()];
        assert_eq!(newest, (Some(last.into()), Some(9_999 * 1024)));
    }

    #[test]
    fn dumps_of_an_earlier_version_are_listed_and_pruned() {
        let (_parent, store) = store(RetentionPolicy {
            count: 1,
            ..RetentionPolicy::default()
        });
        let old = add(&store, &name(0, 1), b"one");
        assert_eq!((&old.trigger, old.rss_bytes), (&None, None));
        assert_eq!(store.list_dumps().unwrap(), [old]);
        let cause = Some(DumpCause {
            trigger: TriggerKind::Message,
            rss_kib: 4,
        });
        let new = add(
            &store,
            &DumpName {
                cause,
                ..name(1, 2)
            },
            b"two",
        );
        assert_eq!(store.list_dumps().unwrap(), [new]);
    }

    #[test]
    fn retention_never_touches_foreign_files() {
        let (_parent, store) = store(RetentionPolicy {
            count: 1,
            ..RetentionPolicy::default()
        });
        add(&store, &name(0, 1), b"one");
        let foreign = store.directory().join("notes.heap");
        std::fs::write(&foreign, "mine").unwrap();
        add(&store, &name(1, 2), b"two");
        assert!(foreign.exists());
        assert_eq!(store.list_dumps().unwrap().len(), 1);
    }

    #[test]
    fn fetch_accepts_only_listed_ids() {
        let (parent, store) = store(RetentionPolicy::default());
        let kept = add(&store, &name(0, 1), b"one");
        let mut body = String::new();
        store
            .open_dump(&kept.id)
            .unwrap()
            .file
            .read_to_string(&mut body)
            .unwrap();
        assert_eq!(body, "one");

        let secret = parent.path().join("secret.heap");
        std::fs::write(&secret, "secret").unwrap();
        let planted = "20261121T111244Z.42.9.0000beef";
        symlink(&secret, store.directory().join(format!("{planted}.heap"))).unwrap();
        let pipe = "20261121T111244Z.42.8.0000beef";
        let pipe_path = store.directory().join(format!("{pipe}.heap"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe_path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let directory = "20261121T111244Z.42.7.0000beef";
        std::fs::create_dir(store.directory().join(format!("{directory}.heap"))).unwrap();
        for id in [
            "",
            ".",
            "../secret",
            "/etc/passwd",
            planted,
            pipe,
            directory,
            "20261121T111244Z.42.6.0000beef",
            "20261121T111244Z.42.1.0000beef\0",
        ] {
            let refused = store.open_dump(id).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{id}");
        }
    }

    #[test]
    fn directory_writable_by_others_is_refused() {
        let (_parent, store) = store(RetentionPolicy::default());
        std::fs::create_dir(store.directory()).unwrap();
        std::fs::set_permissions(store.directory(), PermissionsExt::from_mode(0o777)).unwrap();
        let refused = store
            .add_dump(&name(0, 1), STARTED, 3, &mut &b"one"[..])
            .unwrap_err();
        assert!(
            refused.message.ends_with("others may write to it"),
            "{refused}"
        );
    }

    #[test]
    fn directory_that_became_unsafe_is_neither_listed_nor_read() {
        let (parent, store) = store(RetentionPolicy::default());
        let kept = add(&store, &name(0, 1), b"one");
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let check = |expected: &str| {
            let listed = store.list_dumps().unwrap_err();
            let fetched = store.open_dump(&kept.id).unwrap_err();
            let added = store.add_dump(&name(0, 2), STARTED, 3, &mut &b"two"[..]);
            for refused in [listed, fetched, added.unwrap_err()] {
                assert!(refused.message.ends_with(expected), "{refused}");
            }
        };
        set_mode(store.directory(), 0o770);
        check("others may write to it");
        set_mode(store.directory(), 0o700);
        set_mode(parent.path(), 0o777);
        check(&format!(
            "everybody may write to {}",
            parent.path().display()
        ));
        let link = tempfile::tempdir().unwrap();
        let linked = link.path().join("linked");
        symlink(parent.path(), &linked).unwrap();
        let through = Store::new(linked.join("dumps"), RetentionPolicy::default());
        assert!(through.list_dumps().is_err());
        // As in /tmp, where the sticky bit keeps users from renaming each other's files.
        set_mode(parent.path(), 0o1777);
        assert_eq!(store.list_dumps().unwrap(), [kept]);
    }

    #[test]
    fn file_in_place_of_directory_is_refused() {
        let (_parent, store) = store(RetentionPolicy::default());
        std::fs::write(store.directory(), "").unwrap();
        let refused = store
            .add_dump(&name(0, 1), STARTED, 3, &mut &b"one"[..])
            .unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::NOTDIR), "{refused}");
    }

    #[test]
    fn default_directories() {
        let check = |is_root, variables: &[(&str, &str)], expected: &str| {
            let variable = |name: &str| {
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, v)| OsString::from(v))
            };
            assert_eq!(
                default_dump_dir("web", is_root, variable),
                Path::new(expected)
            );
        };
        check(true, &[("HOME", "/root")], "/var/lib/memprof/web");
        check(true, &[("XDG_STATE_HOME", "/s")], "/s/memprof/web");
        check(
            false,
            &[("HOME", "/home/a")],
            "/home/a/.local/state/memprof/web",
        );
        check(false, &[("HOME", "relative")], "/var/lib/memprof/web");
    }
}
