//! The facts, read from this process.
#![expect(
    unsafe_code,
    reason = "the loader's symbols, and the program's own file"
)]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{Object, ObjectSymbol};

use super::conf_sources::{link, sources};
use super::malloc_conf::ConfSource;
use super::runtime_heap::{RuntimeSigns, own_heaps};
use super::{AllocatorFacts, DumpDirFacts, Facts, JemallocFacts};
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};
use crate::allocators::symbols::real_path;
use crate::allocators::unprofilable::malloc_variables;
use crate::dumps::store::Store;
use crate::sampler::Backend;
use crate::system::seccomp;

const NFS: i64 = 0x6969;
const FUSE: i64 = 0x6573_5546;

/// Reads the facts. `allocated` gives an allocator's live bytes, where it tells.
pub(crate) fn gather(
    backends: &[Arc<Backend>],
    unknown_malloc: Option<PathBuf>,
    allocated: impl Fn(&Jemalloc) -> Option<u64>,
    store: &Store,
) -> Facts {
    let objects = loaded_objects::list();
    let jemallocs: Vec<_> = backends
        .iter()
        .filter_map(|each| each.allocator.jemalloc())
        .collect();
    Facts {
        unavailable: None,
        stripped_jemalloc: None,
        jemallocs: jemallocs
            .into_iter()
            .map(|each| {
                let (hidden, sources) = (hidden_conf(each, &objects), sources(each, &objects));
                JemallocFacts::of(each, allocated(each), hidden, sources)
            })
            .collect(),
        allocators: backends
            .iter()
            .map(|each| AllocatorFacts::of(each))
            .collect(),
        unknown_malloc,
        environment: malloc_variables(),
        lock_free_unwinding: memprof_own::libc_symbol(c"_dl_find_object").is_some(),
        is_musl: objects.iter().any(|object| is_musl(&object.path)),
        interposer: interposer(&objects),
        given_up_walks: Vec::new(),
        is_filtered: seccomp::filter_count().is_some(),
        own_heaps: own_heaps(&RuntimeSigns {
            is_exported: &|name| lookup(name) != 0,
            files: &file_names(&objects),
            variable: &|name| std::env::var(name).ok(),
            arguments: &arguments(),
        }),
        dump_dir: inspect_dump_dir(store),
    }
}

impl AllocatorFacts {
    pub(crate) fn of(backend: &Backend) -> Self {
        let identity = backend.identity();
        Self {
            name: identity.to_string(),
            kind: identity.kind,
            in_place: backend.fallback_reason(),
            missing: backend.allocator.missing_symbols().to_vec(),
            sample_interval: backend.sample_interval(),
        }
    }
}

impl JemallocFacts {
    pub(crate) fn of(
        jemalloc: &Jemalloc,
        allocated: Option<u64>,
        hidden_conf: Option<String>,
        sources: Vec<ConfSource>,
    ) -> Self {
        let mallctl = &jemalloc.mallctl;
        let on = |name| mallctl.read_bool(name).unwrap_or(false);
        // -1 (all bits set) means never.
        let interval = mallctl
            .read::<usize>(c"opt.lg_prof_interval")
            .unwrap_or(usize::MAX);
        let prefix = mallctl.read_text(c"opt.prof_prefix");
        let prefix = prefix.unwrap_or_else(|_| String::new());
        Self {
            version: jemalloc.identity.release().to_owned(),
            conf_variable: jemalloc.conf_variable.clone(),
            hidden_conf,
            unprofilable: jemalloc.unprofilable.clone(),
            config_stats: jemalloc.config_stats,
            opt_prof: jemalloc.opt_prof,
            lg_sample: jemalloc.lg_sample(),
            allocated,
            sources,
            unlinked_conf: unlinked_conf(jemalloc),
            prefix_is_shared: is_shared(&prefix),
            prefix,
            dumps_by_itself: on(c"opt.prof_final") || on(c"prof.gdump") || interval < 64,
        }
    }
}

/// The arguments that the program was started with, which it may have written over.
fn arguments() -> Vec<String> {
    // Of what cannot be read nothing is known.
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = line.split(|byte| *byte == 0);
    arguments
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn lookup(name: &CStr) -> usize {
    // SAFETY: dlsym(3) with a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Whether everybody may write to the directory of the files that start with `prefix`.
pub(crate) fn is_shared(prefix: &str) -> bool {
    let directory = match Path::new(prefix).parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let metadata = directory.metadata();
    metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o002 != 0)
}

/// The file in place of the link whose target this jemalloc reads as options.
pub(crate) fn unlinked_conf(jemalloc: &Jemalloc) -> Option<String> {
    let link = link(&jemalloc.conf_variable.as_ref()?.to_lowercase());
    let metadata = Path::new(&link).symlink_metadata().ok()?;
    (!metadata.is_symlink()).then_some(link)
}

fn file_names(objects: &[LoadedObject]) -> Vec<String> {
    let names = objects.iter().filter_map(|object| object.path.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn is_musl(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("ld-musl-") || name.starts_with("libc.musl-"))
}

/// The file that has the first `dl_iterate_phdr`, where that is not the C library.
fn interposer(objects: &[LoadedObject]) -> Option<String> {
    let address = lookup(c"dl_iterate_phdr");
    let object = objects.iter().find(|object| object.is_code(address))?;
    let name = object.path.file_name()?.to_str()?;
    let is_c_library = ["libc.so", "libc-", "ld-linux"]
        .iter()
        .any(|start| name.starts_with(start));
    let path = real_path(&object.path).display().to_string();
    (!is_c_library).then_some(path)
}

/// The variable for this jemalloc's options that the program defines and does not export, so
/// that a jemalloc in a shared library reads its own, empty one.
fn hidden_conf(jemalloc: &Jemalloc, objects: &[LoadedObject]) -> Option<String> {
    let program = objects.first()?;
    if program.contains(jemalloc.mallctl.address()) {
        return None;
    }
    let symbol = jemalloc.conf_variable.as_ref()?.to_lowercase();
    let file = File::open(EXECUTABLE).ok()?;
    // SAFETY: read-only and private. Should another process truncate the file meanwhile, this
    // process loses its own mapping of it too.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let is_it = |found: ElfSymbol64<'_, '_>| {
        found.is_definition() && found.is_global() && found.name_bytes() == Ok(symbol.as_bytes())
    };
    let is_hidden = elf.symbols().any(is_it) && !elf.dynamic_symbols().any(is_it);
    is_hidden.then_some(symbol)
}

fn inspect_dump_dir(store: &Store) -> DumpDirFacts {
    let mut dir = DumpDirFacts {
        path: store.directory().to_owned(),
        ..DumpDirFacts::default()
    };
    match store.probe() {
        Err(error) => dir.unusable = Some((error.to_string(), error.remedy)),
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
