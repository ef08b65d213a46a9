//! Offsets of the fields of `CPython`'s structures, in bytes, for release builds on x86-64.
//!
//! Until 3.12 they are in tables, made from the headers that each version installs; 3.13 and 3.14 have them in the process:
//! `_Py_DebugOffsets`, at the start of `_PyRuntime` (`pycore_debug_offsets.h`).

use core::fmt;

use super::lines::LineFormat;
use crate::reader::Reader;

/// A symbol of the interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    /// Address in memory.
    pub address: usize,
    /// Size in bytes, from the symbol table.
    pub size: usize,
}

/// Symbols of a `CPython`, all of one loaded object that is never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct CPythonSymbols {
    /// `_PyRuntime`.
    pub runtime: Symbol,
    /// `_PyEval_EvalFrameDefault`.
    pub eval_frame: Symbol,
    /// Address of `PyCode_Type`.
    pub code_type: usize,
    /// Address of `PyUnicode_Type`.
    pub unicode_type: usize,
    /// Address of `Py_Version`, which 3.11 introduced.
    pub version: Option<usize>,
}

/// Reason why the frames of a `CPython` cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedCPython {
    /// A version whose layout is unknown, as `PY_VERSION_HEX`. 0 for one before 3.11 whose `_PyRuntime` has another
    /// size than those of 3.8 to 3.10.
    Version(u32),
    /// A build without the global interpreter lock.
    FreeThreaded,
    /// `_PyRuntime` is not as this version has it.
    Runtime,
}

impl fmt::Display for UnsupportedCPython {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(0) => {
                f.write_str("this version's layout is unknown (known: 3.8 to 3.14)")
            }
            Self::Version(_) => f.write_str("its layout is unknown (known: 3.8 to 3.14)"),
            Self::FreeThreaded => {
                f.write_str("its layout is unknown, for it is built without the GIL")
            }
            Self::Runtime => f.write_str("its _PyRuntime is not that of its version"),
        }
    }
}

/// Chain that links the frames of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameChain {
    /// Frame objects.
    Objects,
    /// By `_PyCFrame`, with the offset of `is_entry` if the version has it.
    CFrames { is_entry: Option<usize> },
    /// By frames that lie on the native stack.
    EntryFrames,
}

/// Offsets of one version.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldOffsets {
    pub(super) chain: FrameChain,
    pub(super) line_format: LineFormat,
    /// In `_PyRuntime`: the holder of the GIL, until 3.11.
    pub(super) current_thread: Option<usize>,
    /// In `_PyRuntime`: the key of the threads' states.
    pub(super) thread_key: usize,
    /// In `_PyRuntime`: the thread that ends the interpreter.
    pub(super) finalizing: usize,
    /// In `PyThreadState`: result of `pthread_self(3)`.
    pub(super) thread_id: usize,
    /// In `PyThreadState`: the innermost frame, or activation.
    pub(super) frame: usize,
    /// In `_PyCFrame`.
    pub(super) activation_frame: usize,
    pub(super) activation_previous: usize,
    pub(super) frame_previous: usize,
    pub(super) frame_code: usize,
    /// Bits of the reference to the code that are no part of its address: `Py_TAG_BITS`, from 3.14 on.
    pub(super) frame_code_tags: usize,
    /// `f_lasti`, `prev_instr` or `instr_ptr`.
    pub(super) frame_instruction: usize,
    pub(super) frame_owner: usize,
    /// Bytes that `f_lasti` counts.
    pub(super) instruction_units: i64,
    pub(super) code_file: usize,
    pub(super) code_name: usize,
    pub(super) code_qualified_name: Option<usize>,
    pub(super) code_first_line: usize,
    pub(super) code_line_table: usize,
    /// Start of the instructions, from 3.11 on.
    pub(super) code_instructions: usize,
    pub(super) object_type: usize,
    pub(super) bytes_len: usize,
    pub(super) bytes_data: usize,
    pub(super) text_state: usize,
    pub(super) text_len: usize,
    pub(super) text_ascii: usize,
    pub(super) text_compact: usize,
}

