//! `memprof malloc-conf`: prints the variable that enables jemalloc's profiler in a program.
//!
//! Each build of jemalloc reads its own variable, and a wrong one is ignored without an error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memchr::memmem;
use memprof_ptrace::read_proc_text;
use object::elf::{ELFMAG, PF_W, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ReadCache, ReadRef};

use crate::defined_symbols::defined_names;
use crate::exit::{Outcome, UNAVAILABLE, with_exit_code};
use crate::output;
use crate::script::{find_in_path, named_interpreter, read_head};

/// An ELF file that is read in parts, because it may be large.
type Elf<'d, R> = ElfFile64<'d, Endianness, R>;

/// jemalloc's options that make profiling possible.
const OPTIONS: &str = "prof:true,prof_active:false";

/// Runs `memprof malloc-conf`: prints the assignment `VARIABLE=OPTIONS` that enables jemalloc's profiler. `program` is
/// a program's file, its name in PATH, or the pid of a process; `None` stands for any program with the shared
/// libjemalloc.so.2.
pub(crate) fn run(program: Option<&str>) -> Outcome {
    let line = match program {
        None => format!("MALLOC_CONF={OPTIONS}"),
        Some(pid) if pid.bytes().all(|byte| byte.is_ascii_digit()) => assignment_for_process(pid)?,
        Some(path) if Path::new(path).exists() => assignment_for_file(Path::new(path))?,
        Some(name) => assignment_for_file(&find_in_path(name.as_ref())?)?,
    };
    output::print(&line);
    Ok(0.into())
}

/// Returns the assignment that enables profiling in the jemalloc of a running process: of that in its program's file,
/// else of a mapped libjemalloc.so, else the result of [`assignment_without_own_jemalloc`].
fn assignment_for_process(pid: &str) -> anyhow::Result<String> {
    let maps = read_proc_text(format!("/proc/{pid}/maps"))
        .with_context(|| format!("failed to read the mappings of process {pid}"))?;
    let own = find_jemalloc_and_note_missing_profiler(&PathBuf::from(format!("/proc/{pid}/exe")))?;
    let shared = maps.lines().any(|line| line.contains("/libjemalloc.so"));
    match (own, shared) {
        (JemallocInFile::Variable(variable), _) => Ok(format!("{variable}={OPTIONS}")),
        (_, true) => Ok(format!("MALLOC_CONF={OPTIONS}")),
        (own, false) => assignment_without_own_jemalloc(own, &format!("process {pid}")),
    }
}

/// Returns the assignment that enables profiling in the jemalloc of a program's file. If the file contains no known
/// jemalloc, returns the result of [`assignment_without_own_jemalloc`].
fn assignment_for_file(path: &Path) -> anyhow::Result<String> {
    match find_jemalloc_and_note_missing_profiler(path)? {
        JemallocInFile::Variable(variable) => Ok(format!("{variable}={OPTIONS}")),
        own => assignment_without_own_jemalloc(own, &path.display().to_string()),
    }
}

/// jemalloc in a program's file.
pub(crate) enum JemallocInFile {
    /// Linked in; configured by this variable.
    Variable(String),
    /// The program links to the shared library.
    Linked,
    /// The program has none.
    Nothing,
    /// Linked in, but without symbols, so its variable is unknown.
    Hidden,
    /// The symbols are stripped, so a linked jemalloc cannot be ruled out.
    Stripped,
}

/// Finds the jemalloc in a program's file, and prints a note if it has no profiler. Fails for a file that is not
/// ELF.
fn find_jemalloc_and_note_missing_profiler(path: &Path) -> anyhow::Result<JemallocInFile> {
    let failed = || format!("failed to read {}", path.display());
    let file = File::open(path).with_context(failed)?;
    let head = read_head(&file).with_context(failed)?;
    if !head.starts_with(&ELFMAG) {
        return Err(not_a_program_error(path, &head));
    }
    let cache = ReadCache::new(&file);
    let elf = Elf::parse(&cache).with_context(failed)?;
    let own = find_jemalloc_in_elf(&elf, &file).with_context(failed)?;
    if matches!(own, JemallocInFile::Variable(_))
        && !has_profiler(&elf, &file).with_context(failed)?
    {
        output::note(&format!(
            "the jemalloc of {} was built without profiling and refuses this; rebuild it with --enable-prof \
             (Rust: feature \"profiling\" of tikv-jemallocator)",
            path.display()
        ));
    }
    Ok(own)
}

/// Builds the error for a file that is not a program.
fn not_a_program_error(path: &Path, bytes: &[u8]) -> anyhow::Error {
    let path = path.display();
    match named_interpreter(bytes) {
        Some(interpreter) => anyhow::anyhow!(
            "{path} is a script; name its interpreter: `memprof malloc-conf {}`",
            interpreter.display()
        ),
        None => {
            anyhow::anyhow!("{path} is not an ELF file; if it is a script, name its interpreter")
        }
    }
}

