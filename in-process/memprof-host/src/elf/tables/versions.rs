//! Checks the symbol versions that a library needs (gABI, "Symbol Versioning").

use object::elf::{DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM, Vernaux, Verneed};
use object::endian::{LittleEndian, U16};

use super::{Dynamic, LE, Library, Result, Strings, damaged_table_error};

const TABLE: &str = "table of versions";
/// Mask of the index in a symbol's version, without the hidden flag (gABI, "Symbol Version Table").
const VERSION_INDEX_MASK: u16 = 0x7fff;

impl Library<'_> {
    /// Checks the versions that the library needs of others: each must have the hash of its name. Also checks that
    /// symbols use no other versions, unless the library defines some itself. `symbols` is the number of dynamic
    /// symbols.
    pub(super) fn check_versions(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: usize,
    ) -> Result<()> {
        let max_index = self.visit_versioned_files(dynamic, strings, |_| ())?;
        let Some(address) = dynamic.value(DT_VERSYM) else {
            return Ok(());
        };
        let versions: &[U16<LittleEndian>] = self.read_array(address, symbols, TABLE)?;
        // Versions that the library defines have further indices, which are not checked.
        let has_own = dynamic.value(object::elf::DT_VERDEF).is_some();
        let is_known =
            |version: &U16<LittleEndian>| version.get(LE) & VERSION_INDEX_MASK <= max_index;
        if has_own || versions.iter().all(is_known) {
            Ok(())
        } else {
            damaged_table_error(TABLE)
        }
    }

    /// Calls `visit` with the name of each library of which this one needs versions. The loader ends the process if it
    /// has loaded no library of that name. Returns the highest index of a version. Fails unless each version has the
    /// hash of its name.
    pub(super) fn visit_versioned_files(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<u16> {
        // The indices 0 and 1 are those of local and global symbols without a version.
        let mut max_index = 1;
        let mut next = dynamic.value(DT_VERNEED);
        let count = dynamic.value(DT_VERNEEDNUM).unwrap_or(0);
        for index in 0..count {
            let Some(address) = next else {
                return damaged_table_error(TABLE);
            };
            let entry: &Verneed<LittleEndian> = &self.read_array(address, 1, TABLE)?[0];
            let file = strings.read_name(entry.vn_file.get(LE).into(), TABLE)?;
            let versions = entry.vn_cnt.get(LE);
            if entry.vn_version.get(LE) != 1 || versions == 0 {
                return damaged_table_error(TABLE);
            }
            visit(file);
            let mut version = address.saturating_add(entry.vn_aux.get(LE).into());
            for index in 0..versions {
                let aux: &Vernaux<LittleEndian> = &self.read_array(version, 1, TABLE)?[0];
                let name = strings.read_name(aux.vna_name.get(LE).into(), TABLE)?;
                let step = aux.vna_next.get(LE);
                // Only the last version has the distance 0.
                if object::elf::hash(name) != aux.vna_hash.get(LE)
                    || (step == 0) != (index + 1 == versions)
                {
                    return damaged_table_error(TABLE);
                }
                max_index = max_index.max(aux.vna_other.get(LE).0 & VERSION_INDEX_MASK);
                version = version.saturating_add(step.into());
            }
            let step = entry.vn_next.get(LE);
            // Only the last library has the distance 0.
            if (step == 0) != (index + 1 == count) {
                return damaged_table_error(TABLE);
            }
            next = Some(address.saturating_add(step.into()));
        }
        Ok(max_index)
    }
}
