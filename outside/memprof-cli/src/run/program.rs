//! Examines a program to run: its file, its jemalloc, and reasons why nothing can be preloaded.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef, elf};

use crate::exit::{UNAVAILABLE, USAGE, with_exit_code};
use crate::malloc_conf::{JemallocInFile, find_jemalloc_in_elf, has_profiler};
use crate::program_kind;
use crate::run::allocator::{find_linked_jemalloc, probe_profiling};
use crate::script::{find_in_path, read_head, script_interpreter};

/// A program that the plugin can be preloaded into.
#[derive(Debug)]
pub(crate) struct Program {
    /// File that is executed: a binary or a script.
    pub(crate) path: PathBuf,
    /// The binary: `path`, or the interpreter of the script.
    binary: PathBuf,
    own_jemalloc: ProgramJemalloc,
}

/// jemalloc of a program, without anything preloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramJemalloc {
    pub(crate) location: JemallocLocation,
    /// Whether it was built with profiling.
    pub(crate) can_profile: bool,
}

/// Location of a program's jemalloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JemallocLocation {
    /// The program has none.
    Nowhere,
    /// In the shared library, which the program or another library links to.
    Linked,
    /// In the program under a prefix, in addition to `malloc`; this variable configures it.
    Beside(String),
    /// In the program, as its `malloc`.
    Malloc,
    /// In the program, but stripped, so its functions and variable are unknown.
    Unknown,
}

/// Largest number of interpreters: a script may name another script as its interpreter (execve(2)).
const MAX_INTERPRETERS: usize = 4;

/// Functions of the sanitizers' libraries that programs built with them import.
const SANITIZER_FUNCTIONS: [&[u8]; 5] = [
    b"__asan_init",
    b"__hwasan_init",
    b"__lsan_init",
    b"__msan_init",
    b"__tsan_init",
];

/// Mode bits of a file that changes the user or the group at execve(2) (inode(7)).
const SETUID_BIT: u32 = 0o4000;
const SETGID_BIT: u32 = 0o2000;

impl Program {
    /// Finds a program as a shell does, and examines it; if it is a script, its interpreter.
    ///
    /// # Errors
    /// The program is not found, or nothing can be preloaded into it.
    pub(crate) fn find(name: &OsStr) -> anyhow::Result<Self> {
        let path = find_in_path(name)?;
        let mut binary = path.clone();
        for _ in 0..MAX_INTERPRETERS {
            let (file, head) = open_program(&binary)?;
            require_equal_rights(&binary)?;
            match script_interpreter(&head) {
                Some(interpreter) => binary = interpreter,
                None => {
                    let own_jemalloc = examine_binary(&binary, &file, &head)?;
                    return Ok(Self {
                        path,
                        binary,
                        own_jemalloc,
                    });
                }
            }
        }
        let message = format!("{}: too many interpreters", path.display());
        Err(with_exit_code(USAGE, message))
    }

    /// Returns the jemalloc that the program contains or is linked with.
    pub(crate) fn own_jemalloc(&self) -> &ProgramJemalloc {
        &self.own_jemalloc
    }

    /// Returns whether an allocator is linked into the binary, as its `malloc` or in addition to it. In addition to
    /// `malloc`, only jemalloc is found without symbols.
    ///
    /// # Errors
    /// The binary cannot be read.
    pub(crate) fn has_linked_allocator(&self) -> anyhow::Result<bool> {
        if !matches!(
            self.own_jemalloc.location,
            JemallocLocation::Nowhere | JemallocLocation::Linked
        ) {
            return Ok(true);
        }
        let failed = || format!("failed to read {}", self.binary.display());
        let cache = ReadCache::new(File::open(&self.binary).with_context(failed)?);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).with_context(failed)?;
        let exports = |name: &[u8]| {
            let mut exported = elf.dynamic_symbols().filter(ObjectSymbol::is_definition);
            exported.any(|symbol| symbol.name_bytes() == Ok(name))
        };
        // CPython contains a mimalloc since 3.13, which it uses only without the GIL, or if PYTHONMALLOC says so.
        Ok(
            exports(b"malloc")
                || !exports(b"Py_BytesMain") && program_kind::defines_allocator(&elf),
        )
    }

    /// Returns the variable that enables profiling in the program's own jemalloc; `None` if there is no such jemalloc.
    pub(crate) fn conf_variable(&self) -> Option<&str> {
        match &self.own_jemalloc.location {
            _ if !self.own_jemalloc.can_profile => None,
            JemallocLocation::Linked | JemallocLocation::Malloc => Some("MALLOC_CONF"),
            JemallocLocation::Beside(variable) => Some(variable),
            JemallocLocation::Nowhere | JemallocLocation::Unknown => None,
        }
    }
}

