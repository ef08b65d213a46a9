//! Loads plugins. Every check that can be made before the file's code runs is made before.
#![expect(
    unsafe_code,
    reason = "the ABI boundary: loading a library and reading its entry"
)]

use std::error::Error;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use memmap2::Mmap;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::abi_stable::library::AbiHeaderRef;
use memprof_plugin_abi::layout;
use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, memprof_plugin_entry_t,
};
use sha2::{Digest, Sha256};

use crate::config::{PluginConfig, restore_table_prefixes};
use crate::dependencies::check_dependencies;
use crate::elf::{NOT_A_PLUGIN, check_loadable, find_interposable_symbol, stays_loaded};
use crate::file_trust::check_trusted;
use crate::instance::{Instance, check_entry, copy_text, name_warnings};
use crate::mapped_files::mapped_file;
use crate::program::HostProgram;
use crate::protocol::PluginInfo;

/// Loads the library that `config` names, and creates its plugin. The library stays loaded.
///
/// # Errors
/// The file does not exist, is refused by a check, cannot be loaded, or its plugin cannot be created.
pub fn load(config: &PluginConfig, program: HostProgram) -> Result<Instance, Failure> {
    load_plugin_with_check(config, program, |_| Ok(()))
}

/// Loads the library that `config` names, and creates its plugin. The library stays loaded. Before the plugin is
/// created, calls `check_info` with its description, and fails if `check_info` fails. Warnings about the library are
/// logged. Fails also if the file does not exist, is refused by a check or cannot be loaded, or if the plugin cannot be
/// created.
pub(crate) fn load_plugin_with_check(
    config: &PluginConfig,
    program: HostProgram,
    check_info: impl FnOnce(&PluginInfo) -> Result<(), Failure>,
) -> Result<Instance, Failure> {
    let file = check_file(&config.path, config.sha256.as_deref())?;
    let LoadedLibrary { entry, warnings } = load_library(&file)?;
    for warning in warnings {
        log::warn!("{}: {warning}", config.path.display());
    }
    // SAFETY: the entry is of a library that `load_library` leaked.
    check_info(&unsafe { check_entry(entry) }?)?;
    // SAFETY: the entry is of a library that `load_library` leaked.
    let created = unsafe {
        Instance::create_with_source(entry, program, &config.config_text(), config.source())
    };
    created.map_err(|mut failure| {
        failure.message = restore_table_prefixes(&failure.message);
        failure
    })
}

/// Makes all checks of [`load`] without creating the plugin. The library's constructors run, and it stays
/// loaded. Also returns warnings for the plugin's author. `sha256` is the digest that the file must have, in hex;
/// `None` accepts any.
///
/// # Errors
/// The check that failed.
pub fn check(path: &Path, sha256: Option<&str>) -> Result<(PluginInfo, Vec<String>), Failure> {
    let opened = load_library(&check_file(path, sha256)?)?;
    // SAFETY: the entry is of a library that `load_library` leaked.
    let info = unsafe { check_entry(opened.entry) }?;
    Ok((info, opened.warnings))
}

/// Warning for a library that neither the linker nor the SDK keeps loaded. memprof's hosts never unload a library.
const CAN_BE_UNLOADED: &str = "a host that unloads it crashes while one of its threads runs; link it with \
                               -Wl,-z,nodelete";

/// A library that is never unloaded.
struct LoadedLibrary {
    entry: *const memprof_plugin_entry_t,
    warnings: Vec<String>,
}

/// A file that passed all checks. The loader opens it again by its path.
struct CheckedFile {
    path: PathBuf,
    /// Held open, so that its inode number is not reused.
    _file: File,
    identity: FileIdentity,
    stays_loaded: bool,
    /// Symbol of the library that the program could replace.
    interposable: Option<String>,
}

/// Flag of dlopen(3), which libloading does not define; value of Linux's C libraries.
const RTLD_NOLOAD: i32 = 4;

/// Device, inode, and time of the last change (write, rename or link) in seconds and nanoseconds.
type FileIdentity = (u64, u64, i64, i64);

/// Returns the device, inode and change time of a file. All are needed: a file that was replaced may get the inode of
/// the old one, and one that was rewritten keeps it.
fn file_identity(metadata: &Metadata) -> FileIdentity {
    let (changed, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), changed, nanoseconds)
}

impl CheckedFile {
    /// Returns whether the path still refers to the checked file, and the file is unchanged. A file that was moved away
    /// and back counts as changed, too. If this is false after the load, the loader may have run the constructors of
    /// another file.
    fn is_unchanged(&self) -> bool {
        let current = self.path.metadata();
        current.is_ok_and(|current| file_identity(&current) == self.identity)
    }

