//! Libraries that the loader finds where the library itself says: by a path, or in a directory of its own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::FileHeader as _;

use super::{LE, Library};

/// Returns the paths of the needed libraries that exist where the library says (`DT_RUNPATH`, else `DT_RPATH`, with
/// `$ORIGIN`; or a name with a slash). Those that the loader finds elsewhere are left out: they are the system's. Empty
/// if the file is damaged. `directory` is the library's own.
pub(crate) fn find_own_dependencies(bytes: &[u8], directory: &Path) -> Vec<PathBuf> {
    let find = || -> Option<Vec<PathBuf>> {
        let header = FileHeader64::parse(bytes).ok()?;
        let segments = header.program_headers(LE, bytes).ok()?;
        let library = Library { bytes, segments };
        let dynamic = library.dynamic().ok()?;
        let strings = library.strings(&dynamic).ok()?;
        let text = |offset| strings.read_name(offset, "").ok();
        let search = dynamic.value(DT_RUNPATH).or(dynamic.value(DT_RPATH));
        // An empty list is none for the loader; an empty part of a list is the working directory.
        let search = search.and_then(text).filter(|list| !list.is_empty());
        let parts = search.map(|list| list.split(|&byte| byte == b':'));
        let directories: Vec<PathBuf> = parts
            .into_iter()
            .flatten()
            .filter_map(|part| expand_origin(part, directory))
            .collect();
        let paths = dynamic.values(DT_NEEDED).filter_map(text);
        let paths = paths.filter_map(|name| {
            if name.contains(&b'/') {
                return expand_origin(name, directory);
            }
            let name = OsStr::from_bytes(name);
            let mut found = directories.iter().map(|directory| directory.join(name));
            found.find(|path| path.exists())
        });
        Some(paths.collect())
    };
    find().unwrap_or_default()
}

/// Expands `$ORIGIN` at the start of a path, and makes the path absolute. One that is empty or relative begins at the
/// working directory, as for the loader. `None` for a path with another variable of the loader's, and if the working
/// directory was removed.
fn expand_origin(path: &[u8], directory: &Path) -> Option<PathBuf> {
    let rest = ["$ORIGIN", "${ORIGIN}"]
        .iter()
        .find_map(|origin| path.strip_prefix(origin.as_bytes()));
    let expanded = match rest {
        Some(rest) => [directory.as_os_str().as_bytes(), rest].concat(),
        None => path.to_owned(),
    };
    let path = match expanded.as_slice() {
        b"" => b".",
        path => path,
    };
    let path = Path::new(OsStr::from_bytes(path));
    let is_known = !expanded.contains(&b'$');
    is_known.then(|| path::absolute(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_expanded() {
        let check = |path: &str, expected: Option<&str>| {
            let expanded = expand_origin(path.as_bytes(), Path::new("/opt/plugins"));
            let expected = expected.map(|path| std::env::current_dir().unwrap().join(path));
            assert_eq!(expanded, expected, "{path}");
        };
        check("$ORIGIN/lib", Some("/opt/plugins/lib"));
        check("${ORIGIN}", Some("/opt/plugins"));
        check("$ORIGIN/../x", Some("/opt/plugins/../x"));
        check("/srv/lib", Some("/srv/lib"));
        check("$LIB/x", None);
        check("/usr/$LIB", None);
        check("lib", Some("lib"));
        check("", Some(""));
    }
}
