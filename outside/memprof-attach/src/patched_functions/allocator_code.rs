//! Reads the functions of the files that contain a process's allocators: the program, or a library.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::time::{Duration, Instant};

use gimli::{BaseAddresses, CieOrFde, EhFrame, UnwindSection};
use iced_x86::{Code, Instruction};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationFlags, RelocationTarget, SectionKind,
};

use super::MallocOwner;
use super::allocator_file::AllocatorFile;
use super::file_budget::FileBudget;
use super::function_names::{FunctionNames, KnownFunction, may_contain_allocator};
use super::prologue::{branch_target, decode_instructions, has_fixed_operand};
use crate::error::AttachError;

/// An ELF file, read as needed.
type Elf<'a> = ElfFile64<'a, LittleEndian, &'a ReadCache<File>>;

/// Key of the address of the program headers in the auxiliary vector (getauxval(3)).
const AT_PHDR: u64 = 3;
/// Largest size of all code, in bytes: no program has more. A malicious file could otherwise take memory and time.
const MAX_CODE_SIZE: usize = 512 << 20;
/// Most functions of a file: the largest browsers have a million.
const MAX_FUNCTIONS: usize = 2 << 20;
/// Largest size of a function, in bytes; a larger one is cut off there.
const MAX_FUNCTION_SIZE: u64 = 1 << 20;
const SYMBOLS_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an entry of a procedure linkage table.
const STUB_SIZE: usize = 16;

/// Replaces the address of an allocating function of another file, which is unknown.
pub(crate) const OTHER_ALLOCATOR: u64 = u64::MAX;

/// Code of a file that contains an allocator, at the addresses in the process.
#[derive(Debug)]
pub(crate) struct AllocatorCode {
    /// Name of the library; `None` for the program.
    pub(crate) library: Option<String>,
    /// Executable sections with their addresses.
    pub(crate) sections: Vec<(u64, Vec<u8>)>,
    /// Its functions.
    functions: BTreeMap<u64, AllocatorFunction>,
    /// Functions of this file by the address of the GOT slot that holds them; [`OTHER_ALLOCATOR`] for one that
    /// allocates of another file.
    slots: HashMap<u64, u64>,
    /// Whether it serves `malloc`.
    pub(crate) serves_malloc: bool,
}

/// A function, as described by the symbols.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocatorFunction {
    /// Length in bytes.
    pub(crate) length: u64,
    /// Its names that are an allocator's.
    pub(crate) names: Vec<KnownFunction>,
    /// Whether the loader calls it to find the actual function (`STT_GNU_IFUNC`).
    pub(crate) is_indirect: bool,
}

impl AllocatorCode {
    /// Reads the file of a process that exports `malloc`: the program, or, for [`MallocOwner::First`], the first
    /// loaded library. `None` if there is none.
    ///
    /// # Errors
    /// `Io`, `Failed`: the file cannot be read or parsed; `NotPatched`: the program was stripped, the library was
    /// replaced, or one of them is too large.
    pub(crate) fn read(pid: u32, owner: MallocOwner) -> Result<Option<Self>, AttachError> {
        let mut budget = FileBudget::new();
        let program = AllocatorFile::open_program(pid)?;
        let program = Self::read_file(pid, program, true, &mut budget)?;
        match (program, owner) {
            (Some(program), _) => Ok(Some(program)),
            (None, MallocOwner::Program) => Ok(None),
            (None, MallocOwner::First) => match AllocatorFile::open_malloc_library(pid)? {
                Some(library) => Self::read_file(pid, library, true, &mut budget),
                None => Ok(None),
            },
        }
    }

    /// Reads the program and the libraries if they contain an allocator other than the one that serves `malloc`.
    ///
    /// # Errors
    /// `Io`, `Failed`, `NotPatched`: the program cannot be read or parsed, or is too large. Leaves out libraries with
    /// such a fault.
    pub(crate) fn read_other_allocators(pid: u32) -> Result<Vec<Self>, AttachError> {
        let mut budget = FileBudget::new();
        let program = AllocatorFile::open_program(pid)?;
        let program = Self::read_file(pid, program, false, &mut budget)?;
        let libraries = AllocatorFile::open_other_libraries(pid)?.into_iter();
        let libraries =
            libraries.filter_map(|file| Self::read_file(pid, file, false, &mut budget).ok()?);
        Ok(program.into_iter().chain(libraries).collect())
    }