const V3_8: FieldOffsets = FieldOffsets {
    chain: FrameChain::Objects,
    line_format: LineFormat::Lnotab,
    current_thread: Some(1368),
    thread_key: 1392,
    finalizing: 16,
    thread_id: 176,
    frame: 24,
    activation_frame: 0,
    activation_previous: 0,
    frame_previous: 24,
    frame_code: 32,
    frame_code_tags: 0,
    frame_instruction: 104,
    frame_owner: 0,
    instruction_units: 1,
    code_file: 104,
    code_name: 112,
    code_qualified_name: None,
    code_first_line: 40,
    code_line_table: 120,
    code_instructions: 48,
    object_type: 8,
    bytes_len: 16,
    bytes_data: 32,
    text_state: 32,
    text_len: 16,
    text_ascii: 48,
    text_compact: 72,
};

const V3_9: FieldOffsets = FieldOffsets {
    current_thread: Some(568),
    thread_key: 584,
    ..V3_8
};

const V3_10: FieldOffsets = FieldOffsets {
    line_format: LineFormat::Ranges,
    frame_instruction: 96,
    instruction_units: 2,
    ..V3_9
};

const V3_11: FieldOffsets = FieldOffsets {
    chain: FrameChain::CFrames { is_entry: Some(68) },
    line_format: LineFormat::Locations,
    current_thread: Some(576),
    thread_key: 592,
    finalizing: 24,
    thread_id: 152,
    frame: 56,
    activation_frame: 8,
    activation_previous: 16,
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: 69,
    code_file: 112,
    code_name: 120,
    code_qualified_name: Some(128),
    code_first_line: 72,
    code_line_table: 136,
    code_instructions: 184,
    ..V3_8
};

const V3_12: FieldOffsets = FieldOffsets {
    chain: FrameChain::CFrames { is_entry: None },
    current_thread: None,
    thread_key: 1544,
    thread_id: 136,
    activation_frame: 0,
    activation_previous: 8,
    frame_previous: 8,
    frame_code: 0,
    frame_owner: 70,
    code_first_line: 68,
    code_instructions: 192,
    text_ascii: 40,
    text_compact: 56,
    ..V3_11
};

/// Without what `_Py_DebugOffsets` contains.
const V3_13: FieldOffsets = FieldOffsets {
    chain: FrameChain::EntryFrames,
    thread_key: 2160,
    ..V3_12
};

/// Without what `_Py_DebugOffsets` contains.
const V3_14: FieldOffsets = FieldOffsets {
    thread_key: 2336,
    frame_code_tags: 3,
    ..V3_13
};

/// Words of those structures in `_Py_DebugOffsets` that differ between versions, with their size.
#[derive(Clone, Copy, Debug)]
struct TableWords {
    interpreter: usize,
    frame: usize,
    code: usize,
    set: usize,
}

const TABLE_3_13: TableWords = TableWords {
    interpreter: 13,
    frame: 6,
    code: 10,
    set: 0,
};

const TABLE_3_14: TableWords = TableWords {
    interpreter: 16,
    frame: 8,
    code: 11,
    set: 4,
};

/// Versions without `Py_Version`, by the size of `_PyRuntime`.
pub(super) const BY_RUNTIME_SIZE: [(usize, u32, FieldOffsets); 3] = [
    (1464, 0x0308_0000, V3_8),
    (656, 0x0309_0000, V3_9),
    (672, 0x030a_0000, V3_10),
];

