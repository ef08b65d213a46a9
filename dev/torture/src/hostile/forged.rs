//! A library whose file is not what a linker makes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader as _;
use xtask::dist::dist;
use xtask::run::run;

const HOLE: u64 = 1 << 30;
const LENGTH: u64 = 7 << 30;

/// What is changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Forged {
    Whole,
    /// The section lies in a hole of gigabytes.
    Section(&'static str),
    /// So do the section headers, of which there are as many as there can be.
    Headers,
    /// The file that `.gnu_debuglink` names is one.
    DebugFile,
    /// Every unit of `.debug_info` has a long list of abbreviations, the same one.
    Abbreviations,
    /// Its name would clear a terminal.
    Name,
}

impl Forged {
    /// Makes the library of that name in a directory.
    pub(super) fn make(self, directory: &Path, name: &str) -> Result<PathBuf> {
        let name = match self {
            Self::Name => "\u{1b}[2J\r%s.so",
            _ => name,
        };
        let path = directory.join(name);
        fs::copy(dist().join("torture/attacker_library.so"), &path)?;
        match self {
            Self::Whole | Self::Name => {}
            Self::Section(name) => enlarge(&path, name)?,
            Self::Headers => {
                let mut bytes = fs::read(&path)?;
                // `e_shoff`, `e_shnum`.
                bytes[40..48].copy_from_slice(&HOLE.to_le_bytes());
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
                File::options().write(true).open(&debug)?.set_len(LENGTH)?;
            }
            Self::Abbreviations => {
                let (info, abbreviations) =
                    (directory.join("info"), directory.join("abbreviations"));
                fs::write(&info, units())?;
                fs::write(&abbreviations, declarations())?;
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

/// Moves a section into a hole of gigabytes.
fn enlarge(path: &Path, name: &str) -> Result<()> {
    let mut bytes = fs::read(path)?;
    let header = FileHeader64::<Endianness>::parse(&*bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &*bytes)?;
    let found = sections.section_by_name(endian, name.as_bytes());
    let (index, _) = found.with_context(|| format!("no section {name}"))?;
    let at = header.e_shoff(endian) as usize + index.0 * usize::from(header.e_shentsize(endian));
    // A whole number of symbols.
    let size = (LENGTH - HOLE) / 24 * 24;
    bytes[at + 24..at + 32].copy_from_slice(&HOLE.to_le_bytes());
    bytes[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
    write_sparse(path, &bytes)
}

fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(File::options().write(true).open(path)?.set_len(LENGTH)?)
}

/// So many units, of a root entry each (DWARF 4, 7.5.1.1).
fn units() -> Vec<u8> {
    const UNITS: usize = 40_000;
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    unit.repeat(UNITS)
}

/// A list of abbreviations without children and attributes (DWARF 4, 7.5.3).
fn declarations() -> Vec<u8> {
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
