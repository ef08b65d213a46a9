//! Debug information that several files share: `dwz` moves it to a supplementary file, as in Debian's and Fedora's
//! debug packages (DWARF 5, 7.3.6; before it `.gnu_debugaltlink`).

use std::io;
use std::path::PathBuf;

use addr2line::gimli::{DwarfSections, EndianSlice};
use object::ReadRef;

use super::companions::Companions;
use super::debug_budget::DebugBudget;
use super::limited_file::LimitedFile;
use super::regular_file::READ_LIMIT;
use super::supplementary_link::supplementary_link;
use super::{sections, units};

/// Supplementary file of a debug file.
#[derive(Default)]
pub(super) struct Supplementary {
    /// `None` if there is none, or it was not found.
    pub(super) sections: Option<DwarfSections<Vec<u8>>>,
    /// Path of a file that was not found.
    missing: Option<PathBuf>,
}

impl Supplementary {
    /// Loads the supplementary file to which `file` refers. A file that is not found is no error, but is named in the
    /// note of [`nameless_note`](Self::nameless_note). Fails if the supplementary file is damaged, or exceeds a limit.
    pub(super) fn load<'d, R: ReadRef<'d>>(
        file: &object::File<'d, R>,
        companions: &Companions,
    ) -> io::Result<Self> {
        let Some((path, id)) = supplementary_link(file) else {
            return Ok(Self::default());
        };
        let Some(found) = companions.find_supplementary(&path, &id) else {
            return Ok(Self {
                sections: None,
                missing: Some(path),
            });
        };
        let cache = LimitedFile::new(&found, READ_LIMIT);
        let found = object::File::parse(&cache).map_err(io::Error::other)?;
        let endian = sections::file_endian(&found);
        let sections = DwarfSections::load(|id| -> io::Result<Vec<u8>> {
            Ok(sections::load_section(&found, id)?.into_owned())
        })?;
        let dwarf = sections.borrow(|section| EndianSlice::new(section, endian));
        units::charge_abbreviations(&dwarf, &mut DebugBudget::new())?;
        Ok(Self {
            sections: Some(sections),
            missing: None,
        })
    }

    /// Returns a note on inlined functions without a name, with the reason; `nameless` is their number. `None` if it is
    /// 0.
    pub(super) fn nameless_note(&self, nameless: usize) -> Option<String> {
        let cause = match &self.missing {
            Some(path) => format!(
                "their names are in {}, which is not here (Debian and Fedora have it in the debug package)",
                path.display()
            ),
            None => "its debug information has no name of them".to_owned(),
        };
        (nameless > 0).then(|| format!("{nameless} inlined functions are left out: {cause}"))
    }
}
