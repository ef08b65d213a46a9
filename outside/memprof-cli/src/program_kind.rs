//! Language and allocators of a process, by the names of the files that it maps and by its program's symbols. The
//! process is not stopped, and its memory is not read.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use memchr::memmem::find;
use memprof_ptrace::mapped_file::{MountKey, Mounts};
use memprof_ptrace::maps::mappings;
use object::elf::{FileHeader64, SHT_SYMTAB};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef};

use crate::defined_symbols::defined_names;

/// Language and allocators of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramKind {
    /// `None` if no sign of one was found, as in C.
    pub(crate) language: Option<&'static str>,
    /// Allocators other than the C library's, or that one if there are no others.
    pub(crate) allocators: Vec<&'static str>,
}

/// Starts of the names of files that only programs of a language map, the interpreters first.
const LANGUAGE_FILES: [(&str, &str); 19] = [
    ("libjvm.so", "Java"),
    ("libpython", "Python"),
    ("python", "Python"),
    ("node", "JavaScript"),
    ("libnode.so", "JavaScript"),
    ("bun", "JavaScript"),
    ("deno", "JavaScript"),
    ("libruby", "Ruby"),
    ("ruby", "Ruby"),
    ("libphp", "PHP"),
    ("php", "PHP"),
    ("libperl.so", "Perl"),
    ("perl", "Perl"),
    ("beam.smp", "Erlang"),
    ("libcoreclr.so", ".NET"),
    ("libluajit", "Lua"),
    ("luajit", "Lua"),
    ("liblua", "Lua"),
    ("lua", "Lua"),
];

/// Starts of the names of allocators' libraries.
const ALLOCATOR_FILES: [(&str, &str); 9] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libsnmalloc", "snmalloc"),
    ("librpmalloc", "rpmalloc"),
    ("libhoard", "Hoard"),
    ("libtbbmalloc", "oneTBB"),
    ("libscudo", "Scudo"),
    ("ld-musl-", "musl"),
];

/// Functions of allocators, as in a table of symbols: between zero bytes.
const ALLOCATOR_SYMBOLS: [(&str, &str); 8] = [
    ("\0_rjem_mallocx\0", "jemalloc"),
    ("\0je_mallocx\0", "jemalloc"),
    ("\0mallocx\0", "jemalloc"),
    ("\0mi_malloc\0", "mimalloc"),
    ("\0tc_malloc\0", "tcmalloc"),
    ("\0sn_rust_alloc\0", "snmalloc"),
    ("\0rpmalloc\0", "rpmalloc"),
    ("\0scudo_malloc\0", "Scudo"),
];

/// Texts that each build of an allocator contains, by which it is found in a program without symbols. Both are required,
/// because a program that only mentions it may contain one of them.
/// In pieces, so that memprof's own program does not contain them.
const ALLOCATOR_TEXTS: [(&str, [[&str; 2]; 2]); 2] = [
    ("jemalloc", [["<jemalloc", ">: "], ["nare", "nas"]]),
    (
        "mimalloc",
        [["mimalloc: ", "error: "], ["mimalloc: ", "warning: "]],
    ),
];

/// Most bytes of the sections of a file that are read together: tables of names, and constants.
const SECTIONS_LIMIT: u64 = 128 << 20;

/// Finds an allocator in a process's program whose functions have no symbols, so that its blocks are in no profile.
/// Returns the allocator's name. `None` if there is none, or if the program's file cannot or must not be read.
pub(crate) fn stripped_allocator(pid: u32) -> Option<&'static str> {
    let file = open_program(pid)?;
    read_stripped_allocator(&ReadCache::new(file)).ok()?
}

/// Returns whether a program's file defines a function by which memprof knows an allocator (`ALLOCATOR_SYMBOLS`).
pub(crate) fn defines_allocator<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, Endianness, R>,
) -> bool {
    ALLOCATOR_SYMBOLS.iter().any(|(symbol, _)| {
        let function = symbol.trim_matches('\0').as_bytes();
        !defined_names(elf, symbol.as_bytes(), |name| name == function).is_empty()
    })
}

