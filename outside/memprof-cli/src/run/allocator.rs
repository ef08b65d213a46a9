//! Allocators that replace a program's own, with `--allocator`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::Context;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use crate::exit::{UNAVAILABLE, USAGE, with_exit_code};

/// Library directories of distributions (Debian's multiarch, lib64 of others, self-built libraries).
const LIBRARY_DIRS: [&str; 6] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
];

/// Value of `--allocator`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocatorChoice {
    /// The first `libjemalloc.so.2` that was built with profiling.
    Jemalloc,
    /// gperftools' `libtcmalloc.so.4`.
    Tcmalloc,
    /// Any library that defines `malloc`.
    File(PathBuf),
}

/// A library to preload.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreloadLibrary {
    pub(super) path: PathBuf,
    pub(super) profiler: Option<BuiltinProfiler>,
}

/// The profiler of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltinProfiler {
    /// Enabled by `MALLOC_CONF`.
    Jemalloc,
    /// Enabled by `TCMALLOC_SAMPLE_PARAMETER`.
    Tcmalloc,
}

impl FromStr for AllocatorChoice {
    type Err = Infallible;

    /// Parses `jemalloc` or `tcmalloc`. Takes any other text for a path, so this never fails.
    fn from_str(word: &str) -> Result<Self, Infallible> {
        Ok(match word {
            "jemalloc" => Self::Jemalloc,
            "tcmalloc" => Self::Tcmalloc,
            path => Self::File(path.into()),
        })
    }
}

impl AllocatorChoice {
    /// Finds the library's file, and which profiler it has.
    ///
    /// # Errors
    /// No library is found (the text names the package), or it cannot serve as an allocator.
    pub(super) fn find_library(&self) -> anyhow::Result<PreloadLibrary> {
        match self {
            Self::Jemalloc => Ok(PreloadLibrary {
                path: find_profiling_jemalloc()?,
                profiler: Some(BuiltinProfiler::Jemalloc),
            }),
            Self::Tcmalloc => {
                let path = installed_libraries("libtcmalloc.so.4").next();
                let path = path.ok_or_else(|| {
                    let message = "no libtcmalloc.so.4 is installed; on Debian: apt-get install \
                                   libgoogle-perftools4";
                    with_exit_code(UNAVAILABLE, message.to_owned())
                })?;
                Ok(PreloadLibrary {
                    path,
                    profiler: Some(BuiltinProfiler::Tcmalloc),
                })
            }
            Self::File(file) => require_malloc_library(file),
        }
    }
}

/// Returns the paths of the existing libraries with that file name, in the order of [`LIBRARY_DIRS`].
fn installed_libraries(name: &str) -> impl Iterator<Item = PathBuf> {
    let paths = LIBRARY_DIRS.map(|directory| Path::new(directory).join(name));
    paths.into_iter().filter(|path| path.exists())
}

/// Finds the first installed jemalloc that was built with profiling. Fails if there is none; the text names those
/// without profiling.
fn find_profiling_jemalloc() -> anyhow::Result<PathBuf> {
    let mut without = Vec::new();
    for library in installed_libraries("libjemalloc.so.2") {
        if probe_profiling(&library)? {
            return Ok(library);
        }
        without.push(library.display().to_string());
    }
    let message = if without.is_empty() {
        "no libjemalloc.so.2 is installed".to_owned()
    } else {
        format!("built without profiling: {}", without.join(", "))
    };
    Err(with_exit_code(
        UNAVAILABLE,
        format!("{message}; on Debian: apt-get install libjemalloc2"),
    ))
}