    /// Returns whether `address` is mapped from this file, under any name. /proc follows a renamed file and marks a
    /// deleted one. The device in /proc is not compared, because an overlay file system shows another one there.
    /// Without /proc the answer is unknown, and true is returned.
    fn is_mapped_at(&self, address: usize) -> bool {
        let maps = match std::fs::read("/proc/self/maps") {
            Ok(maps) => maps,
            Err(error) => {
                let path = self.path.display();
                log::debug!("{path}: taken for the file that is loaded: {error}");
                return true;
            }
        };
        mapped_file(&maps, address).is_some_and(|mapped| {
            let metadata = mapped.metadata();
            mapped == self.path
                || metadata.is_ok_and(|metadata| file_identity(&metadata) == self.identity)
        })
    }
}

/// Makes the checks before the file is loaded: that it is trusted, that it is a whole shared library, that it has the
/// digest `sha256`, and that the libraries that it brings are trusted. With `sha256` = `None`, any digest is accepted.
/// The error says which check failed.
fn check_file(path: &Path, sha256: Option<&str>) -> Result<CheckedFile, Failure> {
    let io_failure =
        |reason: String| Failure::new(MEMPROF_IO, format!("{}: {reason}", path.display()));
    let own_uid = rustix::process::geteuid().as_raw();
    let path = check_trusted(path, own_uid)
        .map_err(|reason| Failure::new(MEMPROF_IO, reason).remedy(untrusted_path_remedy(path)))?;
    let file = File::open(&path).map_err(|error| io_failure(error.to_string()))?;
    let metadata = file.metadata();
    let identity = file_identity(&metadata.map_err(|error| io_failure(error.to_string()))?);
    // SAFETY: only trusted users may change the file while it is read.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| io_failure(error.to_string()))?;
    check_loadable(&bytes).map_err(|reason| {
        let remedy = match reason.starts_with(NOT_A_PLUGIN) {
            true => "name the plugin's shared library",
            false => "copy the plugin again; replace a loaded one by rename, never in place",
        };
        io_failure(reason).remedy(remedy)
    })?;
    if let Some(expected) = sha256 {
        let digest: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if !expected.eq_ignore_ascii_case(&digest) {
            let reason = format!("its sha256 is {digest}, the config asks for {expected}");
            return Err(io_failure(reason).remedy(
                "install the file that the config asks for, or correct sha256 if this file is meant",
            ));
        }
    }
    check_dependencies(&path, &bytes, own_uid)
        .map_err(|reason| io_failure(format!("a library that it needs: {reason}")))?;
    Ok(CheckedFile {
        stays_loaded: stays_loaded(&bytes),
        interposable: find_interposable_symbol(&bytes),
        path,
        _file: file,
        identity,
    })
}

/// Returns the remedy for a plugin's path that [`check_trusted`] refused. Empty unless the path is relative or missing:
/// the reason then names the file or directory to correct.
fn untrusted_path_remedy(path: &Path) -> &'static str {
    if !path.is_absolute() {
        return "write its whole path, from / on";
    }
    match path.try_exists() {
        Ok(false) => "correct the path, or install the plugin there",
        Ok(true) | Err(_) => "",
    }
}

/// Returns the text of dlerror(3), which libloading keeps as the cause, without the path with which it mostly begins.
fn dlerror_text(error: &libloading::Error, path: &Path) -> String {
    let cause = error.source().map(ToString::to_string);
    let cause = cause.unwrap_or_else(|| error.to_string());
    let named = format!("{}: ", path.display());
    cause.strip_prefix(&named).unwrap_or(&cause).to_owned()
}

/// Creates the failure of dlopen(3) with the remedy for `reason`, which is a text of the loader.
fn loader_failure(path: &Path, reason: &str) -> Failure {
    let remedies = [
        (
            "failed to map segment",
            "mount its file system without noexec, or copy the file to another one",
        ),
        (
            "cannot open shared object file",
            "install the library that it names",
        ),
        (
            "version `",
            "build the plugin on the oldest system that it is for",
        ),
        (
            "undefined symbol",
            "link the plugin with the library that defines the symbol",
        ),
        (
            "static TLS",
            "build the plugin without -ftls-model=initial-exec",
        ),
    ];
    let remedy = remedies.iter().find(|(part, _)| reason.contains(part));
    let message = format!("{}: the loader refused it: {reason}", path.display());
    Failure::new(MEMPROF_IO, message).remedy(remedy.map_or("", |(_, remedy)| remedy))
}

/// Returns whether the loader has a library with this path, or the same file under another path. It would then return
/// that library, even if the file at the path was replaced since.
fn is_library_loaded(path: &Path) -> bool {
    // SAFETY: dlopen(3), RTLD_NOLOAD: loads nothing. A library that the program started with has run its constructors.
    unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_NOLOAD) }.is_ok()
}