/// Describes the objects of a language that are in no profile of malloc: where they are, and what shows or samples
/// them. `PID` in the text stands for the pid. `None` for other languages.
pub(crate) fn unsampled_objects_text(language: &str) -> Option<&'static str> {
    Some(match language {
        "Java" => "Java's objects are in HotSpot's heap: `jcmd PID GC.class_histogram` counts them",
        "JavaScript" => {
            "JavaScript's objects are in V8's heap: node's `--heapsnapshot-signal` or the inspector shows them"
        }
        "Python" => {
            "Python's objects of up to 512 bytes are sampled in CPython 3.8 to 3.14 only, and not beside another tool's \
             hooks; `memprof holders PID` shows what holds them"
        }
        "PHP" => {
            "PHP's objects are in Zend's heap, and sampled only if it was started with USE_ZEND_ALLOC=0"
        }
        "Ruby" => {
            "Ruby's objects are in its own heap: `ObjectSpace.trace_object_allocations` names them"
        }
        "Go" => "Go's objects are in its own heap: its net/http/pprof shows them",
        "Erlang" => "Erlang's memory is in its own heap: `erlang:memory()` and recon show it",
        ".NET" => ".NET's objects are in its own heap: `dotnet-gcdump collect -p PID` shows them",
        _ => return None,
    })
}

/// Finds kinds, and remembers those of programs, because many processes have the same program.
#[derive(Debug, Default)]
pub(crate) struct ProgramKinds {
    programs: HashMap<(u64, u64), ProgramKind>,
}

impl ProgramKinds {
    /// Returns the language and allocators of a process; an empty kind if the process may not be inspected.
    pub(crate) fn kind_for_pid(&mut self, pid: u32) -> ProgramKind {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        self.kind_for_maps(pid, &maps)
    }

    /// Like [`kind_for_pid`](Self::kind_for_pid), for the text of /proc/PID/maps; `maps` is empty if the process may
    /// not be inspected. The names of the mapped files decide; if they show no language or no allocator, the program's
    /// own file does. If nothing else is found, the language is C++ where libstdc++ is mapped, and the allocator that
    /// of glibc.
    pub(crate) fn kind_for_maps(&mut self, pid: u32, maps: &[u8]) -> ProgramKind {
        if maps.is_empty() {
            return ProgramKind::default();
        }
        let files = MappedFiles::new(maps);
        let mut kind = files.kind_by_names();
        if kind.language.is_none() || kind.allocators.is_empty() {
            let program = self.kind_of_program(pid);
            kind.language = kind.language.or(program.language);
            kind.allocators.extend(&program.allocators);
        }
        if kind.language.is_none() && files.has_file_starting_with("libstdc++.so") {
            kind.language = Some("C++");
        }
        if kind.allocators.is_empty()
            && (files.has_file_starting_with("libc.so.6")
                || files.has_file_starting_with("libc-2."))
        {
            kind.allocators.push("glibc");
        }
        kind.allocators.dedup();
        kind
    }

    /// Returns the language and allocators that the file of a process's program shows, and remembers them by the file's
    /// device and inode. Returns an empty kind if the file cannot or must not be read.
    fn kind_of_program(&mut self, pid: u32) -> ProgramKind {
        let Ok(metadata) = fs::metadata(format!("/proc/{pid}/exe")) else {
            return ProgramKind::default();
        };
        let key = (metadata.dev(), metadata.ino());
        if let Some(known) = self.programs.get(&key) {
            return known.clone();
        }
        let kind = open_program(pid).map_or_else(ProgramKind::default, |file| {
            read_kind_or_default(&ReadCache::new(file))
        });
        self.programs.insert(key, kind.clone());
        kind
    }
}

