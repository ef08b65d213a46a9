//! Checks that only trusted users can have written a plugin's file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const GROUP_MAY_WRITE: u32 = 0o020;
const OTHERS_MAY_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Checks the file and every directory above it: each must belong to root or to `own_uid`, and no other user may write
/// to it. Returns the path without symbolic links. Fails if the path is not absolute or does not exist; otherwise the
/// error names the first file or directory that is not trusted.
pub(crate) fn check_trusted(path: &Path, own_uid: u32) -> Result<PathBuf, String> {
    if !path.is_absolute() {
        return Err(format!("plugin path {} is not absolute", path.display()));
    }
    let unreadable = |path: &Path, e: io::Error| format!("failed to read {}: {e}", path.display());
    let path = path
        .canonicalize()
        .map_err(|error| unreadable(path, error))?;
    for ancestor in path.ancestors() {
        let metadata = ancestor
            .metadata()
            .map_err(|error| unreadable(ancestor, error))?;
        if ancestor == path && !metadata.is_file() {
            let ancestor = ancestor.display();
            return Err(format!(
                "{ancestor} is not to be trusted: it is not a regular file"
            ));
        }
        let rights = FileRights {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode(),
        };
        if let Some(violation) = rights.find_violation(ancestor == path, own_uid) {
            return Err(format!(
                "{} is not to be trusted: {violation}",
                ancestor.display()
            ));
        }
    }
    Ok(path)
}

/// Owner, group and permission bits of a file or directory.
struct FileRights {
    owner: u32,
    group: u32,
    mode: u32,
}

impl FileRights {
    /// Describes the first reason for which a file or directory is not trusted. `None` if only trusted users can write
    /// to it. A group may write if its number is the owner's: it is the owner's private group. `is_plugin`
    /// distinguishes the plugin's file from the directories above it, to which others may write if they are sticky.
    fn find_violation(&self, is_plugin: bool, own_uid: u32) -> Option<String> {
        let Self { owner, group, mode } = *self;
        if owner != 0 && owner != own_uid {
            return Some(format!(
                "it belongs to uid {owner}, not to root or to uid {own_uid}"
            ));
        }
        // In a sticky directory, other users cannot rename entries.
        if !is_plugin && mode & STICKY != 0 {
            return None;
        }
        if mode & OTHERS_MAY_WRITE != 0 {
            return Some("everybody may write to it (chmod o-w)".to_owned());
        }
        // A group whose number is that of the owner is the owner's private group, by the convention of distributions
        // (useradd(8), USERGROUPS_ENAB).
        if mode & GROUP_MAY_WRITE != 0 && group != owner {
            return Some("its group may write to it (chmod g-w)".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn error_names_untrusted_path() {
        let directory = tempfile::tempdir().unwrap();
        let plugin = directory.path().join("p.so");
        std::fs::write(&plugin, "").unwrap();
        let own = rustix::process::geteuid().as_raw();
        let check = |path: &Path, mode: u32, expected: &str| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            let error = check_trusted(&plugin, own).err().unwrap_or_default();
            assert!(
                error.ends_with(expected) && error.is_empty() == expected.is_empty(),
                "{error}"
            );
        };
        check(&plugin, 0o644, "");
        check(
            &plugin,
            0o646,
            "p.so is not to be trusted: everybody may write to it (chmod o-w)",
        );
        check(&plugin, 0o600, "");
        check(
            directory.path(),
            0o777,
            "everybody may write to it (chmod o-w)",
        );
        check(directory.path(), 0o1777, "");
        check(directory.path(), 0o700, "");
    }

    #[test]
    fn only_root_and_own_user_are_trusted() {
        let check = |owner, group, mode, is_plugin, expected: Option<&str>| {
            let rights = FileRights { owner, group, mode };
            let violation = rights.find_violation(is_plugin, 1000);
            assert_eq!(violation.as_deref(), expected, "{owner}:{group} {mode:o}");
        };
        let stranger = Some("it belongs to uid 12345, not to root or to uid 1000");
        check(12_345, 12_345, 0o100_600, true, stranger);
        check(12_345, 0, 0o041_777, false, stranger);
        check(0, 0, 0o100_644, true, None);
        check(1000, 1000, 0o100_664, true, None);
        let by_group = Some("its group may write to it (chmod g-w)");
        check(1000, 50, 0o100_664, true, by_group);
        check(0, 0, 0o041_777, false, None);
    }

    #[test]
    fn relative_missing_and_irregular_paths_are_refused() {
        let check = |path: &str, expected: &str| {
            let error = check_trusted(Path::new(path), 0).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("p.so", "plugin path p.so is not absolute");
        check("/no/such.so", "failed to read /no/such.so: No such file");
        check("/usr", "it is not a regular file");
    }
}
