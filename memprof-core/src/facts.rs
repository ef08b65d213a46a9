//! What [`doctor`](crate::doctor) judges, read from this process.
#![expect(
    unsafe_code,
    reason = "the loader's symbols, and the program's own file"
)]

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use memchr::memmem;

use crate::backend::Backend;
use crate::doctor::{DumpDir, Examined, Facts, Seen};
use crate::jemalloc::{Jemalloc, is_secure_execution};
use crate::objects::EXECUTABLE;
use crate::store::Store;

const NFS: i64 = 0x6969;
const FUSE: i64 = 0x6573_5546;

/// Reads the facts. `allocated` gives an allocator's live bytes, where it tells.
pub(crate) fn gather(
    backends: &[Arc<dyn Backend>],
    unknown_malloc: Option<PathBuf>,
    allocated: impl Fn(&Jemalloc) -> Option<u64>,
    store: &Store,
) -> Facts {
    let jemallocs: Vec<_> = backends.iter().filter_map(|each| each.jemalloc()).collect();
    Facts {
        program_contains_jemalloc: jemallocs.is_empty() && program_contains_jemalloc(),
        jemallocs: jemallocs
            .into_iter()
            .map(|each| Examined::of(each, allocated(each)))
            .collect(),
        allocators: backends.iter().map(|each| Seen::of(&**each)).collect(),
        unknown_malloc,
        secure_execution: is_secure_execution(),
        environment: malloc_variables(),
        lock_free_unwinding: has_find_object(),
        dump_dir: look_at(store),
    }
}

/// The variables that some jemalloc reads.
fn malloc_variables() -> Vec<(String, String)> {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name.ends_with("MALLOC_CONF"))
        .collect()
}

fn has_find_object() -> bool {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    !found.is_null()
}

/// Every jemalloc starts its complaints with this, so a program that links one in contains it.
fn program_contains_jemalloc() -> bool {
    let Ok(file) = File::open(EXECUTABLE) else {
        return false;
    };
    // SAFETY: read-only and private. Should another process truncate the file meanwhile, this
    // process loses its own mapping of it too.
    unsafe { memmap2::Mmap::map(&file) }
        .is_ok_and(|bytes| memmem::find(&bytes, b"<jemalloc>: ").is_some())
}

fn look_at(store: &Store) -> DumpDir {
    let mut dir = DumpDir {
        path: store.directory().to_owned(),
        ..DumpDir::default()
    };
    match store.try_out() {
        Err(error) => dir.unusable = Some((error.message, error.remedy)),
        Ok(directory) => {
            let room = rustix::fs::fstatvfs(&directory);
            dir.room = room
                .ok()
                .map(|room| room.f_bavail.saturating_mul(room.f_frsize));
            let kind = rustix::fs::fstatfs(&directory).map(|kind| kind.f_type);
            dir.may_block = kind.is_ok_and(|kind| [NFS, FUSE].contains(&kind));
        }
    }
    dir
}