/// Opens the file of a process's program. `None` if it cannot be opened, or if it is on a FUSE file system, which may
/// never deliver the data of a page.
fn open_program(pid: u32) -> Option<File> {
    let path = format!("/proc/{pid}/exe");
    let device = fs::metadata(&path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let key = format!("{major:x}:{minor:x}");
    match Mounts::for_pid(pid).is_fuse(MountKey::Device(key.as_bytes())) {
        true => None,
        false => File::open(&path).ok(),
    }
}

/// Names of what a process maps.
struct MappedFiles<'m> {
    /// Names of all mappings; equal neighbours once.
    names: Vec<&'m [u8]>,
    /// Names of the files that are mapped as code.
    code: Vec<&'m [u8]>,
}

impl<'m> MappedFiles<'m> {
    /// Reads the names from the text of a process's maps.
    fn new(maps: &'m [u8]) -> Self {
        let mut files = Self {
            names: Vec::new(),
            code: Vec::new(),
        };
        for mapping in mappings(maps) {
            let name = mapping.file_name();
            if files.names.last() != Some(&name) {
                files.names.push(name);
            }
            if mapping.is_executable() {
                files.code.push(name);
            }
        }
        files
    }

    /// Returns the language and allocators that the names of mapped code show: the first language of
    /// [`LANGUAGE_FILES`], and all allocators.
    fn kind_by_names(&self) -> ProgramKind {
        let is_mapped = |start: &str| self.code.iter().any(|name| matches_name_start(name, start));
        let language = LANGUAGE_FILES.iter().find(|(start, _)| is_mapped(start));
        let allocators = ALLOCATOR_FILES.iter().filter(|(start, _)| is_mapped(start));
        ProgramKind {
            language: language.map(|(_, language)| *language),
            allocators: allocators.map(|(_, name)| *name).collect(),
        }
    }

    /// Returns whether a file is mapped whose name begins with `start`.
    fn has_file_starting_with(&self, start: &str) -> bool {
        let start = start.as_bytes();
        self.names.iter().any(|name| name.starts_with(start))
    }
}

/// Returns whether a file's name is `start`, with a version or a suffix: `python3.11` and `libjemalloc.so.2`, but not
/// `nodejs-tool`. After the start of a library's name, or a dash, anything may follow.
fn matches_name_start(name: &[u8], start: &str) -> bool {
    let rest = name.strip_prefix(start.as_bytes());
    rest.is_some_and(|rest| {
        start.starts_with("lib")
            || start.ends_with('-')
            || rest
                .iter()
                .all(|byte| byte.is_ascii_digit() || b".-".contains(byte))
            // `php-fpm8.2` and `nodejs`.
            || rest.starts_with(b"-fpm")
            || rest == b"js"
    })
}

/// Reads the language and allocators that a program's sections and symbols show. Returns an empty kind if the file
/// cannot be parsed.
fn read_kind_or_default<'data>(data: impl ReadRef<'data>) -> ProgramKind {
    read_kind(data).unwrap_or_default()
}

/// Like [`read_kind_or_default`], but fails if the file's sections cannot be parsed.
fn read_kind<'data>(data: impl ReadRef<'data>) -> object::Result<ProgramKind> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut kind = ProgramKind::default();
    let (mut has_rust, mut has_other_main) = (false, false);
    let mut budget = SectionBudget::default();
    for section in sections.iter() {
        let name = sections.section_name(endian, section)?;
        match name {
            b".go.buildinfo" => kind.language = Some("Go"),
            b".comment" if budget.charge(name, section.sh_size(endian)) => {
                let compilers = section.data(endian, data)?;
                has_rust = find(compilers, b"rustc version ").is_some();
            }
            b".strtab" | b".dynstr" if budget.charge(name, section.sh_size(endian)) => {
                let names = section.data(endian, data)?;
                let has = |symbol: &str| find(names, symbol.as_bytes()).is_some();
                // A program in C may contain a library in Rust.
                has_other_main |= name == b".strtab" && !has("lang_start");
                let found = ALLOCATOR_SYMBOLS.iter().filter(|(symbol, _)| has(symbol));
                kind.allocators
                    .extend(found.map(|(_, allocator)| *allocator));
            }
            _ => {}
        }
    }
    if kind.language.is_none() && has_rust && !has_other_main {
        kind.language = Some("Rust");
    }
    kind.allocators.sort_unstable();
    kind.allocators.dedup();
    Ok(kind)
}

