//! The budget file as CI systems name it. They show a finding in the difference of a file only if its path is that of
//! the repository.

use std::env;
use std::path::{Path, PathBuf};

/// Variables with the directory of the checked-out repository: of GitHub's runners and of GitLab's.
const WORKSPACE_VARIABLES: [&str; 2] = ["GITHUB_WORKSPACE", "CI_PROJECT_DIR"];

/// Returns a file's path relative to the root of its repository. The path stays as it is if the file is in no
/// repository.
pub(super) fn repository_path(file: &Path) -> PathBuf {
    let workspace = WORKSPACE_VARIABLES.into_iter().find_map(env::var_os);
    relative_to_root(file, workspace.as_deref().map(Path::new))
        .unwrap_or_else(|| file.components().collect())
}

/// Returns a file's path relative to its root: the nearest directory above the file that is a repository (git(1), also
/// of a submodule or a worktree) or `workspace`, the directory that a CI system names. `None` if there is no such
/// directory, or if the file's directory cannot be resolved.
fn relative_to_root(file: &Path, workspace: Option<&Path>) -> Option<PathBuf> {
    let absolute = std::path::absolute(file).ok()?;
    // Links in the file's own name stay: the difference shows the link.
    let directory = absolute.parent()?.canonicalize().ok()?;
    let workspace = workspace.and_then(|workspace| workspace.canonicalize().ok());
    let is_root = |directory: &&Path| {
        Some(*directory) == workspace.as_deref() || directory.join(".git").exists()
    };
    let root = directory.ancestors().find(is_root)?;
    let directory = directory.strip_prefix(root).ok()?;
    Some(directory.join(absolute.file_name()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn path_starts_at_the_nearest_repository_or_workspace() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for directory in [
            "work/repo/.git",
            "work/repo/sub/deep",
            "work/tree/sub",
            "plain/sub",
        ] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        // A worktree's .git is a file.
        fs::write(path("work/tree/.git"), "gitdir: /elsewhere").unwrap();
        symlink(path("work/repo/sub"), path("link")).unwrap();
        fs::write(path("work/repo/real.toml"), "").unwrap();
        symlink("real.toml", path("work/repo/linked.toml")).unwrap();
        let check = |file: &str, workspace: Option<&str>, expected: Option<&str>| {
            let workspace = workspace.map(path);
            let found = relative_to_root(&path(file), workspace.as_deref());
            assert_eq!(
                found.as_deref(),
                expected.map(Path::new),
                "{file} {workspace:?}"
            );
        };
        check("work/repo/memory.toml", None, Some("memory.toml"));
        check("work/repo/sub/deep/b.toml", None, Some("sub/deep/b.toml"));
        check("work/repo/sub/deep/../b.toml", None, Some("sub/b.toml"));
        check("work/repo/./sub/b.toml", Some("work"), Some("sub/b.toml"));
        check("work/tree/sub/b.toml", Some("work"), Some("sub/b.toml"));
        check("work/b.toml", Some("work"), Some("b.toml"));
        check("link/b.toml", Some("work"), Some("sub/b.toml"));
        check("work/repo/linked.toml", None, Some("linked.toml"));
        check("plain/sub/b.toml", Some("plain"), Some("sub/b.toml"));
        check("plain/sub/b.toml", Some("work"), None);
        check("absent/b.toml", Some("work"), None);
    }
}
