//! From a path to a plugin: every check that can be made before the file's code runs is made
//! before it runs.
#![expect(
    unsafe_code,
    reason = "the ABI boundary: loading a library and reading its entry"
)]

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use memmap2::Mmap;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::abi_stable::library::AbiHeaderRef;
use memprof_plugin_abi::layout;
use memprof_plugin_abi::raw::{MEMPROF_ABI_MISMATCH, MEMPROF_IO, memprof_plugin_entry_t};
use sha2::{Digest, Sha256};

use crate::config::{PluginConfig, with_table_prefix};
use crate::elf::{check_loadable, stays_loaded};
use crate::file_trust::check_trusted;
use crate::instance::{Instance, check_entry};
use crate::program::HostProgram;
use crate::protocol::PluginInfo;

/// Loads the plugin that `config` names, and creates it.
///
/// # Errors
/// The check that failed, or the reason why the plugin could not be created.
pub fn load(config: &PluginConfig, program: HostProgram) -> Result<Instance, Failure> {
    load_if(config, program, |_| Ok(()))
}

/// As [`load`], if what the library says of itself is `allowed`. Nothing is created before.
pub(crate) fn load_if(
    config: &PluginConfig,
    program: HostProgram,
    allowed: impl FnOnce(&PluginInfo) -> Result<(), Failure>,
) -> Result<Instance, Failure> {
    let file = inspect(&config.path, config.sha256.as_deref())?;
    let LoadedLibrary { entry, warning } = open(&file)?;
    if let Some(warning) = warning {
        log::warn!("{}: {warning}", config.path.display());
    }
    // SAFETY: as below.
    allowed(&unsafe { check_entry(entry) }?)?;
    // SAFETY: `open` found it in a library that it leaked.
    let created = unsafe { Instance::create(entry, program, &config.config_text()) };
    created.map_err(|mut refused| {
        refused.message = with_table_prefix(&refused.message);
        refused
    })
}

/// Makes all checks of [`load`] without creating the plugin. The library's constructors run. What its author
/// should know comes with it.
///
/// # Errors
/// The check that failed.
pub fn check(
    path: &Path,
    sha256: Option<&str>,
) -> Result<(PluginInfo, Option<&'static str>), Failure> {
    let opened = open(&inspect(path, sha256)?)?;
    // SAFETY: as in `load`.
    let info = unsafe { check_entry(opened.entry) }?;
    Ok((info, opened.warning))
}

/// Of a library that neither the linker nor the SDK keeps loaded. Ours do it for each that they load.
const CAN_BE_UNLOADED: &str = "a host that unloads it crashes while one of its threads runs; link it with \
                               -Wl,-z,nodelete";

/// A library that was loaded for good.
struct LoadedLibrary {
    entry: *const memprof_plugin_entry_t,
    warning: Option<&'static str>,
}

/// A file that passed the checks, which the loader opens once more by its path.
struct CheckedFile {
    path: PathBuf,
    /// Held open, so that no other file gets its inode.
    _file: File,
    identity: FileIdentity,
    stays_loaded: bool,
}

/// dlopen(3) of Linux's C libraries; libloading does not name it.
const RTLD_NOLOAD: i32 = 4;

/// Device, inode, and when it was last written to, renamed or linked.
type FileIdentity = (u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> FileIdentity {
    let (changed, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), changed, nanoseconds)
}

impl CheckedFile {
    /// Whether the path still leads to the very file that was checked, unchanged: one that was put
    /// there and taken away again changed, too. What another file's constructors did, when a user who
    /// may write there put it there in between, is done by then.
    fn is_same(&self) -> bool {
        let now = self.path.metadata();
        now.is_ok_and(|now| identity(&now) == self.identity)
    }

    /// Whether what lies at `address` is mapped from this file, by whatever name. The kernel follows a file that
    /// is renamed, and tells of one that was deleted; the device that it names there is no proof, as it may be
    /// another one in an overlay. Without /proc nothing is known, and the file is taken for the same.
    fn is_mapped_at(&self, address: usize) -> bool {
        let maps = match std::fs::read("/proc/self/maps") {
            Ok(maps) => maps,
            Err(error) => {
                let path = self.path.display();
                log::debug!("{path}: taken for the file that is loaded: {error}");
                return true;
            }
        };
        let mapped = file_at(&maps, address).map(|file| Path::new(OsStr::from_bytes(file)));
        mapped.is_some_and(|mapped| {
            let found = mapped.metadata();
            mapped == self.path || found.is_ok_and(|found| identity(&found) == self.identity)
        })
    }
}

