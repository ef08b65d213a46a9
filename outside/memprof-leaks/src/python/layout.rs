//! Offsets of the fields of `CPython`'s structures, in bytes, for release builds on x86-64.
//!
//! Until 3.12 they are in tables, made from the headers that each version installs; 3.13 and 3.14 have them in the
//! process: `_Py_DebugOffsets`, at the start of `_PyRuntime` (`pycore_debug_offsets.h`).

use std::ops::Range;

use crate::snapshot_memory::SnapshotMemory;

/// `_Py_DebugOffsets.cookie`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Offset that no field of an interpreter's structures has in 3.13 and 3.14.
const MAX_OFFSET: u64 = 1 << 20;

/// Offsets of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// 8 for 3.8.
    pub(super) minor: u32,
    /// In `_PyRuntime`: the list of interpreters.
    pub(super) interpreters: u64,
    /// In `PyInterpreterState`.
    pub(super) next: u64,
    pub(super) modules: u64,
    pub(super) threads: u64,
    /// In `PyThreadState`, from 3.11 on: the result of `pthread_self(3)`, and the last chunk of its functions' local
    /// variables.
    pub(super) thread_frames: Option<[u64; 2]>,
    /// In `PyHeapTypeObject`: the table of keys that the dicts of its objects share.
    pub(super) cached_keys: u64,
    /// Sizes of `PyASCIIObject` and `PyCompactUnicodeObject`.
    pub(super) text_ascii: u64,
    pub(super) text_compact: u64,
}

const V3_8: Layout = Layout {
    minor: 8,
    interpreters: 32,
    next: 0,
    modules: 56,
    threads: 8,
    thread_frames: None,
    cached_keys: 872,
    text_ascii: 48,
    text_compact: 72,
};

const V3_9: Layout = Layout {
    minor: 9,
    modules: 856,
    cached_keys: 864,
    ..V3_8
};

const V3_10: Layout = Layout {
    minor: 10,
    cached_keys: 872,
    ..V3_9
};

const V3_11: Layout = Layout {
    minor: 11,
    interpreters: 40,
    modules: 888,
    threads: 16,
    thread_frames: Some([152, 296]),
    ..V3_8
};

const V3_12: Layout = Layout {
    minor: 12,
    modules: 944,
    threads: 72,
    thread_frames: Some([136, 232]),
    cached_keys: 880,
    text_ascii: 40,
    text_compact: 56,
    ..V3_11
};

/// Differences between versions in the part of `_Py_DebugOffsets` that is read.
#[derive(Clone, Copy, Debug)]
struct DebugOffsetsTable {
    /// Words for `PyInterpreterState`, with its size.
    interpreter: u64,
    /// Index among them of the offset of `sys.modules`.
    modules: u64,
}

const TABLE_3_13: DebugOffsetsTable = DebugOffsetsTable {
    interpreter: 13,
    modules: 5,
};

const TABLE_3_14: DebugOffsetsTable = DebugOffsetsTable {
    interpreter: 16,
    modules: 6,
};

/// Versions without `Py_Version`, by the size of `_PyRuntime`.
const BY_RUNTIME_SIZE: [(u64, Layout); 3] = [(1464, V3_8), (656, V3_9), (672, V3_10)];

impl Layout {
    /// Finds the layout by the addresses of `_PyRuntime` and `Py_Version`. `version` is `None` before 3.11, which
    /// introduced `Py_Version`: then the size of `_PyRuntime` decides. The error is the reason why the layout is
    /// unknown.
    pub(super) fn find(
        view: &SnapshotMemory,
        runtime: &Range<u64>,
        version: Option<u64>,
    ) -> Result<Self, String> {
        let Some(version) = version else {
            let size = runtime.end - runtime.start;
            let mut known = BY_RUNTIME_SIZE.iter();
            let known = known.find(|(known, _)| *known == size);
            let unknown =
                || "the layout of this version is unknown (known: 3.8 to 3.14)".to_owned();
            return known.map(|(_, layout)| *layout).ok_or_else(unknown);
        };
        let version = view
            .read_word(version)
            .ok_or("its version cannot be read")? as u32;
        // `PY_VERSION_HEX`: bytes of the major, minor and micro version, then 4 bits of the level (0xf if final) and
        // the serial.
        let (major, minor) = (version >> 24, version >> 16 & 0xff);
        let is_final = version >> 4 & 0xf == 0xf;
        match version >> 16 {
            0x030b if is_final => Ok(V3_11),
            0x030c if is_final => Ok(V3_12),
            0x030d if is_final => {
                Self::from_debug_offsets(view, runtime.start, version, TABLE_3_13)
            }
            0x030e if is_final => {
                Self::from_debug_offsets(view, runtime.start, version, TABLE_3_14)
            }
            _ => Err(format!(
                "the layout of {major}.{minor} is unknown (known: 3.8 to 3.14)"
            )),
        }
    }

    /// Reads the offsets that differ between releases from `_Py_DebugOffsets`, whose form is `table`; the others have
    /// not changed since 3.12. The error is the reason why the layout is unknown, such as a build without the GIL.
    fn from_debug_offsets(
        view: &SnapshotMemory,
        runtime: u64,
        version: u32,
        table: DebugOffsetsTable,
    ) -> Result<Self, String> {
        // Indices of the structures: their first word is their size.
        const RUNTIME: u64 = 3;
        const INTERPRETER: u64 = RUNTIME + 3;
        let thread = INTERPRETER + table.interpreter;
        // The structure begins with a cookie, the version, and whether the build is without the GIL.
        let word = |index: u64| {
            let word = view.read_field(runtime, 8 * index);
            word.ok_or("its _PyRuntime cannot be read")
        };
        if word(0)? != COOKIE || word(1)? != u64::from(version) {
            return Err("its _PyRuntime is not that of its version".to_owned());
        }
        if word(2)? != 0 {
            return Err("it is built without the GIL, and has another allocator".to_owned());
        }
        let offset = |index: u64| match word(index)? {
            offset if offset < MAX_OFFSET => Ok(offset),
            _ => Err("its _PyRuntime is not that of its version"),
        };
        Ok(Self {
            minor: version >> 16 & 0xff,
            interpreters: offset(RUNTIME + 2)?,
            next: offset(INTERPRETER + 2)?,
            threads: offset(INTERPRETER + 3)?,
            modules: offset(INTERPRETER + table.modules)?,
            // `thread_id` and `datastack_chunk`.
            thread_frames: Some([offset(thread + 5)?, offset(thread + 7)?]),
            ..V3_12
        })
    }

    /// Bytes of a pool of pymalloc (`POOL_SIZE`).
    pub(super) fn pool_size(&self) -> u64 {
        if self.minor >= 10 { 16 << 10 } else { 4 << 10 }
    }
}
