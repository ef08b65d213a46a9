//! Library files that no linker writes: with sections of gigabytes, with pathological debug information, or with a
//! hostile name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader as _;
use xtask::dist::dist;
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
    /// The section headers lie in the hole, in the largest number that `e_shnum` can have.
    Headers,
    /// The file that `.gnu_debuglink` names is sparse and of gigabytes.
    DebugFile,
    /// All units of `.debug_info` share one long list of abbreviations.
    Abbreviations,
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
        fs::copy(dist().join("torture/attacker_library.so"), &path)?;
        match self {
            Self::Whole | Self::Name => {}
            Self::Section(name) => move_section_to_hole(&path, name)?,
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
                File::options()
                    .write(true)
                    .open(&debug)?
                    .set_len(FILE_LEN)?;
            }
            Self::Abbreviations => {
                let (info, abbreviations) =
                    (directory.join("info"), directory.join("abbreviations"));
                fs::write(&info, debug_info_units())?;
                fs::write(&abbreviations, abbreviation_list())?;
                let mut copy = Command::new("objcopy");
                copy.arg("--remove-section=.debug_aranges");
                for (section, file) in [("info", info), ("abbrev", abbreviations)] {
                    copy.arg(format!(
                        "--update-section=.debug_{section}={}",
                        file.display()
                    ));
                }
                run(copy.arg(&path))?;
            }
        }
        Ok(path)
    }
}

/// Points a section's header at a hole of gigabytes.
fn move_section_to_hole(path: &Path, name: &str) -> Result<()> {
    let mut bytes = fs::read(path)?;
    let header = FileHeader64::<Endianness>::parse(&*bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &*bytes)?;
    let found = sections.section_by_name(endian, name.as_bytes());
    let (index, _) = found.with_context(|| format!("no section {name}"))?;
    let offset =
        header.e_shoff(endian) as usize + index.0 * usize::from(header.e_shentsize(endian));
    // The size is a multiple of 24 bytes, the size of a symbol table entry.
    let size = (FILE_LEN - HOLE_OFFSET) / 24 * 24;
    bytes[offset + 24..offset + 32].copy_from_slice(&HOLE_OFFSET.to_le_bytes());
    bytes[offset + 32..offset + 40].copy_from_slice(&size.to_le_bytes());
    write_sparse(path, &bytes)
}

/// Writes a file, and extends it by a hole to its final length.
fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(File::options().write(true).open(path)?.set_len(FILE_LEN)?)
}

/// Contents of `.debug_info`: 40,000 units of one root entry each (DWARF 4, 7.5.1.1).
fn debug_info_units() -> Vec<u8> {
    const UNITS: usize = 40_000;
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    unit.repeat(UNITS)
}

/// Contents of `.debug_abbrev`: 100,000 abbreviations without children and attributes (DWARF 4, 7.5.3).
fn abbreviation_list() -> Vec<u8> {
    const DECLARATIONS: u32 = 100_000;
    const SUBPROGRAM: u8 = 0x2e;
    let mut list = Vec::new();
    for code in 1..=DECLARATIONS {
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