/// The checks before the file is loaded.
fn inspect(path: &Path, sha256: Option<&str>) -> Result<CheckedFile, Failure> {
    let refused = |why: String| Failure::new(MEMPROF_IO, format!("{}: {why}", path.display()));
    let own_uid = rustix::process::geteuid().as_raw();
    let path = check_trusted(path, own_uid).map_err(|why| Failure::new(MEMPROF_IO, why))?;
    let file = File::open(&path).map_err(|error| refused(error.to_string()))?;
    let metadata = file.metadata();
    let identity = identity(&metadata.map_err(|error| refused(error.to_string()))?);
    // SAFETY: only trusted users may change the file while it is read.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| refused(error.to_string()))?;
    check_loadable(&bytes).map_err(|why| {
        refused(why).remedy("copy the plugin again; replace a loaded one by rename, never in place")
    })?;
    if let Some(expected) = sha256 {
        let found: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if !expected.eq_ignore_ascii_case(&found) {
            return Err(refused(format!(
                "its sha256 is {found}, the config asks for {expected}"
            )));
        }
    }
    Ok(CheckedFile {
        stays_loaded: stays_loaded(&bytes),
        path,
        _file: file,
        identity,
    })
}

/// What dlerror(3) says, which libloading keeps as the cause; mostly it begins with the path.
fn reason(error: &libloading::Error, path: &Path) -> String {
    let cause = error.source().map(ToString::to_string);
    let cause = cause.unwrap_or_else(|| error.to_string());
    let named = format!("{}: ", path.display());
    cause.strip_prefix(&named).unwrap_or(&cause).to_owned()
}

/// Whether the loader has a library by that path, or that file by another path: it then hands out the one that
/// it has, also where the file was replaced since.
fn is_loaded(path: &Path) -> bool {
    // SAFETY: dlopen(3), RTLD_NOLOAD: runs no code of the library's.
    unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_NOLOAD) }.is_ok()
}

/// The file that is mapped at `address`, by the lines of `/proc/PID/maps`.
fn file_at(maps: &[u8], address: usize) -> Option<&[u8]> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let range = line.split(|&byte| byte == b' ').next()?;
        let (start, end) = str::from_utf8(range).ok()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let path = line.iter().position(|&byte| byte == b'/')?;
        let is_here = (number(start)?..number(end)?).contains(&address);
        is_here.then(|| &line[path..])
    })
}

/// Loads the library for good and returns its entry, after comparing layouts where it describes
/// them.
fn open(file: &CheckedFile) -> Result<LoadedLibrary, Failure> {
    let path = file.path.as_path();
    let mismatch =
        |why: String| Failure::new(MEMPROF_ABI_MISMATCH, format!("{}: {why}", path.display()));
    let was_loaded = is_loaded(path);
    // SAFETY: its constructors run, which is what loading a trusted plugin means.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| mismatch(format!("the loader refused it: {}", reason(&error, path))))?;
    if !file.is_same() {
        // It stays loaded: its constructors may have left anything behind.
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
    // Never unloaded: dlclose of a Rust library crashes when one of its threads ends later.
    std::mem::forget(library);
    let entry = entry.map_err(|_| {
        mismatch("it exports no memprof_plugin_entry, so it is not a memprof plugin".to_owned())
    })?;
    if was_loaded && !file.is_mapped_at(entry.addr()) {
        let message = format!(
            "{}: an older file of that name is loaded, whose code would run",
            path.display()
        );
        let remedy = "restart the process, or give the new file another name";
        return Err(Failure::new(MEMPROF_IO, message).remedy(remedy));
    }
    // SAFETY: `open` leaked the library.
    unsafe { check_entry(entry) }.map_err(|refused| {
        let message = format!("{}: {}", path.display(), refused.message);
        Failure { message, ..refused }
    })?;
    // Rust's SDK describes its layouts, and keeps the library loaded by itself.
    let warning = (!file.stays_loaded && header.is_err()).then_some(CAN_BE_UNLOADED);
    // A plugin in C has no layout description, and needs none: its compiler read the header.
    if let Ok(header) = header {
        // SAFETY: the symbol is constant data of a leaked library.
        let header = unsafe { std::mem::transmute::<*mut std::ffi::c_void, AbiHeaderRef>(header) };
        layout::check(header).map_err(|(line, account)| {
            log::debug!("{}: {account}", path.display());
            mismatch(format!("its structs are laid out differently: {line}"))
                .remedy("rebuild the plugin against this host's memprof-plugin-abi")
        })?;
    }
    Ok(LoadedLibrary { entry, warning })
}

#[cfg(test)]
mod tests {
    use super::file_at;

    #[test]
    fn a_file_that_was_replaced_is_not_the_one_that_is_mapped() {
        let maps = b"7f00-7f10 r-xp 00000000 00:2a 77 /opt/a b.so\n\
                     7f10-7f20 r-xp 00000000 00:2a 78 /opt/c.so (deleted)\n\
                     7f20-7f30 rw-p 00000000 00:00 0 \n";
        let check = |address, expected: Option<&str>| {
            assert_eq!(file_at(maps, address), expected.map(str::as_bytes));
        };
        check(0x7eff, None);
        check(0x7f0f, Some("/opt/a b.so"));
        check(0x7f10, Some("/opt/c.so (deleted)"));
        check(0x7f20, None);
    }
}