/// Returns whether the jemalloc in a file was built with profiling.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn has_profiler<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, file: &File) -> io::Result<bool> {
    // Text of prof_leakcheck, which is compiled only with profiling.
    contains_text(elf, file, b"<jemalloc>: Leak approximation summary")
}

/// Function that the linker never removes, because jemalloc calls it itself.
const FUNCTION: &[u8] = b"mallctl";
/// Variable that jemalloc defines with the same prefix as [`FUNCTION`].
const VARIABLE: &[u8] = b"malloc_conf";

/// Finds the jemalloc in a program's file: by its symbols, else by the libraries that the file needs, else by texts
/// that every jemalloc contains.
///
/// # Errors
/// The file cannot be read, or is inconsistent.
pub(crate) fn find_jemalloc_in_elf<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    file: &File,
) -> anyhow::Result<JemallocInFile> {
    /// Texts that every build contains. A program that merely mentions jemalloc may contain one of them.
    const TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];
    let names = defined_names(elf, FUNCTION, |name| {
        name.ends_with(FUNCTION) || name.ends_with(VARIABLE)
    });
    let prefixes =
        |name: &'static [u8]| names.iter().filter_map(move |each| each.strip_suffix(name));
    /// Prefixes that are accepted if a program exports only its `mallctl`.
    const USUAL_PREFIXES: [&[u8]; 3] = [b"", b"_rjem_", b"je_"];
    let has_variable = |prefix: &[u8]| prefixes(VARIABLE).any(|known| known == prefix);
    let is_jemalloc_prefix =
        |prefix: &&[u8]| USUAL_PREFIXES.contains(prefix) || has_variable(prefix);
    if let Some(prefix) = prefixes(FUNCTION).find(is_jemalloc_prefix) {
        let prefix = String::from_utf8_lossy(prefix).to_uppercase();
        return Ok(JemallocInFile::Variable(format!("{prefix}MALLOC_CONF")));
    }
    let mut needed = elf.import_libraries()?;
    if needed.any(|library| library.is_ok_and(|l| l.name().starts_with(b"libjemalloc.so"))) {
        return Ok(JemallocInFile::Linked);
    }
    let [complaint, option] = TEXTS;
    let is_hidden = contains_text(elf, file, complaint)? && contains_text(elf, file, option)?;
    Ok(if is_hidden {
        JemallocInFile::Hidden
    } else if elf.symbols().next().is_some() {
        JemallocInFile::Nothing
    } else {
        JemallocInFile::Stripped
    })
}

/// Returns whether the file's loaded segments that are not writable contain a text.
fn contains_text<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    file: &File,
    text: &[u8],
) -> io::Result<bool> {
    // Smaller than a core's cache, so that data is searched while it is cached.
    const CHUNK_SIZE: usize = 1 << 17;
    let finder = memmem::Finder::new(text);
    let mut chunk = vec![0; CHUNK_SIZE];
    let constants = elf.elf_program_headers().iter().filter(|header| {
        header.p_type(elf.endian()) == PT_LOAD && !header.p_flags(elf.endian()).contains(PF_W)
    });
    for header in constants {
        let (mut offset, size) = header.file_range(elf.endian());
        let end = offset.saturating_add(size);
        while offset < end {
            let wanted = usize::try_from(end - offset)
                .unwrap_or(CHUNK_SIZE)
                .min(CHUNK_SIZE);
            let length = file.read_at(&mut chunk[..wanted], offset)?;
            if finder.find(&chunk[..length]).is_some() {
                return Ok(true);
            }
            // The end of the segment, or of a file that is cut short.
            if length < text.len() {
                break;
            }
            // The text may lie across two chunks.
            offset += (length + 1 - text.len()) as u64;
        }
    }
    Ok(false)
}

/// Returns the assignment for a program without a known jemalloc of its own. Preloads the shared jemalloc if the
/// program does not link to it, and prints a note about that. `subject` names the program. Fails if `own` is a known
/// variable.
fn assignment_without_own_jemalloc(own: JemallocInFile, subject: &str) -> anyhow::Result<String> {
    match own {
        JemallocInFile::Stripped | JemallocInFile::Hidden => {
            output::note(&format!(
                "{subject} is stripped; if jemalloc is linked in, its own variable may be \
                 _RJEM_MALLOC_CONF (Rust) or MALLOC_CONF"
            ));
            Ok(format!("LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF={OPTIONS}"))
        }
        JemallocInFile::Nothing => {
            output::note(&format!(
                "{subject} has no jemalloc, and needs none: `memprof activate` samples in its allocator's place; \
                 this line is for jemalloc's own sampling"
            ));
            Ok(format!("LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF={OPTIONS}"))
        }
        JemallocInFile::Linked => Ok(format!("MALLOC_CONF={OPTIONS}")),
        JemallocInFile::Variable(variable) => Err(with_exit_code(
            UNAVAILABLE,
            format!("{subject} reads {variable}"),
        )),
    }
}
