//! Gathers the facts from this process.
#![expect(
    unsafe_code,
    reason = "the loader's symbols, and the program's own file"
)]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memprof_messages::{RuntimeSigns, find_runtime_heaps};
use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{Object, ObjectSymbol};

use super::conf_sources::{conf_link_path, read_conf_sources};
use super::malloc_conf::ConfSource;
use super::{AllocatorFacts, DumpDirFacts, Facts, JemallocFacts};
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};
use crate::allocators::symbols::resolve_executable_link;
use crate::allocators::unprofilable::malloc_conf_variables;
use crate::dumps::store::Store;
use crate::sampler::Backend;
use crate::system::seccomp;

/// File system types (statfs(2)).
const NFS: i64 = 0x6969;
const FUSE: i64 = 0x6573_5546;

/// Gathers the facts from the process. Facts that only the profiler knows are left empty: `unavailable`,
/// `stripped_jemalloc` and `walker_disagreements`. `unknown_malloc` is the file of the `malloc` that serves the
/// process, if it belongs to none of `backends`. `allocated` returns the live bytes of a jemalloc, if known.
pub(crate) fn gather_facts(
    backends: &[Arc<Backend>],
    unknown_malloc: Option<PathBuf>,
    allocated: impl Fn(&Jemalloc) -> Option<u64>,
    store: &Store,
) -> Facts {
    let objects = loaded_objects::list_loaded_objects();
    let jemallocs: Vec<_> = backends
        .iter()
        .filter_map(|each| each.allocator.as_jemalloc())
        .collect();
    Facts {
        unavailable: None,
        stripped_jemalloc: None,
        jemallocs: jemallocs
            .into_iter()
            .map(|each| {
                let (hidden, sources) = (
                    find_hidden_conf_symbol(each, &objects),
                    read_conf_sources(each, &objects),
                );
                JemallocFacts::read(each, allocated(each), hidden, sources)
            })
            .collect(),
        allocators: backends
            .iter()
            .map(|each| AllocatorFacts::from_backend(each))
            .collect(),
        unknown_malloc,
        environment: malloc_conf_variables(),
        lock_free_unwinding: memprof_own::libc_symbol(c"_dl_find_object").is_some(),
        is_musl: objects.iter().any(|object| is_musl_file(&object.path)),
        interposer: find_unwind_interposer(&objects),
        walker_disagreements: Vec::new(),
        has_seccomp_filter: seccomp::filter_count().is_some(),
        runtime_heaps: find_runtime_heaps(&RuntimeSigns {
            is_exported: &|name| find_global_symbol(name) != 0,
            files: &file_names(&objects),
            variable: &|name| std::env::var(name).ok(),
            arguments: &read_program_arguments(),
        }),
        dump_dir: inspect_dump_dir(store),
    }
}

impl AllocatorFacts {
    /// Reads the facts of one allocator. The sample interval is that of the selected sampler, the allocator's or
    /// memprof's.
    pub(crate) fn from_backend(backend: &Backend) -> Self {
        let identity = backend.identity();
        Self {
            name: identity.to_string(),
            kind: identity.kind,
            fallback_reason: backend.fallback_reason(),
            missing: backend.allocator.missing_symbols().to_vec(),
            sample_interval: backend.sample_interval(),
        }
    }
}

impl JemallocFacts {
    /// Reads the options of one jemalloc that concern profiling. A switch that cannot be read counts as off.
    /// `allocated` is its live bytes, if known. `hidden_conf_symbol` and `sources` come from the caller, and are stored
    /// unchanged.
    pub(crate) fn read(
        jemalloc: &Jemalloc,
        allocated: Option<u64>,
        hidden_conf_symbol: Option<String>,
        sources: Vec<ConfSource>,
    ) -> Self {
        let mallctl = &jemalloc.mallctl;
        let is_on = |name| mallctl.read_bool(name).unwrap_or(false);
        // log2 of bytes, at most 63; -1 (read as usize::MAX) means never.
        let interval = mallctl
            .read::<usize>(c"opt.lg_prof_interval")
            .unwrap_or(usize::MAX);
        let prefix = mallctl.read_text(c"opt.prof_prefix");
        let prefix = prefix.unwrap_or_else(|_| String::new());
        Self {
            version: jemalloc.identity.release_version().to_owned(),
            conf_variable: jemalloc.conf_variable.clone(),
            hidden_conf_symbol,
            unprofilable: jemalloc.unprofilable.clone(),
            config_stats: jemalloc.config_stats,
            opt_prof: jemalloc.opt_prof,
            lg_sample: jemalloc.lg_sample(),
            allocated,
            sources,
            misplaced_conf_file: find_misplaced_conf_file(jemalloc),
            is_prefix_dir_world_writable: is_prefix_dir_world_writable(&prefix),
            prefix,
            has_builtin_dumps: is_on(c"opt.prof_final") || is_on(c"prof.gdump") || interval < 64,
            has_builtin_gdump: jemalloc.opt_prof && is_on(c"prof.gdump"),
            may_skip_threads: jemalloc.may_skip_threads(),
        }
    }
}

