//! Mapped files, by what their names and paths show of the code in them.

use super::CodeOrigin;
use super::glob::matches_glob;
use super::rules::FILES;
use crate::profile::{Mapping, Profile};

/// Directories of a system's shared libraries.
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
    "/nix/store/",
    "/snap/core",
];

/// Mapping that contains code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MappedFile<'p> {
    /// Path. `None` if the address is in no mapping.
    pub(super) path: Option<&'p str>,
    /// Origin that the file's name determines. `None` if no rule names the file.
    pub(super) known: Option<CodeOrigin>,
    /// Whether it is the main program.
    pub(super) is_main: bool,
    /// Whether it is a library of the system.
    pub(super) is_system_library: bool,
    /// Whether it was unloaded.
    pub(super) is_unloaded: bool,
    /// Whether it is no file: code of a JIT compiler.
    pub(super) is_jit: bool,
}

impl<'p> MappedFile<'p> {
    /// Classifies the file of each mapping by its name and path: program, system library, file that a rule names,
    /// unloaded code or JIT code. The result has the order of the profile's mappings.
    pub(super) fn for_mappings(profile: &'p Profile) -> Vec<Self> {
        let main = profile.main_file().map(|mapping| mapping.path.as_str());
        let mappings = profile.mappings.iter();
        mappings
            .map(|mapping| Self {
                path: Some(&mapping.path),
                known: origin_by_file_name(mapping),
                is_main: main == Some(mapping.path.as_str()),
                is_system_library: is_system_library(mapping.path.trim_end_matches(" (deleted)")),
                is_unloaded: mapping.is_unloaded(),
                is_jit: !mapping.is_file() && !mapping.is_unloaded(),
            })
            .collect()
    }

    /// Returns whether the file counts as a plugin or library of the program: it is neither the program nor a system
    /// library, nor named by a rule. False for JIT code, and for code in no mapping.
    pub(super) fn is_module(self) -> bool {
        let is_other = self.is_main || self.is_system_library || self.is_jit;
        self.path.is_some() && self.known.is_none() && !is_other
    }

    /// Returns whether the file is the program, or a library outside of the system's directories that no rule names. In
    /// such a file, a function's name alone does not prove that the function is a library's. False for code in no
    /// mapping, or in one without a file.
    pub(super) fn is_own(self) -> bool {
        match self.path {
            _ if self.is_main => true,
            None => false,
            Some(path) => {
                self.known.is_none()
                    && !self.is_jit
                    && !SYSTEM_DIRECTORIES
                        .iter()
                        .any(|system| path.starts_with(system))
            }
        }
    }
}

/// Returns whether a path is that of a system library: `lib*.so*` in a default directory of the dynamic loader (`/lib`,
/// `/usr/lib64`), or in its multiarch subdirectory (`x86_64-linux-gnu`). Deeper files are plugins or an interpreter's
/// modules.
fn is_system_library(path: &str) -> bool {
    let Some((directory, name)) = path.rsplit_once('/') else {
        return false;
    };
    let base = match directory.rsplit_once('/') {
        Some((base, machine)) if machine.contains("-linux-") => base,
        _ => directory,
    };
    let is_directory = ["/usr", "/usr/local", ""].iter().any(|prefix| {
        let inside = base.strip_prefix(prefix);
        inside.is_some_and(|inside| matches!(inside, "/lib" | "/lib64" | "/lib32"))
    });
    is_directory && name.starts_with("lib") && name.contains(".so")
}

/// Returns the origin that the table [`FILES`] gives for a mapping's file name, without version. `None` if no pattern
/// of the table matches.
fn origin_by_file_name(mapping: &Mapping) -> Option<CodeOrigin> {
    let name = library_stem(mapping.file_name());
    FILES
        .iter()
        .find(|(_, patterns)| patterns.iter().any(|pattern| matches_glob(pattern, name)))
        .map(|(origin, _)| *origin)
}

