//! Lists of directories in which the loader searches for libraries (ld.so(8), "Dynamic string tokens" and "Hardware
//! capabilities").

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};

/// Values that `$LIB` and `$PLATFORM` have, each in some build of glibc or on some CPU. No function of the loader says
/// which they are in this process.
const LIB: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
const PLATFORM: [&str; 3] = ["haswell", "xeon_phi", "x86_64"];

/// Subdirectories in which glibc 2.33 and later search first, on CPUs of that level.
const CPU_LEVELS: &str = "glibc-hwcaps";
/// Names of which glibc before 2.37 joins any, in this order, to a subdirectory.
const CAPABILITIES: [&str; 5] = ["tls", "haswell", "xeon_phi", "avx512_1", "x86_64"];

/// A path at which the loader may find a library.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// Whether any loader on any CPU takes the file if it is there and no earlier candidate is.
    pub(super) is_certain: bool,
}

/// Splits a list of directories, expands the variables in each, and makes each absolute. `separators` are `:` for a
/// file's own list, `:` and `;` for `LD_LIBRARY_PATH`. An empty entry is the working directory. `origin` is the value
/// of `$ORIGIN`.
pub(super) fn expand_search_list(list: &[u8], separators: &[u8], origin: &Path) -> Vec<Candidate> {
    list.split(|byte| separators.contains(byte))
        .flat_map(|entry| expand_path(entry, origin))
        .collect()
}

/// Expands the variables `$ORIGIN`, `$LIB` and `$PLATFORM`, also in braces, and makes the path absolute. A relative or
/// empty path begins at the working directory. Other names after `$` stay. Returns all paths that the text can mean, at
/// most `MAX_MEANINGS`; none if the working directory was removed.
pub(super) fn expand_path(path: &[u8], origin: &Path) -> Vec<Candidate> {
    let (mut expanded, mut rest) = (vec![Vec::new()], path);
    while let Some(start) = rest.iter().position(|&byte| byte == b'$') {
        let (before, token) = rest.split_at(start);
        let variables: [(&str, &[&[u8]]); 3] = [
            ("ORIGIN", &[origin.as_os_str().as_bytes()]),
            ("LIB", &LIB.map(str::as_bytes)),
            ("PLATFORM", &PLATFORM.map(str::as_bytes)),
        ];
        let variable = variables
            .iter()
            .find_map(|(name, values)| Some((*values, strip_variable(token, name)?)));
        let (values, after) = variable.unwrap_or((&[b"$"], &token[1..]));
        let extend = |start: &Vec<u8>| {
            let join = |value: &&[u8]| [start, before, value].concat();
            values.iter().map(join).collect::<Vec<_>>()
        };
        expanded = expanded
            .iter()
            .flat_map(extend)
            .take(MAX_MEANINGS)
            .collect();
        rest = after;
    }
    let is_certain = expanded.len() == 1;
    let absolute = |start: &Vec<u8>| {
        let whole = [start, rest].concat();
        let text = if whole.is_empty() {
            b"."
        } else {
            whole.as_slice()
        };
        path::absolute(OsStr::from_bytes(text)).ok()
    };
    let paths = expanded.iter().filter_map(absolute);
    paths.map(|path| Candidate { path, is_certain }).collect()
}

/// Most meanings of a path that are followed: three variables of three values.
const MAX_MEANINGS: usize = 27;

/// Returns the text after the variable `name` at the start of `token`, in either form: `$NAME` or `${NAME}`. `None` if
/// another name is there.
fn strip_variable<'a>(token: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let token = token.strip_prefix(b"$")?;
    let (braced, token) = match token.strip_prefix(b"{") {
        Some(inside) => (true, inside),
        None => (false, token),
    };
    let rest = token.strip_prefix(name.as_bytes())?;
    let continues = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match braced {
        true => rest.strip_prefix(b"}"),
        false => (!rest.first().is_some_and(continues)).then_some(rest),
    }
}

