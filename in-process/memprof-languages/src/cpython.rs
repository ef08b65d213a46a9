//! `CPython` 3.8 to 3.14: the frames of the calling thread, leaf first.
//!
//! Names of fields are those of `CPython`'s headers: `pycore_frame.h`, `pycore_runtime.h`, `cpython/pystate.h`.

mod layout;
mod lines;
mod text;

use core::ops::Range;

pub use layout::{CPythonSymbols, Symbol, UnsupportedCPython};
use layout::{FieldOffsets, FrameChain};
use lines::source_line_at;
use text::{FrameName, Text};

use crate::counts::WalkOutcome;
use crate::merge::{MAX_MANAGED, ManagedFrame, ManagedFrames, NEXT_NATIVE};
use crate::names::intern_name_or_placeholder;
use crate::reader::Reader;

/// `FRAME_OWNED_BY_CSTACK` of 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` of 3.14, in which the former is 4: such a
/// frame lies in the native frame of its activation of the interpreter, and is no function of the program.
const OWNED_BY_C_STACK: u8 = 3;

/// `FRAME_OWNED_BY_GENERATOR`.
const OWNED_BY_GENERATOR: u8 = 1;

/// Bytes from `_co_firsttraceable` to the instructions, in all versions that have it.
const FIRST_TRACEABLE_DISTANCE: usize = 16;
const INSTRUCTION_BYTES: i64 = 2;

/// Most bytes of a line table.
const MAX_LINE_TABLE: usize = 1 << 16;

/// A `CPython` whose layout is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CPython {
    layout: FieldOffsets,
    runtime: usize,
    code_type: usize,
    text_type: usize,
    /// Code of `_PyEval_EvalFrameDefault`, without parts that the compiler moved elsewhere.
    interpreter: Symbol,
}

/// The end of a chain of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainEnd {
    /// The outermost frame.
    Outermost,
    /// A frame that is not as expected.
    Unreadable,
}

impl CPython {
    /// Finds the layout of a `CPython` by its symbols. Also returns its version, as `PY_VERSION_HEX`.
    ///
    /// # Errors
    /// The version is unknown, or the interpreter's structures are not as expected.
    pub(crate) fn from_symbols(
        symbols: &CPythonSymbols,
        reader: &mut Reader<'_>,
    ) -> Result<(u32, Self), UnsupportedCPython> {
        let (version, layout) = FieldOffsets::find(symbols, reader)?;
        let found = Self {
            layout,
            runtime: symbols.runtime.address,
            code_type: symbols.code_type,
            text_type: symbols.unicode_type,
            interpreter: symbols.eval_frame,
        };
        Ok((version, found))
    }

    /// Address range of the function that executes Python code: `_PyEval_EvalFrameDefault`.
    pub(crate) fn interpreter_range(&self) -> Range<usize> {
        let Symbol { address, size } = self.interpreter;
        address..address.saturating_add(size)
    }

    /// Adds the Python frames of the calling thread to `frames`, leaf first. Returns whether frames were found, and
    /// whether all could be read. `None` if the thread has no `PyThreadState`, if another thread is ending the
    /// interpreter, or if the fields that show this cannot be read.
    pub(crate) fn read_frames(
        &self,
        reader: &mut Reader<'_>,
        frames: &mut ManagedFrames<'_>,
    ) -> Option<WalkOutcome> {
        let thread = self.thread_state(reader)?;
        let finalizing = reader.read_word(self.runtime, self.layout.finalizing)?;
        // The thread that ends the interpreter frees the states of all others.
        if finalizing != 0 && finalizing != thread {
            return None;
        }
        let end = match self.layout.chain {
            FrameChain::Objects => self.read_frame_objects(thread, reader, frames),
            FrameChain::CFrames { is_entry } => {
                self.read_c_frames(thread, is_entry, reader, frames)
            }
            FrameChain::EntryFrames => self.read_entry_frames(thread, reader, frames),
        };
        Some(match (frames.len(), end.unwrap_or(ChainEnd::Unreadable)) {
            (0, ChainEnd::Outermost) => WalkOutcome::Absent,
            (0, ChainEnd::Unreadable) => WalkOutcome::Unread,
            (_, ChainEnd::Outermost) => WalkOutcome::Whole,
            (_, ChainEnd::Unreadable) => WalkOutcome::EndedEarly,
        })
    }

    /// Returns the address of the calling thread's `PyThreadState`, also while the thread does not hold the GIL. `None`
    /// if the thread has none, if the state under the thread's key is of another thread, or if a field on the way to
    /// the state cannot be read.
    fn thread_state(&self, reader: &mut Reader<'_>) -> Option<usize> {
        let layout = &self.layout;
        let this = pthread_self();
        if let Some(current) = layout.current_thread {
            // State of the thread that holds the GIL: maybe another thread; 0 if no thread holds it.
            let state = reader.read_word(self.runtime, current)?;
            if state != 0 && reader.read_word(state, layout.thread_id) == Some(this) {
                return Some(state);
            }
        }
        let key = reader.read_word(self.runtime, layout.thread_key)?;
        // `Py_tss_t`: 32 bits that are 1 if it is initialized, then the key in 32 bits.
        if key & 0xffff_ffff != 1 {
            return None;
        }
        let state = thread_specific_pointer((key >> 32) as u32)?;
        let id = reader.read_word(state, layout.thread_id)?;
        (id == this).then_some(state)
    }