/// File name without `.so` and the version: `libc` for `libc.so.6`, `python` for `python3.11`.
pub(crate) fn library_stem(file: &str) -> &str {
    let name = file.find(".so").map_or(file, |index| &file[..index]);
    // Flags of the build follow the version of CPython: python3.11d, libpython3.13t.so.1.0, python3-dbg.
    for stem in ["python", "libpython"] {
        let version = name.strip_prefix(stem).unwrap_or_default();
        let version = version.strip_suffix("-dbg").unwrap_or(version);
        let version = version.trim_end_matches(['d', 'm', 't', 'u']);
        let is_version = version.bytes().all(|c| c.is_ascii_digit() || c == b'.');
        if is_version && version.starts_with(|c: char| c.is_ascii_digit()) {
            return stem;
        }
    }
    name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::{CodeOrigin, MappedFile, Mapping, is_system_library, origin_by_file_name};

    #[test]
    fn file_names_determine_origin() {
        let check = |path: &str, expected: Option<CodeOrigin>| {
            let mapping = Mapping {
                path: path.into(),
                ..Mapping::default()
            };
            assert_eq!(origin_by_file_name(&mapping), expected, "{path}");
        };
        let (plumbing, interpreter) = (Some(CodeOrigin::Plumbing), Some(CodeOrigin::Interpreter));
        check("/lib/x86_64-linux-gnu/libc.so.6", plumbing);
        check("/lib64/ld-linux-x86-64.so.2", plumbing);
        check("/usr/lib/libtcmalloc_minimal.so.4", plumbing);
        check("/usr/lib/x86_64-linux-gnu/libgnat-12.so", plumbing);
        check("/usr/bin/python3.11", interpreter);
        check("/usr/bin/python3.11d", interpreter);
        check("/usr/bin/python3-dbg", interpreter);
        check("/usr/lib/libpython3.13td.so.1.0", interpreter);
        check("/usr/bin/pythonista", None);
        check("/usr/lib/uwsgi/plugins/python311_plugin.so", None);
        check("/usr/bin/python3-worker", None);
        check(
            "/usr/lib/numpy/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
            interpreter,
        );
        check("/usr/lib/libnode.so.108 (deleted)", interpreter);
        check("", plumbing);
        check("/usr/bin/node_exporter", None);
        check("/usr/lib/libcrypto.so.3", None);
        check("/usr/lib/x86_64-linux-gnu/libxml2.so.2.9.14", plumbing);
        check("/usr/lib/libsqlite3.so.0", plumbing);
        check("/srv/lua-server", None);
    }

    #[test]
    fn files_beside_the_program_are_its_own() {
        let check = |path, is_main, expected| {
            let file = MappedFile {
                path: Some(path),
                is_main,
                ..MappedFile::default()
            };
            assert_eq!(file.is_own(), expected, "{path}");
        };
        check("/usr/bin/shop", true, true);
        check("/usr/lib/shop/shop", true, true);
        check("/srv/shop/plugins/cart.so", false, true);
        check("/usr/lib/x86_64-linux-gnu/libcrypto.so.3", false, false);
        check("/lib64/libz.so.1", false, false);
    }

    #[test]
    fn library_of_the_system_is_where_the_linker_finds_it() {
        for path in [
            "/lib/x86_64-linux-gnu/libz.so.1",
            "/usr/lib/libjq.so.1",
            "/usr/lib64/libssl.so.3",
            "/usr/local/lib/libfoo.so",
        ] {
            assert!(is_system_library(path), "{path}");
        }
        for path in [
            "/usr/lib/postgresql/15/lib/pg_trgm.so",
            "/usr/lib/x86_64-linux-gnu/gtk-3.0/modules/libcanberra-gtk-module.so",
            "/usr/lib/python3/dist-packages/lxml/etree.so",
            "/srv/app/lib/libapp.so",
            "/usr/lib/firefox/firefox",
            "libz.so",
        ] {
            assert!(!is_system_library(path), "{path}");
        }
    }
}