/// Opens a program's file; returns it with its first bytes, by which execve(2) recognizes its format.
fn open_program(path: &Path) -> anyhow::Result<(File, Vec<u8>)> {
    let opened = File::open(path).and_then(|file| {
        let head = read_head(&file)?;
        Ok((file, head))
    });
    opened.with_context(|| format!("failed to read {}", path.display()))
}

/// Fails if the program would run with other rights than this process, by setuid, setgid or capabilities: the loader
/// then ignores `LD_PRELOAD`.
fn require_equal_rights(path: &Path) -> anyhow::Result<()> {
    let metadata = path
        .metadata()
        .with_context(|| path.display().to_string())?;
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let changes_user = metadata.mode() & SETUID_BIT != 0 && metadata.uid() != uid;
    let changes_group = metadata.mode() & SETGID_BIT != 0 && metadata.gid() != gid;
    let has_capabilities = uid != 0 && has_capabilities(path);
    if changes_user || changes_group || has_capabilities {
        let message = format!(
            "{} runs with other rights than yours (setuid, setgid or capabilities), so the loader ignores \
             LD_PRELOAD; run memprof as the user that it changes to, or, for capabilities, as root",
            path.display()
        );
        return Err(with_exit_code(UNAVAILABLE, message));
    }
    Ok(())
}

/// Returns whether a file has capabilities (capabilities(7), File capabilities).
fn has_capabilities(path: &Path) -> bool {
    // Larger than the attribute, which the kernel limits to 24 bytes (vfs_ns_cap_data).
    let mut value = [0; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value).is_ok()
}

/// Checks that the plugin can be preloaded into a binary, which must be dynamically linked ELF for glibc on x86-64
/// without a sanitizer, and returns the binary's jemalloc. `head` are its first bytes.
fn examine_binary(path: &Path, file: &File, head: &[u8]) -> anyhow::Result<ProgramJemalloc> {
    if !head.starts_with(&elf::ELFMAG) {
        let message = format!(
            "{} is not an ELF file; if it is a script, name its interpreter: memprof run -- INTERPRETER {0}",
            path.display()
        );
        return Err(with_exit_code(UNAVAILABLE, message));
    }
    let failed = || {
        format!(
            "{} is not a program for this machine (64-bit x86)",
            path.display()
        )
    };
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).with_context(failed)?;
    let is_dynamic = elf
        .elf_program_headers()
        .iter()
        .any(|header| header.p_type(elf.endian()) == elf::PT_INTERP);
    if !is_dynamic {
        let message = format!(
            "{} is statically linked, so nothing can be preloaded into it; build the plugin's \
             host into it (memprof-host), or link it dynamically",
            path.display()
        );
        return Err(with_exit_code(UNAVAILABLE, message));
    }
    require_no_sanitizer(path, &elf)?;
    let loader = require_glibc_loader(path, &elf)?;
    let class = elf.elf_header().e_machine(elf.endian());
    if class != elf::EM_X86_64 {
        anyhow::bail!(failed());
    }
    let location = match find_jemalloc_in_elf(&elf, file).with_context(failed)? {
        JemallocInFile::Variable(variable) if variable == "MALLOC_CONF" => JemallocLocation::Malloc,
        JemallocInFile::Variable(variable) => JemallocLocation::Beside(variable),
        JemallocInFile::Hidden => JemallocLocation::Unknown,
        JemallocInFile::Linked | JemallocInFile::Stripped | JemallocInFile::Nothing => {
            return match find_linked_jemalloc(loader, path) {
                Some(library) => Ok(ProgramJemalloc {
                    can_profile: probe_profiling(&library)?,
                    location: JemallocLocation::Linked,
                }),
                None => Ok(ProgramJemalloc {
                    location: JemallocLocation::Nowhere,
                    can_profile: false,
                }),
            };
        }
    };
    Ok(ProgramJemalloc {
        location,
        can_profile: has_profiler(&elf, file).with_context(failed)?,
    })
}