    /// Reads one file, and charges its size to `budget`. `None` if it contains no allocator of the requested kind: one
    /// that exports `malloc` if `serves_malloc`, else one whose functions have other names. Fails as [`Self::read`]
    /// does.
    fn read_file(
        pid: u32,
        opened: AllocatorFile,
        serves_malloc: bool,
        budget: &mut FileBudget,
    ) -> Result<Option<Self>, AttachError> {
        let AllocatorFile { path, file, base } = opened;
        let cache = ReadCache::new(file);
        let invalid = |error: object::Error| AttachError::Failed(format!("{path}: {error}"));
        let too_large = || AttachError::NotPatched(format!("{path} is too large"));
        if !budget.charge(&cache).map_err(invalid)? {
            return Err(too_large());
        }
        let elf = Elf::parse(&cache).map_err(invalid)?;
        if defines_malloc(&elf) != serves_malloc {
            return Ok(None);
        }
        let is_program = base.is_none();
        if !serves_malloc && !is_program && !may_name_allocator(&elf) {
            return Ok(None);
        }
        let bias = match base {
            Some(base) => base,
            None => program_load_bias(pid, &elf)?,
        };
        let table = elf.symbol_table();
        // A library may be stripped: other files enter it through its dynamic symbols only, and its unwind information,
        // which is never stripped, shows where its functions end.
        if is_program && serves_malloc && table.is_none() {
            return Err(AttachError::NotPatched(
                "the program was stripped, so nothing tells where its functions end; keep its symbols (strip \
                 --strip-debug; Cargo: strip = \"debuginfo\")"
                    .to_owned(),
            ));
        }
        let dynamic = elf.dynamic_symbol_table().filter(|_| !is_program);
        let symbols = || {
            let tables = dynamic.iter().chain(&table);
            let symbols = tables.flat_map(|table| table.symbols());
            symbols.filter(|symbol| {
                let kind = symbol.elf_symbol().st_type();
                matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) && !symbol.is_undefined()
            })
        };
        let start = Instant::now();
        let mut names = FunctionNames::new(serves_malloc, is_program);
        let mut functions: BTreeMap<u64, AllocatorFunction> = BTreeMap::new();
        for symbol in symbols() {
            if start.elapsed() > SYMBOLS_TIMEOUT || functions.len() > MAX_FUNCTIONS {
                return Err(too_large());
            }
            names.add_jemalloc_prefix(symbol.name_bytes().unwrap_or_default());
            let address = symbol.address().wrapping_add(bias);
            let function = functions.entry(address).or_default();
            function.length = function.length.max(symbol.size()).min(MAX_FUNCTION_SIZE);
            function.is_indirect |= symbol.elf_symbol().st_type() == elf::STT_GNU_IFUNC;
        }
        for symbol in symbols() {
            let name = symbol.name_bytes().unwrap_or_default();
            let Some(known) = names.find(name, symbol.is_local()) else {
                continue;
            };
            let address = symbol.address().wrapping_add(bias);
            let function = functions.entry(address).or_default();
            if !function.names.contains(&known) {
                function.names.push(known);
            }
        }
        let all = functions.values().flat_map(|function| &function.names);
        let complete = names.groups_to_patch(all);
        for function in functions.values_mut() {
            function.names.retain(|name| complete.contains(&name.group));
        }
        if !serves_malloc && functions.values().all(|function| function.names.is_empty()) {
            return Ok(None);
        }
        if !is_program {
            for (address, length) in functions_in_eh_frame(&elf)? {
                let function = functions.entry(address.wrapping_add(bias)).or_default();
                function.length = function.length.max(length).min(MAX_FUNCTION_SIZE);
            }
        }
        let is_code = |kind| kind == SectionKind::Text;
        let sections = elf.sections().filter(|section| is_code(section.kind()));
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
        let file_name = || path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(Some(Self {
            library: base.map(|_| file_name()),
            sections: code,
            functions,
            slots: functions_by_slot(&elf, bias),
            serves_malloc,
        }))
    }

    /// Returns the functions with their start addresses in the process, by address.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (u64, &AllocatorFunction)> {
        self.functions
            .iter()
            .map(|(address, function)| (*address, function))
    }

    /// Returns the function that contains an address, with its start; `None` if no symbol covers it.
    pub(crate) fn function_at(&self, address: u64) -> Option<(u64, &AllocatorFunction)> {
        let (start, function) = self.functions.range(..=address).next_back()?;
        (address < start.saturating_add(function.length)).then_some((*start, function))
    }

    /// Returns the bytes from an address on; `None` if they are not all in one section.
    pub(crate) fn bytes(&self, address: u64, length: u64) -> Option<&[u8]> {
        self.bytes_from(address)?.get(..length as usize)
    }

    /// Returns the bytes from an address to the end of its section; `None` if no section contains the address.
    fn bytes_from(&self, address: u64) -> Option<&[u8]> {
        let mut sections = self.sections.iter();
        sections.find_map(|(start, bytes)| bytes.get(address.checked_sub(*start)? as usize..))
    }

    /// Returns the address to which a jump or call leads, also through a GOT slot or an entry of the procedure linkage
    /// table. `None` for other instructions, and for functions of other files, except for [`OTHER_ALLOCATOR`].
    pub(crate) fn call_target(&self, instruction: &Instruction) -> Option<u64> {
        let Some(target) = branch_target(instruction) else {
            return self.slot_function(instruction);
        };
        let stub = self.bytes_from(target).unwrap_or_default();
        let stub = &stub[..stub.len().min(STUB_SIZE)];
        let mut stub =
            decode_instructions(stub, target).filter(|each| each.code() != Code::Endbr64);
        match stub.next() {
            Some(jump) if jump.is_jmp_near_indirect() && has_fixed_operand(&jump) => {
                self.slot_function(&jump)
            }
            _ => Some(target),
        }
    }

    /// Returns the function whose address is in the GOT slot that a jump or call reads: the address of a function of
    /// this file, or [`OTHER_ALLOCATOR`]. `None` for other instructions, and for slots of other functions.
    fn slot_function(&self, instruction: &Instruction) -> Option<u64> {
        let is_branch = instruction.is_jmp_near_indirect() || instruction.is_call_near_indirect();
        let slot = (is_branch && has_fixed_operand(instruction))
            .then(|| instruction.ip_rel_memory_address())?;
        self.slots.get(&slot).copied()
    }
}