/// Reads the arguments of the program, which it may have overwritten since its start. Empty if they cannot be read.
fn read_program_arguments() -> Vec<String> {
    // /proc/self has no arguments after the main thread has exited.
    let line = std::fs::read("/proc/thread-self/cmdline").unwrap_or_default();
    let arguments = line.split(|byte| *byte == 0);
    arguments
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Address of the symbol `name` in the process's global scope; 0 if there is none.
fn find_global_symbol(name: &CStr) -> usize {
    // SAFETY: dlsym(3) gets a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Whether every user may write to the directory of files that start with `prefix`. False if its mode cannot be read.
pub(crate) fn is_prefix_dir_world_writable(prefix: &str) -> bool {
    let directory = match Path::new(prefix).parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let metadata = directory.metadata();
    metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o002 != 0)
}

/// Path of a file that should be a symbolic link, because this jemalloc reads the link's target as options. `None` if
/// the path is a link or missing, or if the jemalloc's prefix is unknown.
pub(crate) fn find_misplaced_conf_file(jemalloc: &Jemalloc) -> Option<String> {
    let path = conf_link_path(&jemalloc.conf_variable.as_ref()?.to_lowercase());
    let metadata = Path::new(&path).symlink_metadata().ok()?;
    (!metadata.is_symlink()).then_some(path)
}

/// Names of the objects' files, without directories.
fn file_names(objects: &[LoadedObject]) -> Vec<String> {
    let names = objects.iter().filter_map(|object| object.path.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// Whether the file is musl's loader or C library.
fn is_musl_file(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("ld-musl-") || name.starts_with("libc.musl-"))
}

/// Path of the object that interposes `dl_iterate_phdr`, which unwinders call. `None` if the C library's own function
/// is in use, judged by the file's name, or if no object contains the function.
fn find_unwind_interposer(objects: &[LoadedObject]) -> Option<String> {
    let address = find_global_symbol(c"dl_iterate_phdr");
    let object = objects
        .iter()
        .find(|object| object.contains_code_at(address))?;
    let name = object.path.file_name()?.to_string_lossy();
    let is_c_library = ["libc.so", "libc-", "ld-linux"]
        .iter()
        .any(|start| name.starts_with(start));
    let path = resolve_executable_link(&object.path).display().to_string();
    (!is_c_library).then_some(path)
}

/// Name of the variable for this jemalloc's options, if the program defines it without exporting it. A jemalloc in a
/// shared library then reads its own variable, which is empty. `None` also if the jemalloc is inside the program, if
/// its prefix is unknown, or if the program's file cannot be read.
fn find_hidden_conf_symbol(jemalloc: &Jemalloc, objects: &[LoadedObject]) -> Option<String> {
    let program = objects.first()?;
    if program.contains(jemalloc.mallctl.address()) {
        return None;
    }
    let symbol = jemalloc.conf_variable.as_ref()?.to_lowercase();
    let file = File::open(EXECUTABLE).ok()?;
    // SAFETY: the mapping is read-only and private. If another process truncates the file, the loader's own
    // mapping of it fails too.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let is_variable = |found: ElfSymbol64<'_, '_>| {
        found.is_definition() && found.is_global() && found.name_bytes() == Ok(symbol.as_bytes())
    };
    let is_hidden = elf.symbols().any(is_variable) && !elf.dynamic_symbols().any(is_variable);
    is_hidden.then_some(symbol)
}

/// Checks whether dumps can be stored in the dump directory, its free space, and whether its file system may block.
/// Creates the directory if it is missing. If it cannot be used, reports only the reason.
fn inspect_dump_dir(store: &Store) -> DumpDirFacts {
    let mut dir = DumpDirFacts {
        path: store.directory().to_owned(),
        ..DumpDirFacts::default()
    };
    match store.open_writable_directory() {
        Err(error) => dir.unusable = Some((error.to_string(), error.remedy)),
        Ok(directory) => {
            let stat = rustix::fs::fstatvfs(&directory);
            dir.free_bytes = stat
                .ok()
                .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
            let kind = rustix::fs::fstatfs(&directory).map(|kind| kind.f_type);
            dir.may_block = kind.is_ok_and(|kind| [NFS, FUSE].contains(&kind));
        }
    }
    dir
}