impl FieldOffsets {
    /// Finds the version, as `PY_VERSION_HEX`, and the layout of a `CPython`. Without the symbol `Py_Version`, which
    /// 3.11 introduced, recognizes the version by the size of `_PyRuntime`.
    ///
    /// # Errors
    ///
    /// The version is unknown, no final release or built without the GIL, or its `_PyRuntime` is not as expected.
    pub(super) fn find(
        symbols: &CPythonSymbols,
        reader: &mut Reader<'_>,
    ) -> Result<(u32, Self), UnsupportedCPython> {
        let runtime = symbols.runtime;
        let Some(version) = symbols.version else {
            let mut known = BY_RUNTIME_SIZE.iter();
            let known = known.find(|(size, ..)| *size == runtime.size);
            let known = known.map(|(_, version, layout)| (*version, *layout));
            return known.ok_or(UnsupportedCPython::Version(0));
        };
        let version = reader
            .read_u32(version, 0)
            .ok_or(UnsupportedCPython::Runtime)?;
        // The release level in `PY_VERSION_HEX`: 0xf for a final release.
        let is_final = version >> 4 & 0xf == 0xf;
        let layout = match version >> 16 {
            0x030b if is_final => V3_11,
            0x030c if is_final => V3_12,
            0x030d if is_final => V3_13.with_debug_offsets(runtime, version, TABLE_3_13, reader)?,
            0x030e if is_final => V3_14.with_debug_offsets(runtime, version, TABLE_3_14, reader)?,
            _ => return Err(UnsupportedCPython::Version(version)),
        };
        // The key is a `Py_tss_t` of 8 bytes, which must lie within `_PyRuntime`.
        match layout.thread_key + 8 <= runtime.size {
            true => Ok((version, layout)),
            false => Err(UnsupportedCPython::Runtime),
        }
    }

    /// Returns these offsets, but takes from the process's `_Py_DebugOffsets` the ones that it contains. `words` are
    /// the sizes of the parts of `_Py_DebugOffsets` in `version`. Fails if the structure is not that of `version`, if
    /// it cannot be read, if an offset in it is 4096 or more, or if the interpreter is built without the GIL.
    fn with_debug_offsets(
        self,
        runtime: Symbol,
        version: u32,
        words: TableWords,
        reader: &mut Reader<'_>,
    ) -> Result<Self, UnsupportedCPython> {
        const COOKIE: usize = usize::from_ne_bytes(*b"xdebugpy");
        /// Above the offsets of all fields that are read.
        const MAX_OFFSET: usize = 4096;
        // The structure begins with a cookie, the version, and whether the build is without the GIL.
        let mut word = |index: usize| {
            let field = index * size_of::<usize>();
            reader
                .read_word(runtime.address, field)
                .ok_or(UnsupportedCPython::Runtime)
        };
        if word(0)? != COOKIE || word(1)? != version as usize {
            return Err(UnsupportedCPython::Runtime);
        }
        if word(2)? != 0 {
            return Err(UnsupportedCPython::FreeThreaded);
        }
        let mut offset = |index: usize| match word(index)? {
            offset if offset < MAX_OFFSET => Ok(offset),
            _ => Err(UnsupportedCPython::Runtime),
        };
        // Indices of the structures' first words, each of which is the size of its structure. The head has three words,
        // the part about `_PyRuntime` three, and the part about `PyThreadState` nine; the other numbers are in `words`.
        const RUNTIME: usize = 3;
        let thread_index = RUNTIME + 3 + words.interpreter;
        let frame_index = thread_index + 9;
        let code_index = frame_index + words.frame;
        let object_index = code_index + words.code;
        // Words of the object's structure, and of those for types, tuples, lists, sets, dicts, floats and ints.
        let bytes_index = object_index + 2 + 4 + 3 + 3 + words.set + 3 + 2 + 3;
        let text_index = bytes_index + 3;
        /// `PyCompactUnicodeObject` has two words more than `PyASCIIObject`.
        const COMPACT: usize = 16;
        let text_ascii = offset(text_index + 3)?;
        Ok(Self {
            finalizing: offset(RUNTIME + 1)?,
            frame: offset(thread_index + 4)?,
            thread_id: offset(thread_index + 5)?,
            frame_previous: offset(frame_index + 1)?,
            frame_code: offset(frame_index + 2)?,
            frame_instruction: offset(frame_index + 3)?,
            frame_owner: offset(frame_index + 5)?,
            code_file: offset(code_index + 1)?,
            code_name: offset(code_index + 2)?,
            code_qualified_name: Some(offset(code_index + 3)?),
            code_line_table: offset(code_index + 4)?,
            code_first_line: offset(code_index + 5)?,
            code_instructions: offset(code_index + 9)?,
            object_type: offset(object_index + 1)?,
            bytes_len: offset(bytes_index + 1)?,
            bytes_data: offset(bytes_index + 2)?,
            text_state: offset(text_index + 1)?,
            text_len: offset(text_index + 2)?,
            text_ascii,
            text_compact: text_ascii + COMPACT,
            ..self
        })
    }
}
