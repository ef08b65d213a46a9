//! From a path to a plugin: every check that can be made before the file's code runs is made
//! before it runs.
#![expect(
    unsafe_code,
    reason = "the ABI boundary: loading a library and reading its entry"
)]

use std::fs::File;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use memmap2::Mmap;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::abi_stable::library::AbiHeaderRef;
use memprof_plugin_abi::layout;
use memprof_plugin_abi::raw::{MEMPROF_ABI_MISMATCH, MEMPROF_IO, memprof_plugin_entry_t};
use sha2::{Digest, Sha256};

use crate::config::{PluginConfig, as_in_the_file};
use crate::elf::loadable;
use crate::instance::{Instance, Refused, check_entry};
use crate::program::Program;
use crate::protocol::PluginInfo;
use crate::trust::trusted;

/// Loads the plugin that `config` names, and creates it.
///
/// # Errors
/// The check that failed, or the reason why the plugin could not be created.
pub fn load(config: &PluginConfig, program: Program) -> Result<Instance, Refused> {
    let path = inspect(&config.path, config.sha256.as_deref())?;
    let entry = open(&path)?;
    // SAFETY: `open` found it in a library that it leaked.
    let created = unsafe { Instance::create(entry, program, &config.config_text()) };
    created.map_err(|mut refused| {
        refused.message = as_in_the_file(&refused.message);
        refused
    })
}

/// Makes all checks of [`load`] without creating the plugin. The library's constructors run.
///
/// # Errors
/// The check that failed.
pub fn check(path: &Path, sha256: Option<&str>) -> Result<PluginInfo, Refused> {
    let entry = open(&inspect(path, sha256)?)?;
    // SAFETY: as in `load`.
    unsafe { check_entry(entry) }
}

/// The checks before the file is loaded.
fn inspect(path: &Path, sha256: Option<&str>) -> Result<PathBuf, Refused> {
    let refused = |why: String| Failure::new(MEMPROF_IO, format!("{}: {why}", path.display()));
    let own_uid = rustix::process::geteuid().as_raw();
    let path = trusted(path, own_uid).map_err(|why| Failure::new(MEMPROF_IO, why))?;
    let file = File::open(&path).map_err(|error| refused(error.to_string()))?;
    // SAFETY: only trusted users may change the file while it is read.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| refused(error.to_string()))?;
    loadable(&bytes).map_err(|why| {
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
    Ok(path)
}

/// Loads the library for good and returns its entry, after comparing layouts where it describes
/// them.
fn open(path: &Path) -> Result<*const memprof_plugin_entry_t, Refused> {
    let mismatch =
        |why: String| Failure::new(MEMPROF_ABI_MISMATCH, format!("{}: {why}", path.display()));
    // SAFETY: its constructors run, which is what loading a trusted plugin means.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| mismatch(format!("the loader refused it: {error}")))?;
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
    // SAFETY: `open` leaked the library.
    unsafe { check_entry(entry) }.map_err(|refused| {
        let message = format!("{}: {}", path.display(), refused.message);
        Failure { message, ..refused }
    })?;
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
    Ok(entry)
}