/// Returns the functions that this file calls through GOT slots, by the address of the slot. These are the functions
/// that the file defines, and [`OTHER_ALLOCATOR`] for each allocator function of another file. Slots of other functions
/// are left out.
fn functions_by_slot(elf: &Elf<'_>, bias: u64) -> HashMap<u64, u64> {
    let relocations = elf.dynamic_relocations().into_iter().flatten();
    let slots = relocations.filter_map(|(slot, relocation)| {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            return None;
        };
        if !matches!(r_type, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT) {
            return None;
        }
        let RelocationTarget::Symbol(index) = relocation.target() else {
            return None;
        };
        let symbol = elf.dynamic_symbol_table()?.symbol_by_index(index).ok()?;
        let function = match symbol.is_undefined() {
            false => symbol.address().wrapping_add(bias),
            true => {
                let known = FunctionNames::new(true, false).find(symbol.name_bytes().ok()?, false);
                known?;
                OTHER_ALLOCATOR
            }
        };
        Some((slot.wrapping_add(bias), function))
    });
    slots.collect()
}

/// Returns whether a file's symbol names may contain those of an allocator that does not serve `malloc`. False if they
/// cannot be read.
fn may_name_allocator(elf: &Elf<'_>) -> bool {
    let mut tables = [".strtab", ".dynstr"]
        .into_iter()
        .filter_map(|name| elf.section_by_name(name)?.data().ok());
    tables.any(may_contain_allocator)
}

/// Returns the start (as an address in the file) and length of the functions that `.eh_frame` describes,
/// [`MAX_FUNCTIONS`] at most. Empty if there is no such section. Fails if the section is malformed.
fn functions_in_eh_frame(elf: &Elf<'_>) -> Result<Vec<(u64, u64)>, AttachError> {
    let invalid =
        |error: &dyn std::fmt::Display| AttachError::Failed(format!(".eh_frame: {error}"));
    let Some(section) = elf.section_by_name(".eh_frame") else {
        return Ok(Vec::new());
    };
    let data = section.data().map_err(|error| invalid(&error))?;
    let frames = EhFrame::new(data, gimli::LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = frames.entries(&bases);
    let mut ranges = Vec::new();
    while ranges.len() < MAX_FUNCTIONS
        && let Some(entry) = entries.next().map_err(|error| invalid(&error))?
    {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(EhFrame::cie_from_offset);
        let parsed = parsed.map_err(|error| invalid(&error))?;
        ranges.push((parsed.initial_address(), parsed.len()));
    }
    Ok(ranges)
}

/// Returns whether a file itself defines and exports `malloc`.
fn defines_malloc(program: &Elf<'_>) -> bool {
    let mut exported = program.dynamic_symbols();
    exported.any(|symbol| !symbol.is_undefined() && symbol.name() == Ok("malloc"))
}

/// Returns the difference between the program's addresses in the process and in its file; 0 if it is not position
/// independent. It is the difference between the two addresses of the program headers: in the process by the auxiliary
/// vector, in the file by `PT_PHDR`. Fails if one of these is missing.
fn program_load_bias(pid: u32, program: &Elf<'_>) -> Result<u64, AttachError> {
    let path = format!("/proc/{pid}/auxv");
    let vector = fs::read(&path).map_err(AttachError::io_error(path))?;
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
impl AllocatorCode {
    /// Builds a program without a file. `functions` are addresses, lengths and names; one address may have several
    /// names.
    pub(crate) fn for_test(sections: Vec<(u64, Vec<u8>)>, functions: &[(u64, u64, &str)]) -> Self {
        let mut code = Self {
            library: None,
            sections,
            functions: BTreeMap::new(),
            slots: HashMap::new(),
            serves_malloc: true,
        };
        let names = FunctionNames::new(true, true);
        for (address, length, name) in functions {
            let function = code.functions.entry(*address).or_default();
            function.length = function.length.max(*length);
            function.names.extend(names.find(name.as_bytes(), false));
        }
        code
    }

    /// Makes it an allocator that does not serve `malloc`.
    pub(crate) fn beside_malloc(mut self) -> Self {
        self.serves_malloc = false;
        self
    }

    /// Adds a slot that holds the address of a function.
    pub(crate) fn with_slot(mut self, slot: u64, function: u64) -> Self {
        self.slots.insert(slot, function);
        self
    }
}
