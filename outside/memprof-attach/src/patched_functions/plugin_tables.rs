//! Passes the plugin the addresses of tables that it cannot find by `malloc`.

use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_sampler::{TABLES_SYMBOL, memprof_entry_tables};

use crate::error::AttachError;
use crate::run_calls::write_error;
use crate::target::Target;

/// Stores the address of a table in the plugin's list [`TABLES_SYMBOL`]. Does nothing if the list has it already.
///
/// # Errors
/// `NotPatched`: the process has no plugin with such a list, or the list is full. `Io`: the process's memory cannot be
/// read or written.
pub(super) fn register_table(target: &Target, table: u64) -> Result<(), AttachError> {
    let failed = |cause| write_error(target, cause);
    let libraries = loaded_libraries(&target.memory, &target.maps).map_err(failed)?;
    // From the end: the plugin was loaded late.
    let list = libraries.iter().rev().find_map(|base| {
        LibraryImage::read(&target.memory, *base)
            .ok()?
            .symbol_address(TABLES_SYMBOL)
    });
    let missing = || AttachError::NotPatched("its plugin is of another version".to_owned());
    let list = list.ok_or_else(missing)?;
    for index in 0..memprof_entry_tables.len() as u64 {
        let address = list + 8 * index;
        let word = target.memory.read_u64(address).map_err(failed)?;
        if word == table {
            return Ok(());
        }
        if word == 0 {
            let written = target.memory.write(address, &table.to_le_bytes());
            return written.map_err(failed);
        }
    }
    Err(AttachError::NotPatched(
        "too many files of it have an allocator".to_owned(),
    ))
}