    /// Adds the frames of `CPython` up to 3.10 to `frames`. There, each frame is an object, and is executed by its own
    /// call of the interpreter's function. The objects do not refer to that call, so the native frame is 0: unknown.
    /// `thread` is the address of the thread's `PyThreadState`. `None` if a frame is not as expected. A chain of more
    /// than [`MAX_MANAGED`] frames counts as whole, because a stack record has no room for the rest.
    fn read_frame_objects(
        &self,
        thread: usize,
        reader: &mut Reader<'_>,
        frames: &mut ManagedFrames<'_>,
    ) -> Option<ChainEnd> {
        let layout = &self.layout;
        let mut frame = reader.read_word(thread, layout.frame)?;
        for _ in 0..MAX_MANAGED {
            if frame == 0 {
                return Some(ChainEnd::Outermost);
            }
            let code = reader.read_pointer(frame, layout.frame_code)?;
            let last = reader
                .read_u32(frame, layout.frame_instruction)?
                .cast_signed();
            let last = i64::from(last) * layout.instruction_units;
            frames.push(ManagedFrame {
                word: self.intern_name(code, last, reader)?,
                native: 0,
            });
            frame = reader.read_word(frame, layout.frame_previous)?;
        }
        Some(ChainEnd::Outermost)
    }

    /// Adds the frames of `CPython` 3.11 and 3.12 to `frames`. There, an activation is a call of the interpreter's
    /// function, and has a `_PyCFrame` in its native frame. `thread` is the address of the thread's `PyThreadState`.
    /// `None` if a frame is not as expected.
    ///
    /// An activation executes one frame or several. Its outermost frame comes last in the chain. In 3.11, a byte in
    /// that frame marks it; `is_entry` is the byte's offset. In 3.12, `is_entry` is `None`, and an additional frame,
    /// which belongs to no function, follows.
    ///
    /// After twice [`MAX_MANAGED`] frames, of which every second one may be such an additional frame, the walk counts
    /// as complete, because a stack record has no room for the rest.
    fn read_c_frames(
        &self,
        thread: usize,
        is_entry: Option<usize>,
        reader: &mut Reader<'_>,
        frames: &mut ManagedFrames<'_>,
    ) -> Option<ChainEnd> {
        let layout = &self.layout;
        let mut activation = reader.read_pointer(thread, layout.frame)?;
        let mut frame = reader.read_word(activation, layout.activation_frame)?;
        for _ in 0..2 * MAX_MANAGED {
            if frame == 0 {
                return Some(ChainEnd::Outermost);
            }
            let is_last = match is_entry {
                Some(offset) => {
                    self.push_frame(frame, activation, reader, frames)?;
                    reader.read_u8(frame, offset)? != 0
                }
                None if self.is_activation_end(frame, reader)? => true,
                None => {
                    self.push_frame(frame, activation, reader, frames)?;
                    false
                }
            };
            if is_last {
                activation = reader.read_word(activation, layout.activation_previous)?;
            }
            frame = reader.read_word(frame, layout.frame_previous)?;
        }
        Some(ChainEnd::Outermost)
    }

    /// Adds the frames of `CPython` from 3.13 on to `frames`. An activation is a call of the interpreter's function.
    /// The last frame of an activation belongs to no function of the program: it only marks the end. It lies in the
    /// activation's native frame, so its address identifies the native frame of the frames before. `thread` is the
    /// address of the thread's `PyThreadState`. `None` if a frame is not as expected.
    ///
    /// After twice [`MAX_MANAGED`] frames, of which every second one may be an end mark, the walk counts as complete,
    /// because a stack record has no room for the rest.
    fn read_entry_frames(
        &self,
        thread: usize,
        reader: &mut Reader<'_>,
        frames: &mut ManagedFrames<'_>,
    ) -> Option<ChainEnd> {
        let layout = &self.layout;
        let mut frame = reader.read_word(thread, layout.frame)?;
        let mut first = 0;
        for _ in 0..2 * MAX_MANAGED {
            if frame == 0 {
                return Some(ChainEnd::Outermost);
            }
            if self.is_activation_end(frame, reader)? {
                frames.set_native_frame_from(first, frame);
                first = frames.len();
            } else {
                self.push_frame(frame, NEXT_NATIVE, reader, frames)?;
            }
            frame = reader.read_word(frame, layout.frame_previous)?;
        }
        Some(ChainEnd::Outermost)
    }

    /// Returns whether a frame only marks the end of an activation, and is no function of the program. `None` if its
    /// owner cannot be read.
    fn is_activation_end(&self, frame: usize, reader: &mut Reader<'_>) -> Option<bool> {
        Some(reader.read_u8(frame, self.layout.frame_owner)? >= OWNED_BY_C_STACK)
    }