/// Fails if a sanitizer's runtime must be the first library of the program, so that nothing may be preloaded.
fn require_no_sanitizer<'d, R: ReadRef<'d>>(
    path: &Path,
    elf: &ElfFile64<'d, Endianness, R>,
) -> anyhow::Result<()> {
    let mut imported = elf.dynamic_symbols().filter(ObjectSymbol::is_undefined);
    let has_sanitizer = imported.any(|symbol| {
        let name = symbol.name_bytes().unwrap_or_default();
        SANITIZER_FUNCTIONS.contains(&name)
    });
    if has_sanitizer {
        let message = format!(
            "{} was built with a sanitizer, whose library must be loaded before all others; use a build without it",
            path.display()
        );
        return Err(with_exit_code(UNAVAILABLE, message));
    }
    Ok(())
}

/// Returns the path of the program's loader. Fails unless it is glibc's, which the plugin needs: another one cannot
/// load it, or fails later.
fn require_glibc_loader<'d, R: ReadRef<'d>>(
    path: &Path,
    elf: &ElfFile64<'d, Endianness, R>,
) -> anyhow::Result<&'d Path> {
    let mut headers = elf.elf_program_headers().iter();
    let named = headers.find_map(|header| header.interpreter(elf.endian(), elf.data()).ok()?);
    let loader = Path::new(OsStr::from_bytes(named.unwrap_or_default()));
    let file = loader.file_name().unwrap_or_default().to_string_lossy();
    if file.starts_with("ld-linux") {
        return Ok(loader);
    }
    let libc = if file.starts_with("ld-musl") {
        "musl".to_owned()
    } else {
        format!("the loader {}", loader.display())
    };
    let message = format!(
        "{} is built for {libc}, and the plugin for glibc, so it cannot be preloaded; build the \
         program for glibc",
        path.display()
    );
    Err(with_exit_code(UNAVAILABLE, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_for_another_libc_is_rejected_by_name() {
        const GLIBC: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = memchr::memmem::find(&own, GLIBC).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        let check = |loader: &[u8], expected: &str| {
            let mut program = own.clone();
            program[at..at + GLIBC.len()].fill(0);
            program[at..at + loader.len()].copy_from_slice(loader);
            std::fs::write(&file, program).unwrap();
            let refused = Program::find(file.as_os_str()).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        };
        check(
            b"/lib/ld-musl-x86_64.so.1",
            "is built for musl, and the plugin for glibc",
        );
        check(
            b"/system/bin/linker64",
            "is built for the loader /system/bin/linker64",
        );
        std::fs::write(&file, &own).unwrap();
        Program::find(file.as_os_str()).unwrap();
    }

    #[test]
    fn interpreters_of_scripts_are_found() {
        let check = |script: &str, expected: Option<&str>| {
            assert_eq!(
                script_interpreter(script.as_bytes()),
                expected.map(PathBuf::from)
            );
        };
        check("#!/usr/bin/perl -w\nprint 1;", Some("/usr/bin/perl"));
        check("#! /bin/sh", Some("/bin/sh"));
        check("\u{7f}ELF", None);
        check("", None);
    }

    #[test]
    fn unprofilable_program_error_names_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        let check = |path: &Path, expected: &str| {
            let refused = format!("{:#}", Program::find(path.as_os_str()).unwrap_err());
            assert!(refused.contains(expected), "{refused}");
        };
        check(&file, "failed to read ");
        std::fs::write(&file, "text").unwrap();
        check(
            &file,
            "is not an ELF file; if it is a script, name its interpreter",
        );
        std::fs::write(&file, format!("#!{}\n", file.display())).unwrap();
        check(&file, "too many interpreters");
        check(
            Path::new("no-such-program"),
            "no program no-such-program is in PATH",
        );
    }
}
