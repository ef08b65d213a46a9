//! The interpreters of a process.

use std::fs;
use std::ops::Range;

use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;

use super::dicts::Dict;
use super::layout::Layout;
use super::types::PythonTypes;
use crate::snapshot_memory::SnapshotMemory;

/// Most interpreters of a process that are read.
const MAX_INTERPRETERS: usize = 256;
/// Most entries of `sys.modules` among which the module `sys` is searched: it is the first one.
const MAX_SEARCHED_MODULES: usize = 1000;
/// Most chunks of local variables that are found, of all threads.
const MAX_CHUNKS: usize = 1 << 12;
/// Largest chunk of local variables, in bytes.
const MAX_CHUNK_SIZE: u64 = 1 << 30;

/// A `CPython` in a process whose layout is known.
#[derive(Clone, Debug)]
pub(crate) struct Interpreters {
    pub(super) layout: Layout,
    /// Address of `sys.modules` of each interpreter.
    pub(super) modules: Vec<u64>,
    /// Local variables of functions.
    pub(crate) frames: Vec<FrameMemory>,
    /// Memory of pymalloc's pools, by address.
    pub(crate) pools: Vec<Range<u64>>,
    /// Number of interpreters whose `sys.modules` cannot be read.
    unreadable: usize,
    /// Whether there are more than [`MAX_INTERPRETERS`].
    has_more: bool,
}

/// Memory with local variables of a thread's functions (`_PyStackChunk`).
#[derive(Clone, Debug)]
pub(crate) struct FrameMemory {
    pub(crate) range: Range<u64>,
    /// Result of `pthread_self(3)`, which is the address of the thread's control block.
    pub(crate) thread: u64,
}

impl Interpreters {
    /// Finds the interpreters of a process. `None` if no interpreter of Python runs in it. The error is the reason why
    /// an interpreter cannot be read.
    pub(crate) fn find(view: &SnapshotMemory) -> Result<Option<Self>, String> {
        let Some((runtime, version)) = find_runtime_symbols(view) else {
            return Ok(None);
        };
        let layout = Layout::find(view, &runtime, version)?;
        let head = view.read_field(runtime.start, layout.interpreters);
        let mut next = head.ok_or("its _PyRuntime cannot be read")?;
        if next == 0 {
            return Ok(None);
        }
        let mut types = PythonTypes::new(view, Some(layout), Vec::new());
        let mut found = Self {
            layout,
            modules: Vec::new(),
            frames: Vec::new(),
            pools: Vec::new(),
            unreadable: 0,
            has_more: false,
        };
        for _ in 0..MAX_INTERPRETERS {
            if next == 0 {
                break;
            }
            found.add_interpreter(view, next, &mut types);
            next = view.read_field(next, layout.next).unwrap_or_default();
        }
        found.has_more = next != 0;
        match found.modules.is_empty() {
            true => Err("its sys.modules is not found".to_owned()),
            false => Ok(Some(found)),
        }
    }

    /// Reader of the types of the interpreters' objects.
    pub(crate) fn new_type_reader<'a>(&self, view: &'a SnapshotMemory) -> PythonTypes<'a> {
        PythonTypes::new(view, Some(self.layout), self.pools.clone())
    }

    /// Warning about interpreters that are not read. `None` if all are.
    pub(crate) fn skipped_warning(&self) -> Option<String> {
        match (self.has_more, self.unreadable) {
            (true, _) => Some(format!(
                "only {MAX_INTERPRETERS} interpreters of Python are read; the variables of further ones have no names"
            )),
            (false, 0) => None,
            (false, unreadable) => Some(format!(
                "cannot read {unreadable} interpreters of Python, their variables have no names"
            )),
        }
    }

    /// `CPython`'s minor version: 8 for 3.8.
    pub(crate) fn minor_version(&self) -> u32 {
        self.layout.minor
    }

    /// Bytes of a pool of pymalloc in this version.
    pub(crate) fn pool_size(&self) -> u64 {
        self.layout.pool_size()
    }

    /// Adds an interpreter and the local variables of its threads, if the first [`MAX_SEARCHED_MODULES`] entries of its
    /// `sys.modules` contain the module `sys`; else counts it as unreadable. `state` is the address of its
    /// `PyInterpreterState`.
    fn add_interpreter(&mut self, view: &SnapshotMemory, state: u64, types: &mut PythonTypes<'_>) {
        let layout = self.layout;
        let modules = view.read_field(state, layout.modules).filter(|modules| {
            let mut budget = u64::MAX;
            let dict = Dict::read(view, &layout, *modules, types, &mut budget);
            let entries = dict.iter().flat_map(|dict| &dict.entries);
            let mut entries = entries.take(MAX_SEARCHED_MODULES);
            entries.any(|(key, value)| {
                let is_sys = layout
                    .read_text(view, *key, types)
                    .is_some_and(|name| name == "sys");
                is_sys && types.is_module(*value)
            })
        });
        let Some(modules) = modules else {
            self.unreadable += 1;
            return;
        };
        self.modules.push(modules);
        let Some([own_id, chunk]) = layout.thread_frames else {
            return;
        };
        let mut thread = view.read_field(state, layout.threads).unwrap_or_default();
        for _ in 0..MAX_CHUNKS {
            if thread == 0 {
                break;
            }
            self.add_frame_memory(view, thread, own_id, chunk);
            // `PyThreadState.next`, in all versions with chunks.
            thread = view.read_field(thread, 8).unwrap_or_default();
        }
    }

    /// Adds the memory of a thread's chunks, which hold the local variables of its functions. Stops at a chunk of
    /// impossible size, or when [`MAX_CHUNKS`] are found. `own_id` and `chunk` are the offsets in
    /// [`Layout::thread_frames`].
    fn add_frame_memory(&mut self, view: &SnapshotMemory, thread: u64, own_id: u64, chunk: u64) {
        let id = view.read_field(thread, own_id).unwrap_or_default();
        let mut chunk = view.read_field(thread, chunk).unwrap_or_default();
        while self.frames.len() < MAX_CHUNKS {
            // `_PyStackChunk.size`; `previous` is the first field.
            let size = view.read_field(chunk, 8).unwrap_or_default();
            if chunk == 0 || !(1..=MAX_CHUNK_SIZE).contains(&size) {
                return;
            }
            self.frames.push(FrameMemory {
                range: chunk..chunk.saturating_add(size),
                thread: id,
            });
            chunk = view.read_word(chunk).unwrap_or_default();
        }
    }
}

/// Addresses of `_PyRuntime`, and that of `Py_Version` if the version has it, in the first loaded file that defines
/// `_PyRuntime`. `None` if no file does.
fn find_runtime_symbols(view: &SnapshotMemory) -> Option<(Range<u64>, Option<u64>)> {
    let memory = view.copy_memory();
    let maps = fs::read(format!("/proc/{}/maps", view.copy_pid())).ok()?;
    let loaded = loaded_libraries(&memory, &maps).ok()?;
    loaded.into_iter().find_map(|base| {
        let image = LibraryImage::read(&memory, base).ok()?;
        let runtime = image.symbol_range("_PyRuntime")?;
        Some((runtime, image.symbol_address("Py_Version")))
    })
}