/// Returns the allocator whose texts are among the constants of a program without a table of symbols, and whose
/// functions it does not export. `None` if there is none, or if the program exports `malloc`, whose calls can be
/// sampled.
fn read_stripped_allocator<'data>(
    data: impl ReadRef<'data>,
) -> object::Result<Option<&'static str>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut constants: &[u8] = &[];
    let mut exported: &[u8] = &[];
    let mut budget = SectionBudget::default();
    for section in sections.iter() {
        if section.sh_type(endian) == SHT_SYMTAB {
            return Ok(None);
        }
        let name = sections.section_name(endian, section)?;
        match name {
            b".rodata" if budget.charge(name, section.sh_size(endian)) => {
                constants = section.data(endian, data)?;
            }
            b".dynstr" if budget.charge(name, section.sh_size(endian)) => {
                exported = section.data(endian, data)?;
            }
            _ => {}
        }
    }
    // The allocator is then the program's malloc, whose calls can be sampled.
    if find(exported, b"\0malloc\0").is_some() {
        return Ok(None);
    }
    let has = |bytes: &[u8], text: &str| find(bytes, text.as_bytes()).is_some();
    let is_exported = |allocator: &str| {
        let mut symbols = ALLOCATOR_SYMBOLS.iter();
        symbols.any(|(symbol, name)| *name == allocator && has(exported, symbol))
    };
    let mut allocators = ALLOCATOR_TEXTS.iter();
    let found = allocators.find(|(name, texts)| {
        texts.iter().all(|text| has(constants, &text.concat())) && !is_exported(name)
    });
    Ok(found.map(|(name, _)| *name))
}

/// Limit of the sections of a file that are read, which may overlap and be as many as fit into the file.
#[derive(Default)]
struct SectionBudget {
    names: Vec<Vec<u8>>,
    bytes: u64,
}

