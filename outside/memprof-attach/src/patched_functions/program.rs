//! Reads the functions of a process's program from its file.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::time::{Duration, Instant};

use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache, SectionKind,
};

use memprof_sampler::{SIGNATURES, Signature};

use crate::error::AttachError;

/// A program's ELF file, read as needed.
type Program<'a> = ElfFile64<'a, LittleEndian, &'a ReadCache<File>>;

/// Key of the address of the program headers in the auxiliary vector (getauxval(3)).
const AT_PHDR: u64 = 3;
/// Largest size of all code, in bytes: no program has more. A malicious file could otherwise take memory and time.
const MAX_CODE_SIZE: usize = 512 << 20;
/// Largest size of a function, in bytes; a larger one is cut off there.
const MAX_FUNCTION_SIZE: u64 = 1 << 20;
/// Timeout for reading the symbols.
const SYMBOLS_TIMEOUT: Duration = Duration::from_secs(20);

/// Code of a program, at the addresses in the process.
#[derive(Debug)]
pub(crate) struct ProgramCode {
    /// Executable sections with their addresses.
    pub(crate) sections: Vec<(u64, Vec<u8>)>,
    /// Its functions.
    functions: BTreeMap<u64, ProgramFunction>,
}

/// A function, as described by the symbols.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramFunction {
    /// Length in bytes.
    pub(crate) length: u64,
    /// Hooks for the function, by its exported names.
    pub(crate) hooks: Vec<&'static Signature>,
    /// Whether the loader calls it to find the actual function (`STT_GNU_IFUNC`).
    pub(crate) is_indirect: bool,
}

impl ProgramCode {
    /// Reads the program of a process. `None` if it does not export its own `malloc`.
    ///
    /// # Errors
    /// `Io`, `Failed`: the file cannot be read or parsed; `NotPatched`: the program was stripped, or is too large.
    pub(crate) fn read(pid: u32) -> Result<Option<Self>, AttachError> {
        let path = format!("/proc/{pid}/exe");
        let file = File::open(&path).map_err(AttachError::io(path.clone()))?;
        let cache = ReadCache::new(file);
        let invalid = |error: object::Error| AttachError::Failed(format!("{path}: {error}"));
        let program = Program::parse(&cache).map_err(invalid)?;
        if !defines_malloc(&program) {
            return Ok(None);
        }
        let Some(table) = program.symbol_table() else {
            return Err(AttachError::NotPatched(
                "the program was stripped, so nothing tells where its functions end; keep its symbols (strip \
                 --strip-debug; Cargo: strip = \"debuginfo\")"
                    .to_owned(),
            ));
        };
        let bias = load_bias(pid, &program)?;
        let hooks: HashMap<_, _> = SIGNATURES
            .iter()
            .map(|each| (each.name.as_bytes(), each))
            .collect();
        let too_large = || AttachError::NotPatched("the program is too large".to_owned());
        let start = Instant::now();
        let mut functions: BTreeMap<u64, ProgramFunction> = BTreeMap::new();
        for symbol in table.symbols() {
            if start.elapsed() > SYMBOLS_TIMEOUT {
                return Err(too_large());
            }
            let kind = symbol.elf_symbol().st_type();
            let is_code = matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC);
            if !is_code || symbol.is_undefined() {
                continue;
            }
            let address = symbol.address().wrapping_add(bias);
            let function = functions.entry(address).or_default();
            function.length = function.length.max(symbol.size()).min(MAX_FUNCTION_SIZE);
            function.is_indirect |= kind == elf::STT_GNU_IFUNC;
            let name = symbol.name_bytes().unwrap_or_default();
            if let (false, Some(hook)) = (symbol.is_local(), hooks.get(name)) {
                function.hooks.push(hook);
            }
        }
        let is_code = |kind| kind == SectionKind::Text;
        let sections = program.sections().filter(|section| is_code(section.kind()));
        let mut code = Vec::new();
        let mut length = 0;
        for section in sections {
            let bytes = section.data().map_err(invalid)?;
            length += bytes.len();
            if length > MAX_CODE_SIZE {
                return Err(too_large());
            }
            code.push((section.address().wrapping_add(bias), bytes.to_vec()));
        }
        Ok(Some(Self {
            sections: code,
            functions,
        }))
    }

    /// Functions with their start addresses in the process, by address.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (u64, &ProgramFunction)> {
        self.functions
            .iter()
            .map(|(address, function)| (*address, function))
    }

    /// Function that contains an address, with its start; `None` if no symbol covers it.
    pub(crate) fn function(&self, address: u64) -> Option<(u64, &ProgramFunction)> {
        let (start, function) = self.functions.range(..=address).next_back()?;
        (address < start.saturating_add(function.length)).then_some((*start, function))
    }

    /// Bytes from an address on; `None` if they are not all in one section.
    pub(crate) fn bytes(&self, address: u64, length: u64) -> Option<&[u8]> {
        let mut sections = self.sections.iter();
        sections.find_map(|(start, bytes)| {
            let offset = address.checked_sub(*start)? as usize;
            bytes.get(offset..offset.checked_add(length as usize)?)
        })
    }
}

/// Whether the program itself defines and exports `malloc`.
fn defines_malloc(program: &Program<'_>) -> bool {
    let mut exported = program.dynamic_symbols();
    exported.any(|symbol| !symbol.is_undefined() && symbol.name() == Ok("malloc"))
}

/// Difference between addresses in the process and in the file; 0 if the program is not position independent. Fails
/// if the program headers are not found.
fn load_bias(pid: u32, program: &Program<'_>) -> Result<u64, AttachError> {
    let path = format!("/proc/{pid}/auxv");
    let vector = fs::read(&path).map_err(AttachError::io(path))?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut entries = vector.chunks_exact(16);
    let headers = entries.find(|entry| word(&entry[..8]) == AT_PHDR);
    let headers = headers.map(|entry| word(&entry[8..]));
    let endian = LittleEndian;
    let mut segments = program.elf_program_headers().iter();
    let headers_segment = segments.find(|segment| segment.p_type(endian) == elf::PT_PHDR);
    let file_address = headers_segment.map(|headers_segment| headers_segment.p_vaddr(endian));
    match (headers, file_address) {
        (Some(headers), Some(file_address)) => Ok(headers.wrapping_sub(file_address)),
        _ => Err(AttachError::Failed(
            "its program headers are not to be found".to_owned(),
        )),
    }
}

#[cfg(test)]
impl ProgramCode {
    /// Builds a program without a file.
    pub(crate) fn for_test(sections: Vec<(u64, Vec<u8>)>, functions: &[(u64, u64, &str)]) -> Self {
        let mut code = Self {
            sections,
            functions: BTreeMap::new(),
        };
        for (address, length, name) in functions {
            let function = code.functions.entry(*address).or_default();
            function.length = function.length.max(*length);
            function
                .hooks
                .extend(SIGNATURES.iter().filter(|each| each.name == *name));
        }
        code
    }
}
