//! Mappings of a pprof profile, and the locations in them.

use std::collections::HashMap;

use super::{Reader, proto};
use crate::error::{Error, Result};
use crate::limits::ProfileItem;
use crate::names::replace_unprintable;
use crate::profile::{Address, Mapping, Profile};
use crate::stacks::AddressId;

/// Index of a mapping in a profile, by its id in the file.
pub(super) type MappingIndexes = HashMap<u64, u32>;

impl Reader<'_> {
    /// Converts the mappings, ascending by their start; they may overlap. Returns them, and their indexes by their ids.
    /// Fails if two have one id, a string is missing, or the memory budget is exceeded.
    pub(super) fn convert_mappings(
        &mut self,
        mut messages: Vec<proto::Mapping>,
    ) -> Result<(Vec<Mapping>, MappingIndexes)> {
        let mut mappings = Vec::new();
        let mut indexes = MappingIndexes::new();
        messages.sort_by_key(|mapping| mapping.memory_start);
        for mapping in messages {
            let build_id = self.string_at(mapping.build_id)?;
            let path = self.string_at(mapping.filename)?;
            self.charge_memory(ProfileItem::Text(path.len() + build_id.len()))?;
            // No location can name the id 0, which stands for no mapping.
            let index = mappings.len() as u32;
            if mapping.id != 0 && indexes.insert(mapping.id, index).is_some() {
                let id = mapping.id;
                return Err(Error::malformed_pprof(format!(
                    "there are two mappings {id}"
                )));
            }
            mappings.push(Mapping {
                start: Address(mapping.memory_start),
                end: Address(mapping.memory_limit),
                offset: mapping.file_offset,
                executable: true,
                path: replace_unprintable(&path).into_owned(),
                build_id: (!build_id.is_empty())
                    .then(|| replace_unprintable(&build_id).into_owned()),
            });
        }
        Ok((mappings, indexes))
    }
}

/// Assigns each address of the profile to the mapping that its location names. `named` has, by address, the id of this
/// mapping, 0 for none; `indexes` has the mappings by their ids.
///
/// If profiles of several processes were merged, an address may be other code in another mapping. So a location that
/// names no mapping is in none, and so is one that names an unknown mapping, with a warning. Only if no location names
/// a mapping are mappings found by address.
pub(super) fn assign_mappings(profile: &mut Profile, named: &[u64], indexes: &MappingIndexes) {
    if named.iter().all(|id| *id == 0) {
        let by_address = find_mappings_by_address(profile);
        if by_address.iter().any(Option::is_some) {
            profile
                .warnings
                .push("its locations name no mapping: they were assigned by address".into());
        }
        profile.address_mappings = Some(by_address);
        return;
    }
    let found: Vec<Option<u32>> = named.iter().map(|id| indexes.get(id).copied()).collect();
    let unknown = named
        .iter()
        .zip(&found)
        .filter(|(id, found)| **id != 0 && found.is_none());
    let unknown = unknown.count();
    if unknown > 0 {
        profile.warnings.push(format!(
            "{unknown} locations name a mapping that the profile lacks: they count as in none"
        ));
    }
    profile.address_mappings = Some(found);
}

/// Returns, for each address, the index of the mapping that contains it; `None` for an address in no mapping. All are
/// `None` if mappings overlap, because then an address may be in several.
fn find_mappings_by_address(profile: &Profile) -> Vec<Option<u32>> {
    let mut pairs = profile.mappings.windows(2);
    let is_disjoint = pairs.all(|pair| pair[0].end <= pair[1].start);
    let ids = (0..profile.stacks.addresses().len() as u32).map(AddressId);
    let find = |id| {
        let found = profile.mapping_of_address(profile.stacks.call_address(id))?;
        is_disjoint.then_some(found as u32)
    };
    ids.map(find).collect()
}