impl SectionBudget {
    /// Adds a section to the budget, before the section is read. Returns false, and adds nothing, if a section of that
    /// name was added before, or if all sections together would exceed [`SECTIONS_LIMIT`].
    fn charge(&mut self, name: &[u8], size: u64) -> bool {
        let sum = self.bytes.saturating_add(size);
        let fits = sum <= SECTIONS_LIMIT && !self.names.iter().any(|known| known == name);
        if fits {
            self.bytes = sum;
            self.names.push(name.to_vec());
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_and_allocators_are_named_by_their_files() {
        let check = |path: &str, language: Option<&str>, allocators: &[&str]| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7 {path}\n");
            let kind = MappedFiles::new(maps.as_bytes()).kind_by_names();
            assert_eq!(
                (kind.language, &*kind.allocators),
                (language, allocators),
                "{path}"
            );
        };
        check("/usr/lib/jvm/lib/server/libjvm.so", Some("Java"), &[]);
        check(
            "/root/.pyenv/versions/3.11.7/bin/python3.11",
            Some("Python"),
            &[],
        );
        check("/usr/bin/node", Some("JavaScript"), &[]);
        check("/usr/bin/nodejs", Some("JavaScript"), &[]);
        check("/usr/bin/node_exporter", None, &[]);
        check("/usr/sbin/php-fpm8.2", Some("PHP"), &[]);
        check("/usr/bin/perl", Some("Perl"), &[]);
        check("/usr/bin/lua5.4", Some("Lua"), &[]);
        check("/usr/bin/bundle", None, &[]);
        check("/usr/lib/libjemalloc.so.2", None, &["jemalloc"]);
        check("/usr/lib/libtcmalloc_minimal.so.4", None, &["tcmalloc"]);
        check("/lib/ld-musl-x86_64.so.1", None, &["musl"]);
        check("/srv/web", None, &[]);
    }

    #[test]
    fn program_with_symbols_contains_no_stripped_allocator() {
        assert_eq!(stripped_allocator(std::process::id()), None);
    }

    #[test]
    fn sections_are_read_once_and_within_a_limit() {
        let mut budget = SectionBudget::default();
        let mut check = |name: &str, size, expected| {
            assert_eq!(
                budget.charge(name.as_bytes(), size),
                expected,
                "{name} {size}"
            );
        };
        check(".strtab", 100 << 20, true);
        check(".strtab", 1, false);
        check(".dynstr", 29 << 20, false);
        check(".dynstr", u64::MAX, false);
        check(".dynstr", 28 << 20, true);
        check(".comment", 1, false);
    }

    #[test]
    fn allocator_is_defined_only_where_its_function_is() {
        let own = fs::read("/proc/self/exe").unwrap();
        // Gives a symbol of the linker's start files another name.
        let check = |symbol: &str, name: &str, expected: bool| {
            let (symbol, name) = (format!("\0{symbol}\0"), format!("\0{name}\0"));
            let mut program = own.clone();
            for at in memchr::memmem::find_iter(&own, symbol.as_bytes()) {
                program[at..at + symbol.len()].fill(0);
                program[at..at + name.len()].copy_from_slice(name.as_bytes());
            }
            let elf = ElfFile64::<Endianness, _>::parse(&*program).unwrap();
            assert_eq!(defines_allocator(&elf), expected, "{name}");
        };
        const DEFINED: &str = "__do_global_dtors_aux";
        const IMPORTED: &str = "_ITM_registerTMCloneTable";
        check(DEFINED, DEFINED, false);
        check(DEFINED, "mi_malloc", true);
        check(DEFINED, "tc_malloc", true);
        check(DEFINED, "my_tc_malloc", false);
        check(IMPORTED, "mi_malloc", false);
    }

    #[test]
    fn program_in_c_with_rust_library_is_not_rust_in_any_order_of_sections() {
        let program = fs::read("/proc/self/exe").unwrap();
        let mut in_c = program.clone();
        for at in memchr::memmem::find_iter(&program, b"lang_start") {
            in_c[at] = b'x';
        }
        let check = |program: &[u8], expected| {
            assert_eq!(read_kind(program).unwrap().language, expected);
            let swapped = swap_sections(program, [b".comment", b".strtab"]);
            assert_eq!(read_kind(&*swapped).unwrap().language, expected);
        };
        check(&program, Some("Rust"));
        check(&in_c, None);
    }

    /// Returns a program in which two sections have changed places in the table of sections.
    fn swap_sections(program: &[u8], names: [&[u8]; 2]) -> Vec<u8> {
        let header = FileHeader64::<Endianness>::parse(program).unwrap();
        let endian = header.endian().unwrap();
        let sections = header.sections(endian, program).unwrap();
        let size = usize::from(header.e_shentsize.get(endian));
        let [first, second] = names.map(|name| {
            let (index, _) = sections.section_by_name(endian, name).unwrap();
            header.e_shoff.get(endian) as usize + index.0 * size
        });
        let mut swapped = program.to_vec();
        swapped[first..first + size].copy_from_slice(&program[second..second + size]);
        swapped[second..second + size].copy_from_slice(&program[first..first + size]);
        swapped
    }

    #[test]
    fn own_program_is_rust_with_glibc() {
        let kind = ProgramKinds::default().kind_for_pid(std::process::id());
        assert_eq!(kind.language, Some("Rust"));
        assert_eq!(kind.allocators, ["glibc"]);
    }
}
