//! Library files that no linker writes: with sections of gigabytes, with pathological debug information, or with a
//! hostile name.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::fcntl::{FallocateFlags, fallocate};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader as _;
use xtask::dist::dist_dir;
use xtask::run::run;

/// Offset in the sparse file from which it has no data.
const HOLE_OFFSET: u64 = 1 << 30;
/// Length of the sparse file in bytes.
const FILE_LEN: u64 = 7 << 30;

/// Change to the library's file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Forgery {
    /// No change.
    Whole,
    /// The named section lies in a hole of gigabytes.
    Section(&'static str),
    /// The named section lies in a gigabyte of blocks that were reserved and never written.
    Reserved(&'static str),
    /// The section headers lie in the hole, in the largest number that `e_shnum` can have.
    Headers,
    /// The file that `.gnu_debuglink` names is sparse and of gigabytes.
    DebugFile,
    /// All units of `.debug_info` share one long list of abbreviations.
    Abbreviations,
    /// Each byte of the line program is a row of the line table.
    Lines,
    /// Each entry of `.debug_info` is a function.
    Functions,
    /// Each entry of `.debug_info` is a function that is inlined into one.
    InlinedFunctions,
    /// The file's name has an escape sequence that clears a terminal.
    Name,
}

impl Forgery {
    /// Writes the library to `directory`, and returns its path. [`Forgery::Name`] replaces the given name.
    pub(super) fn create_library(self, directory: &Path, name: &str) -> Result<PathBuf> {
        let name = match self {
            Self::Name => "\u{1b}[2J\r%s.so",
            _ => name,
        };
        let path = directory.join(name);
        fs::copy(dist_dir().join("torture/attacker_library.so"), &path)?;
        match self {
            Self::Whole | Self::Name => {}
            Self::Section(name) => {
                write_sparse(&path, &move_section(&path, name, HOLE_OFFSET..FILE_LEN)?)?;
            }
            Self::Reserved(name) => {
                const START: u64 = 1 << 20;
                fs::write(&path, move_section(&path, name, START..1 << 30)?)?;
                let file = File::options().write(true).open(&path)?;
                fallocate(file, FallocateFlags::empty(), 0, 1 << 30)?;
            }
            Self::Headers => {
                let mut bytes = fs::read(&path)?;
                // `e_shoff`, `e_shnum`.
                bytes[40..48].copy_from_slice(&HOLE_OFFSET.to_le_bytes());
                bytes[60..62].copy_from_slice(&0xfeff_u16.to_le_bytes());
                write_sparse(&path, &bytes)?;
            }
            Self::DebugFile => {
                let debug = directory.join("library.debug");
                fs::write(&debug, "debug")?;
                let mut link = Command::new("objcopy");
                link.arg("--strip-debug")
                    .arg("--remove-section=.note.gnu.build-id");
                link.arg(format!("--add-gnu-debuglink={}", debug.display()));
                run(link.arg(&path))?;
                // objcopy has read the file for its checksum, so it grows only now.
                File::options()
                    .write(true)
                    .open(&debug)?
                    .set_len(FILE_LEN)?;
            }
            Self::Abbreviations | Self::Lines | Self::Functions | Self::InlinedFunctions => {
                let mut copy = Command::new("objcopy");
                // With this section, `memprof` would skip units without the addresses.
                copy.arg("--remove-section=.debug_aranges");
                for (section, bytes) in self.debug_sections() {
                    let file = directory.join(section);
                    fs::write(&file, bytes)?;
                    copy.arg(format!("--update-section=.{section}={}", file.display()));
                }
                run(copy.arg(&path))?;
            }
        }
        Ok(path)
    }

    /// Returns the sections of debug information that this forgery replaces, with their new contents. Empty if it
    /// replaces none.
    fn debug_sections(self) -> Vec<(&'static str, Vec<u8>)> {
        match self {
            Self::Abbreviations => vec![
                ("debug_info", debug_info_units()),
                ("debug_abbrev", abbreviation_list()),
            ],
            Self::Lines => vec![("debug_line", line_program())],
            Self::Functions | Self::InlinedFunctions => {
                let is_inlined = matches!(self, Self::InlinedFunctions);
                vec![
                    ("debug_info", function_entries(is_inlined)),
                    ("debug_abbrev", FUNCTION_ABBREVIATIONS.to_vec()),
                ]
            }
            _ => Vec::new(),
        }
    }
}

/// Bytes of a section that addr2line would keep as gigabytes.
const LARGE_SECTION: usize = 128 << 20;

/// Contents of `.debug_line`: one program (DWARF 4, 6.2.4) whose special opcodes each make a row for the next address.
fn line_program() -> Vec<u8> {
    // Special opcode 32 adds 1 to the address and 0 to the line, by the line base -5 (0xfb), the line range 14 and the
    // opcode base 13 of the header.
    const NEXT_ADDRESS: u8 = 32;
    let header = [
        &[1, 1, 1, 0xfb, 14, 13][..],
        &[0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1],
        b"\0a.c\0\0\0\0\0",
    ];
    let header = header.concat();
    // DW_LNE_set_address, 16.
    let set_address = [0, 9, 2, 16, 0, 0, 0, 0, 0, 0, 0];
    let mut program = [&set_address[..], &vec![NEXT_ADDRESS; LARGE_SECTION]].concat();
    // DW_LNE_end_sequence.
    program.extend([0, 1, 1]);
    let version = 4_u16.to_le_bytes();
    let header_len = (header.len() as u32).to_le_bytes();
    with_length(&[&version[..], &header_len, &header, &program].concat())
}

/// Abbreviations of a unit, a function and an inlined function, each with a range; the first two have children.
const FUNCTION_ABBREVIATIONS: &[u8] = &[
    1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0, 2, 0x2e, 1, 0x11, 1, 0x12, 6, 0, 0, 3, 0x1d, 0, 0x11, 1,
    0x12, 6, 0, 0, 0,
];

/// Contents of `.debug_info`: one unit (DWARF 4, 7.5.1.1) of functions. If `is_inlined`, all but one are inlined into
/// that one.
fn function_entries(is_inlined: bool) -> Vec<u8> {
    let entry = |code: u8| {
        let (start, length) = (16_u64.to_le_bytes(), (1_u32 << 24).to_le_bytes());
        [&[code][..], &start, &length].concat()
    };
    // An entry has 13 bytes. A list of children ends with a 0.
    let entries = match is_inlined {
        true => [entry(2), entry(3).repeat(LARGE_SECTION / 13), vec![0]].concat(),
        false => [entry(2), vec![0]].concat().repeat(LARGE_SECTION / 14),
    };
    // Version, offset of the abbreviations, size of an address.
    let header = [4, 0, 0, 0, 0, 0, 8];
    with_length(&[&header[..], &entry(1), &entries, &[0]].concat())
}

/// Returns the bytes behind their length in 32 bits, as DWARF has it at the start of a unit.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// Returns the bytes of the ELF file at `path`, with the offset and size in the header of the section `name` changed to
/// `range`. Fails if the file has no such section.
fn move_section(path: &Path, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
    let mut bytes = fs::read(path)?;
    let header = FileHeader64::<Endianness>::parse(&*bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &*bytes)?;
    let found = sections.section_by_name(endian, name.as_bytes());
    let (index, _) = found.with_context(|| format!("no section {name}"))?;
    let offset =
        header.e_shoff(endian) as usize + index.0 * usize::from(header.e_shentsize(endian));
    // The size is a multiple of 24 bytes, the size of a symbol table entry.
    let size = (range.end - range.start) / 24 * 24;
    // `sh_offset`, `sh_size`.
    bytes[offset + 24..offset + 32].copy_from_slice(&range.start.to_le_bytes());
    bytes[offset + 32..offset + 40].copy_from_slice(&size.to_le_bytes());
    Ok(bytes)
}

/// Writes a file, and extends it by a hole to [`FILE_LEN`].
fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(File::options().write(true).open(path)?.set_len(FILE_LEN)?)
}

/// Contents of `.debug_info`: 40,000 units of one root entry each (DWARF 4, 7.5.1.1).
fn debug_info_units() -> Vec<u8> {
    const UNITS: usize = 40_000;
    // Length, version, offset of the abbreviations, size of an address, abbreviation code.
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    unit.repeat(UNITS)
}

/// Contents of `.debug_abbrev`: 100,000 abbreviations without children and attributes (DWARF 4, 7.5.3).
fn abbreviation_list() -> Vec<u8> {
    const DECLARATIONS: u32 = 100_000;
    const SUBPROGRAM: u8 = 0x2e;
    let mut list = Vec::new();
    for code in 1..=DECLARATIONS {
        // LEB128: seven bits a byte, the lowest first; the top bit says that another byte follows.
        let mut rest = code;
        while rest >= 0x80 {
            list.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        list.extend([rest as u8, SUBPROGRAM, 0, 0, 0]);
    }
    list.push(0);
    list
}