    /// Adds a `_PyInterpreterFrame` of 3.11 or newer to `frames`. `native` is an address in the native frame that
    /// executes it, or [`NEXT_NATIVE`] while that address is unknown. Skips a frame that `CPython` is still creating.
    /// Also skips frames of the interpreter's own code, which has no traceable instruction. `None` if the frame is not
    /// as expected.
    fn push_frame(
        &self,
        frame: usize,
        native: usize,
        reader: &mut Reader<'_>,
        frames: &mut ManagedFrames<'_>,
    ) -> Option<()> {
        let layout = &self.layout;
        // From 3.14 on, the lowest bits of the pointer are a tag.
        let code = reader.read_pointer(frame, layout.frame_code)? & !layout.frame_code_tags;
        let instruction = reader.read_word(frame, layout.frame_instruction)?;
        let last = instruction.wrapping_sub(code.wrapping_add(layout.code_instructions)) as i64;
        // Like `_PyFrame_IsIncomplete`: the frame has not reached the instruction with number `_co_firsttraceable`. The
        // frame of a generator is always complete.
        let traceable = reader.read_u32(
            code,
            layout
                .code_instructions
                .saturating_sub(FIRST_TRACEABLE_DISTANCE),
        )?;
        let is_generator = reader.read_u8(frame, layout.frame_owner)? == OWNED_BY_GENERATOR;
        if !is_generator && last < INSTRUCTION_BYTES * i64::from(traceable) {
            return Some(());
        }
        let word = self.intern_name(code, last, reader)?;
        frames.push(ManagedFrame { word, native });
        Some(())
    }

    /// Enters the name of a code object and the line of its current instruction into the table of names. Returns the
    /// managed word: the number that stands for both in stacks. `last` is the offset of that instruction in bytes,
    /// below 0 before the first one. `None` if there is no code object at `code`, or if one of its fields cannot be
    /// read. Before the first instruction, or if the line table is empty or longer than [`MAX_LINE_TABLE`], the line is
    /// that of the function.
    fn intern_name(&self, code: usize, last: i64, reader: &mut Reader<'_>) -> Option<usize> {
        let layout = &self.layout;
        if reader.read_word(code, layout.object_type)? != self.code_type {
            return None;
        }
        let name = layout.code_qualified_name.unwrap_or(layout.code_name);
        let function = self.read_text(code, name, reader)?;
        let file = self.read_text(code, layout.code_file, reader)?;
        let first = reader.read_u32(code, layout.code_first_line)?;
        let table = reader.read_pointer(code, layout.code_line_table)?;
        let len = reader.read_word(table, layout.bytes_len)?;
        let line = match usize::try_from(last) {
            Ok(last) if (1..=MAX_LINE_TABLE).contains(&len) => {
                let range = reader.readable_range(table, layout.bytes_data, len)?;
                source_line_at(
                    layout.line_format,
                    first,
                    range.len(),
                    |index| range.read_u8(index),
                    last,
                )
            }
            _ => first,
        };
        let name = FrameName { function, file };
        Some(intern_name_or_placeholder(name.hash(line), line, &name))
    }

    /// Finds the `str` to which the field at offset `field` of the object `owner` refers. `None` if the field refers to
    /// no `str`, or if the `str` is unreadable, empty, not compact or too long.
    fn read_text(&self, owner: usize, field: usize, reader: &mut Reader<'_>) -> Option<Text> {
        let object = reader.read_pointer(owner, field)?;
        if reader.read_word(object, self.layout.object_type)? != self.text_type {
            return None;
        }
        Text::read(&self.layout, object, reader)
    }
}

/// Returns the calling thread's `pthread_self(3)`, which `CPython` stores as `thread_id` in its `PyThreadState`.
fn pthread_self() -> usize {
    thread_calls::own_pthread()
}

/// Returns the pointer that the calling thread stores under a key of `pthread_getspecific(3)`. `None` if it is null,
/// or not aligned as a pointer to a structure is.
fn thread_specific_pointer(key: u32) -> Option<usize> {
    let value = thread_calls::thread_specific_value(key);
    (value != 0 && value.is_multiple_of(align_of::<usize>())).then_some(value)
}

mod thread_calls {
    //! Two functions of glibc that only read the thread's control block.
    #![expect(unsafe_code, reason = "functions of libc")]

    /// Most keys of a process: glibc's `PTHREAD_KEYS_MAX`.
    const MAX_KEYS: u32 = 1024;

    /// Returns `pthread_self(3)`: the address of the calling thread's control block.
    pub(super) fn own_pthread() -> usize {
        // SAFETY: pthread_self(3) always succeeds.
        unsafe { libc::pthread_self() as usize }
    }

    /// Returns the calling thread's value of a key by `pthread_getspecific(3)`; 0 for a key that is not in use, or
    /// beyond [`MAX_KEYS`].
    pub(super) fn thread_specific_value(key: u32) -> usize {
        if key >= MAX_KEYS {
            return 0;
        }
        // SAFETY: pthread_getspecific(3): glibc checks the key, and returns null for one that is not in use.
        unsafe { libc::pthread_getspecific(key) as usize }
    }
}

#[cfg(test)]
mod tests;