/// Loads the library and returns its entry, with warnings for the plugin's author. Compares the layouts of structs if
/// the library describes them. Fails if the file was replaced while it was loaded, if the loader had an older file of
/// that name, whose code would run, or if there is no entry for this ABI. The library stays loaded even then.
fn load_library(file: &CheckedFile) -> Result<LoadedLibrary, Failure> {
    let path = file.path.as_path();
    let mismatch = |reason: String| {
        Failure::new(
            MEMPROF_ABI_MISMATCH,
            format!("{}: {reason}", path.display()),
        )
    };
    let was_loaded = is_library_loaded(path);
    // SAFETY: the library's constructors run; the file is trusted.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| loader_failure(path, &dlerror_text(&error, path)))?;
    if !file.is_unchanged() {
        // The library stays loaded, because its constructors may have started threads.
        std::mem::forget(library);
        let message = format!("{}: it was replaced while it was loaded", path.display());
        return Err(Failure::new(MEMPROF_IO, message).remedy("load it again"));
    }
    // SAFETY: memprof.h declares the symbol as a `memprof_plugin_entry_t`.
    let entry = unsafe { library.get::<*const memprof_plugin_entry_t>(b"memprof_plugin_entry\0") }
        .map(|symbol| {
            symbol
                .into_raw()
                .cast_const()
                .cast::<memprof_plugin_entry_t>()
        });
    // SAFETY: abi_stable exports an `AbiHeader` under this name, and only that.
    let header = unsafe { library.get::<AbiHeaderRef>(layout::SYMBOL.as_bytes()) }
        .map(|symbol| symbol.into_raw());
    // Never unloaded: after dlclose of a Rust library, the end of one of its threads crashes.
    std::mem::forget(library);
    let entry = entry.map_err(|_| {
        let message = format!(
            "{}: it exports no memprof_plugin_entry, so it is not a memprof plugin",
            path.display()
        );
        Failure::new(MEMPROF_INVALID_ARGUMENT, message)
    })?;
    if was_loaded && !file.is_mapped_at(entry.addr()) {
        let message = format!(
            "{}: an older file of that name is loaded, whose code would run",
            path.display()
        );
        let remedy = "restart the process, or give the new file another name";
        return Err(Failure::new(MEMPROF_IO, message).remedy(remedy));
    }
    // SAFETY: the entry is of a library that was leaked above.
    let info = unsafe { check_entry(entry) }.map_err(|failure| {
        let message = format!("{}: {}", path.display(), failure.message);
        Failure { message, ..failure }
    })?;
    // Rust's SDK describes its layouts, and keeps the library loaded.
    let can_be_unloaded = !file.stays_loaded && header.is_err();
    let mut warnings: Vec<_> = can_be_unloaded
        .then(|| CAN_BE_UNLOADED.to_owned())
        .into_iter()
        .collect();
    warnings.extend(name_warnings(&info));
    warnings.extend(file.interposable.as_ref().map(|name| {
        format!("a program that exports {name} replaces the plugin's own; link it with -Wl,-Bsymbolic, or hide it")
    }));
    // A plugin in C has no layout description and needs none, because its compiler reads the header.
    if let Ok(header) = header {
        // SAFETY: the symbol is constant data of a leaked library.
        let header = unsafe { std::mem::transmute::<*mut std::ffi::c_void, AbiHeaderRef>(header) };
        layout::check_layouts(header).map_err(|(line, report)| {
            log::debug!("{}: {report}", path.display());
            // SAFETY: the entry was checked above, and its library stays loaded.
            let build_info = unsafe { (*entry).build_info };
            // SAFETY: memprof.h: the entry's texts live as long as the entry.
            let built_by = unsafe { copy_text(build_info) };
            mismatch(format!(
                "its structs are laid out differently (it was built with {built_by}, this host with {}): {line}",
                memprof_plugin_abi::BUILD_INFO
            ))
            .remedy("rebuild the plugin against this host's memprof-plugin-abi")
        })?;
    }
    Ok(LoadedLibrary { entry, warnings })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;

    #[test]
    fn refusals_name_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let check = |path: &Path, sha256: Option<&str>, reason: &str, remedy: &str| {
            let failure = check(path, sha256).unwrap_err();
            assert!(failure.message.contains(reason), "{failure}");
            assert_eq!(failure.remedy, remedy, "{failure}");
        };
        let absolute = "write its whole path, from / on";
        check(Path::new("p.so"), None, "p.so is not absolute", absolute);
        let missing = directory.path().join("gone.so");
        let install = "correct the path, or install the plugin there";
        check(&missing, None, "No such file", install);
        let library = "name the plugin's shared library";
        let other = "it is not a shared library for this machine";
        check(&file("a.so", &[0x9d; 4096]), None, other, library);
        check(&file("words.c", b"int x;\n"), None, other, library);
        check(&file("b.so", b"!<arch>\n"), None, other, library);
        let again = "copy the plugin again; replace a loaded one by rename, never in place";
        check(&file("c.so", b""), None, "it is empty", again);
        check(
            &file("d.so", b"\x7fEL"),
            None,
            "it is not a whole ELF file",
            again,
        );
        let own = std::env::current_exe().unwrap();
        let sha256 =
            "install the file that the config asks for, or correct sha256 if this file is meant";
        check(&own, Some("00"), "the config asks for 00", sha256);
    }
}
