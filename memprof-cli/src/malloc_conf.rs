//! `memprof malloc-conf`: which variable switches profiling on in a program.
//!
//! Every build of jemalloc reads a variable of its own, and a wrong one is ignored silently.

use std::path::{Path, PathBuf};

use anyhow::Context;
use object::elf::ELFMAG;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use crate::exit::{Outcome, UNAVAILABLE, coded};
use crate::output;
use crate::script::interpreter;

const OPTIONS: &str = "prof:true,prof_active:false";

pub(crate) fn run(program: Option<&str>) -> Outcome {
    let line = match program {
        None => format!("MALLOC_CONF={OPTIONS}"),
        Some(pid) if pid.bytes().all(|byte| byte.is_ascii_digit()) => of_process(pid)?,
        Some(path) => of_file(Path::new(path))?,
    };
    output::print(&line)?;
    Ok(0.into())
}

fn of_process(pid: &str) -> anyhow::Result<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .with_context(|| format!("failed to read the mappings of process {pid}"))?;
    let own = variable_in(&PathBuf::from(format!("/proc/{pid}/exe")))?;
    let shared = maps.lines().any(|line| line.contains("/libjemalloc.so"));
    match (own, shared) {
        (Own::Variable(variable), _) => Ok(format!("{variable}={OPTIONS}")),
        (_, true) => Ok(format!("MALLOC_CONF={OPTIONS}")),
        (own, false) => without_jemalloc(own, &format!("process {pid}")),
    }
}

fn of_file(path: &Path) -> anyhow::Result<String> {
    match variable_in(path)? {
        Own::Variable(variable) => Ok(format!("{variable}={OPTIONS}")),
        own => without_jemalloc(own, &path.display().to_string()),
    }
}

/// What a program's file says of its jemalloc.
pub(crate) enum Own {
    /// It is linked in, and configured by this variable.
    Variable(String),
    /// It is linked to the shared library.
    Linked,
    /// It has none.
    Nothing,
    /// It has one, but no symbol leads to it: nothing tells the variable.
    Hidden,
    /// Its symbols are stripped, so a linked-in jemalloc cannot be told from none.
    Stripped,
}

fn variable_in(path: &Path) -> anyhow::Result<Own> {
    let failed = || format!("failed to read {}", path.display());
    let bytes = std::fs::read(path).with_context(failed)?;
    if !bytes.starts_with(&ELFMAG) {
        return Err(no_program(path, &bytes));
    }
    let elf = ElfFile64::<Endianness>::parse(&*bytes).with_context(failed)?;
    variable_of(&elf).with_context(failed)
}

fn no_program(path: &Path, bytes: &[u8]) -> anyhow::Error {
    let path = path.display();
    match interpreter(bytes) {
        Some(interpreter) => anyhow::anyhow!(
            "{path} is a script; name its interpreter: `memprof malloc-conf {}`",
            interpreter.display()
        ),
        None => {
            anyhow::anyhow!("{path} is not an ELF file; if it is a script, name its interpreter")
        }
    }
}

/// Whether a file with a jemalloc in it has one that was built with profiling.
pub(crate) fn has_profiler(file: &[u8]) -> bool {
    // What prof_leakcheck prints, which is compiled for builds with profiling only.
    memchr::memmem::find(file, b"<jemalloc>: Leak approximation summary").is_some()
}

/// Looks for a jemalloc in a program's file.
pub(crate) fn variable_of(elf: &ElfFile64<'_>) -> object::Result<Own> {
    /// The one function that the linker never leaves out: jemalloc calls it itself.
    const FUNCTION: &[u8] = b"mallctl";
    /// The variable that stands beside it, with the same prefix.
    const VARIABLE: &[u8] = b"malloc_conf";
    /// Every build contains both. A program that only writes about jemalloc may contain one.
    const TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];
    let prefixes = |name: &'static [u8]| {
        let names = elf.symbols().chain(elf.dynamic_symbols());
        let defined = names.filter(|symbol| symbol.is_definition());
        defined.filter_map(move |symbol| symbol.name_bytes().ok()?.strip_suffix(name))
    };
    /// A program that exports only its `mallctl` has one of these.
    const USUAL: [&[u8]; 3] = [b"", b"_rjem_", b"je_"];
    let has_variable = |prefix: &[u8]| prefixes(VARIABLE).any(|known| known == prefix);
    let is_jemallocs = |prefix: &&[u8]| USUAL.contains(prefix) || has_variable(prefix);
    if let Some(prefix) = prefixes(FUNCTION).find(is_jemallocs) {
        let prefix = String::from_utf8_lossy(prefix).to_uppercase();
        return Ok(Own::Variable(format!("{prefix}MALLOC_CONF")));
    }
    let mut needed = elf.import_libraries()?;
    if needed.any(|library| library.is_ok_and(|l| l.name().starts_with(b"libjemalloc.so"))) {
        return Ok(Own::Linked);
    }
    let contains = |text: &[u8]| memchr::memmem::find(elf.data(), text).is_some();
    Ok(if TEXTS.into_iter().all(contains) {
        Own::Hidden
    } else if elf.symbols().next().is_some() {
        Own::Nothing
    } else {
        Own::Stripped
    })
}

fn without_jemalloc(own: Own, what: &str) -> anyhow::Result<String> {
    match own {
        Own::Stripped | Own::Hidden => {
            output::note(&format!(
                "{what} is stripped; if jemalloc is linked in, its own variable may be \
                 _RJEM_MALLOC_CONF (Rust) or MALLOC_CONF"
            ));
            Ok(format!("LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF={OPTIONS}"))
        }
        Own::Nothing => {
            output::note(&format!(
                "{what} has no jemalloc, and needs none: `memprof activate` samples in its allocator's place; \
                 this line is for jemalloc's own sampling"
            ));
            Ok(format!("LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF={OPTIONS}"))
        }
        Own::Linked => Ok(format!("MALLOC_CONF={OPTIONS}")),
        Own::Variable(variable) => Err(coded(UNAVAILABLE, format!("{what} reads {variable}"))),
    }
}