/// Checks a library that the user named by its path, and finds out which profiler it has. Fails unless it is a library
/// that defines `malloc`.
fn require_malloc_library(file: &Path) -> anyhow::Result<PreloadLibrary> {
    let unusable = |reason: &str| {
        let message = format!(
            "{} {reason}; --allocator takes jemalloc, tcmalloc, or the path of a shared library that \
             defines malloc",
            file.display()
        );
        with_exit_code(USAGE, message)
    };
    let path = file.canonicalize().map_err(|_| unusable("is not a file"))?;
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|_| unusable("is not a library"))?;
    let defines = |name: &[u8]| {
        let mut symbols = elf.dynamic_symbols();
        symbols.any(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(name))
    };
    if !defines(b"malloc") {
        return Err(unusable("defines no malloc"));
    }
    let profiler = if defines(b"mallctl") && probe_profiling(&path)? {
        Some(BuiltinProfiler::Jemalloc)
    } else if defines(b"HeapProfilerStart") {
        // gperftools' full library; the minimal one has no profiler.
        Some(BuiltinProfiler::Tcmalloc)
    } else {
        None
    };
    Ok(PreloadLibrary { path, profiler })
}

/// Runs this program with the library preloaded, to find out whether a jemalloc has profiling: with `abort_conf`, it
/// aborts at an option that it does not know. Returns whether the run succeeds.
pub(super) fn probe_profiling(library: &Path) -> anyhow::Result<bool> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let status = Command::new(own)
        .arg("--version")
        .env_clear()
        .env("LD_PRELOAD", library)
        .env("MALLOC_CONF", "abort_conf:true,prof:true,prof_active:false")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("failed to try {}", library.display()))?;
    Ok(status.success())
}

/// Runs a program's loader to find the shared jemalloc that it would load, also as a dependency of another library.
/// `None` if there is none, or if the loader fails.
pub(super) fn find_linked_jemalloc(loader: &Path, program: &Path) -> Option<PathBuf> {
    // Lists the libraries without running code of them (ld.so(8)).
    let listed = Command::new(loader)
        .arg("--list")
        .arg(program)
        .stdin(Stdio::null())
        .output();
    let listed = listed.ok().filter(|listed| listed.status.success())?;
    let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
    lines.lines().find_map(|line| {
        let (name, target) = line.trim().split_once(" => ")?;
        let is_jemalloc = name.starts_with("libjemalloc.so");
        let (path, _) = target.rsplit_once(" (")?;
        is_jemalloc.then(|| PathBuf::from(OsString::from(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_allocator_error_names_valid_ones() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        std::fs::write(&text, "text").unwrap();
        let check = |word: &str, expected: &str| {
            let wanted: AllocatorChoice = word.parse().unwrap();
            let refused = wanted.find_library().unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("{word} {expected}; ")),
                "{refused}"
            );
            assert!(
                refused.contains("takes jemalloc, tcmalloc, or the path"),
                "{refused}"
            );
        };
        check("mimalloc", "is not a file");
        check("/no/such.so", "is not a file");
        check(text.to_str().unwrap(), "is not a library");
        check("/lib/x86_64-linux-gnu/libm.so.6", "defines no malloc");
    }

    #[test]
    fn profiler_of_a_library_is_recognized() {
        let check = |name: &str, profiler: Option<BuiltinProfiler>| {
            let path = installed_libraries(name)
                .next()
                .unwrap()
                .canonicalize()
                .unwrap();
            let found = AllocatorChoice::File(path.clone()).find_library().unwrap();
            assert_eq!(found, PreloadLibrary { path, profiler });
        };
        check("libtcmalloc.so.4", Some(BuiltinProfiler::Tcmalloc));
        check("libtcmalloc_minimal.so.4", None);
        check("libmimalloc.so.2", None);
    }

    #[test]
    fn linked_jemalloc_is_found() {
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        let own = std::env::current_exe().unwrap();
        assert_eq!(find_linked_jemalloc(loader, &own), None);
        let redis = find_linked_jemalloc(loader, Path::new("/usr/bin/redis-server")).unwrap();
        assert!(redis.ends_with("libjemalloc.so.2"), "{}", redis.display());
    }
}
