//! Verdict on a function: its code origin, and the evidence that decided.

use super::CodeOrigin;

/// Code origin of a function, with the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) origin: CodeOrigin,
    pub(crate) reason: OriginReason,
}

impl Verdict {
    /// Creates a verdict. `reason` is the evidence that decided on `origin`.
    pub(super) const fn new(origin: CodeOrigin, reason: OriginReason) -> Self {
        Self { origin, reason }
    }
}

impl Default for Verdict {
    fn default() -> Self {
        Self::new(CodeOrigin::default(), OriginReason::Unknown)
    }
}

/// Evidence that decided on a function's origin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OriginReason {
    /// `--own` or `--plumbing`.
    Pattern,
    /// The source file lies in this directory of libraries.
    LibrarySource(&'static str),
    /// The source file lies in a directory of libraries, and a rule for names describes what the function does there.
    LibrarySourceAndName(&'static str),
    /// The source file lies in no directory of libraries.
    OwnSource,
    /// The path of a file of an interpreted program matches this pattern.
    ScriptLibrary(&'static str),
    /// A file of an interpreted program is the program's own.
    Script,
    /// The mapped file is a library or an interpreter by its name.
    MappedFile,
    /// The mapped file is the program.
    Program,
    /// The mapped file is a library of the system, and the program has functions with names.
    SystemLibrary,
    /// The mapped file is a shared library that has a symbol for the function.
    NamedInLibrary,
    /// The mapped file is a shared library without symbols.
    UnnamedInLibrary,
    /// The mapped file is a shared library, in which the function has no symbol, but a caller of it has one.
    HelperInLibrary,
    /// The mapped file is a plugin or library of the program, in which neither the function nor its callers have
    /// symbols.
    UnnamedInModule,
    /// The mapped file was unloaded, and cannot be read any more.
    Unloaded,
    /// A function in front of the allocator, as a wrapper of malloc is.
    Wrapper(WrapperShape),
    /// A rule for names, with its pattern.
    Name(&'static str),
    /// There is no evidence.
    Unknown,
}

/// Shape by which a function is a wrapper of malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrapperShape {
    /// Stacks in which it is the first frame after the allocator and other plumbing.
    pub(crate) stacks: u32,
    /// Different functions that call it there.
    pub(crate) callers: u32,
    /// Whether many places of its file call it.
    pub(crate) has_many_calls: bool,
    /// Use of the block in its code. `None` if the code was not read.
    pub(crate) block_use: Option<BlockUse>,
    /// Whether its name says that it allocates.
    pub(crate) has_allocating_name: bool,
}

/// Use of a block by the function that allocates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// The function returns the block, and its caller chose the size.
    PassedOn,
    /// The function returns the block, and chose the size.
    Returned,
    /// The function keeps the block, or stores it for its caller.
    Kept,
}