/// Returns the paths at which the loader looks for the file `name` in a directory and in its existing subdirectories
/// for CPUs, in the loader's order. The files need not exist.
pub(super) fn candidates_in(directory: &Candidate, name: &[u8]) -> Vec<Candidate> {
    let mut directories = Vec::new();
    let levels = directory.path.join(CPU_LEVELS);
    if levels.is_dir() {
        directories.extend(["x86-64-v4", "x86-64-v3", "x86-64-v2"].map(|level| levels.join(level)));
    }
    push_subdirectories(&directory.path, &CAPABILITIES, &mut directories);
    let in_subdirectory = directories.into_iter().map(|path| (path, false));
    let all = in_subdirectory.chain([(directory.path.clone(), directory.is_certain)]);
    all.map(|(path, is_certain)| Candidate {
        path: path.join(OsStr::from_bytes(name)),
        is_certain,
    })
    .collect()
}

/// Adds the existing subdirectories of `directory` whose path consists of some of `names` in their order, such as
/// `tls/x86_64`. Each comes before its parent.
fn push_subdirectories(directory: &Path, names: &[&str], found: &mut Vec<PathBuf>) {
    for (index, name) in names.iter().enumerate() {
        let subdirectory = directory.join(name);
        if subdirectory.is_dir() {
            push_subdirectories(&subdirectory, &names[index + 1..], found);
            found.push(subdirectory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_expanded_as_by_the_loader() {
        let check = |path: &str, expected: &[&str]| {
            let expanded = expand_path(path.as_bytes(), Path::new("/opt/plugins"));
            let directory = std::env::current_dir().unwrap();
            let expected: Vec<_> = expected
                .iter()
                .map(|path| Candidate {
                    path: directory.join(path),
                    is_certain: expected.len() == 1,
                })
                .collect();
            assert_eq!(expanded, expected, "{path}");
        };
        check("$ORIGIN/lib", &["/opt/plugins/lib"]);
        check("${ORIGIN}", &["/opt/plugins"]);
        check("$ORIGIN/../x", &["/opt/plugins/../x"]);
        check("/q$ORIGIN", &["/q/opt/plugins"]);
        check("/q/${ORIGIN}x/$ORIGIN", &["/q//opt/pluginsx//opt/plugins"]);
        check("/q/$ORIGINx", &["/q/$ORIGINx"]);
        check("/q/$ORIGIN_", &["/q/$ORIGIN_"]);
        check("/q/${ORIGIN", &["/q/${ORIGIN"]);
        check("/q/$FOO/$", &["/q/$FOO/$"]);
        check("/srv/lib", &["/srv/lib"]);
        check("lib", &["lib"]);
        check("", &[""]);
        check(
            "/usr/$LIB/x",
            &["/usr/lib/x86_64-linux-gnu/x", "/usr/lib64/x", "/usr/lib/x"],
        );
        check("${PLATFORM}", &["haswell", "xeon_phi", "x86_64"]);
    }

    #[test]
    fn files_of_cpu_come_first() {
        let directory = tempfile::tempdir().unwrap();
        let check = |made: &[&str], expected: &[&str]| {
            for made in made {
                std::fs::create_dir_all(directory.path().join(made)).unwrap();
            }
            let searched = Candidate {
                path: directory.path().to_owned(),
                is_certain: true,
            };
            let files = candidates_in(&searched, b"a.so");
            let paths = files.iter().map(|file| {
                assert_eq!(file.is_certain, file.path == directory.path().join("a.so"));
                file.path
                    .strip_prefix(directory.path())
                    .unwrap()
                    .to_str()
                    .unwrap()
            });
            assert_eq!(paths.collect::<Vec<_>>(), expected);
        };
        check(&[], &["a.so"]);
        check(
            &["tls/x86_64", "x86_64", "other"],
            &["tls/x86_64/a.so", "tls/a.so", "x86_64/a.so", "a.so"],
        );
    }
}
