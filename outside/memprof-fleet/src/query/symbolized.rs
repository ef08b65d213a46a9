//! Sums by stack as a named profile, which `memprof-report` shows as it shows one process's.

use std::collections::HashMap;

use memprof_report::{
    Address, AddressId, Frame, Mapping, Names, Profile, Sample, SampleType, SampleValues,
    SymbolizedProfile,
};

use crate::columns::Columns;
use crate::query::ProfileQuery;
use crate::query::weights::WeightedSums;
use crate::scan::{files, scan};
use crate::schema::Table;

/// The room that a module's functions have: an address each.
const MODULE: u64 = 1 << 32;

/// A profile of these sums.
pub(crate) fn to_symbolized(
    asked: &ProfileQuery,
    sums: &WeightedSums,
) -> anyhow::Result<SymbolizedProfile> {
    let mut named = ProfileBuilder::default();
    let mut missing = sums.by_stack.clone();
    for (_, object) in &files(&asked.store, Table::Stacks, (asked.from, asked.to))?.counted {
        let columns = ["stack_id", "frames", "modules"];
        let read = scan(&asked.store, object, &columns, None, |batch| {
            let columns = Columns(batch);
            let ids = columns.numbers("stack_id")?;
            // Most of a file's stacks may be known already.
            if ids.iter().any(|id| missing.contains_key(id)) {
                let lists = columns
                    .lists("frames")?
                    .into_iter()
                    .zip(columns.lists("modules")?);
                for (id, (frames, modules)) in ids.iter().zip(lists) {
                    if let Some(values) = missing.remove(id) {
                        named.add(&frames, &modules, values);
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = read {
            asked
                .notes
                .add(format!("{} is not counted: {error:#}", object.name));
        }
    }
    let unnamed: f64 = missing.values().map(|[bytes, _]| bytes).sum();
    if unnamed > 0.0 {
        asked.notes.add(format!(
            "the names of the stacks of {unnamed:.0} bytes are missing"
        ));
    }
    for (id, values) in missing {
        named.add(&[format!("stack {id:016x}")], &[String::new()], values);
    }
    Ok(named.finish(sums.sample_interval))
}

#[derive(Default)]
struct ProfileBuilder {
    profile: Profile,
    names: Names,
    /// By name: the index of a module, and the number of its functions.
    modules: HashMap<String, (u64, u64)>,
    functions: HashMap<(String, String), AddressId>,
}

impl ProfileBuilder {
    /// Adds a stack, root first, with its bytes and objects.
    fn add(&mut self, frames: &[String], modules: &[String], [bytes, objects]: [f64; 2]) {
        for (function, module) in frames.iter().zip(modules).rev() {
            let id = self.function(function, module);
            self.profile.stacks.push(id);
        }
        let mut values = SampleValues::default();
        values[SampleType::InuseSpace] = bytes.round() as i64;
        values[SampleType::InuseObjects] = objects.round() as i64;
        let stack = self.profile.stacks.finish();
        self.profile.samples.push(Sample::new(stack, values));
    }

    fn function(&mut self, function: &str, module: &str) -> AddressId {
        let key = (function.to_owned(), module.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let next = self.modules.len() as u64 + 1;
        let (index, count) = self.modules.entry(module.to_owned()).or_insert((next, 0));
        *count += 1;
        // A frame is a return address: the call is one before.
        let id = self
            .profile
            .stacks
            .intern_address(Address(*index * MODULE + *count));
        let frame = Frame {
            function: self.names.strings.intern(function),
            file: None,
            line: 0,
            named: !function
                .strip_prefix(module)
                .is_some_and(|rest| rest.starts_with("+0x")),
        };
        self.names.set(id, &[frame]);
        self.functions.insert(key, id);
        id
    }

    fn finish(mut self, sample_interval: Option<i64>) -> SymbolizedProfile {
        let mapping = |(module, (index, _)): (&String, &(u64, u64))| Mapping {
            start: Address(index * MODULE),
            end: Address((index + 1) * MODULE),
            executable: true,
            path: match module.starts_with('[') || module.is_empty() {
                true => module.clone(),
                false => format!("/{module}"),
            },
            ..Mapping::default()
        };
        self.profile.mappings = self.modules.iter().map(mapping).collect();
        self.profile.mappings.sort_by_key(|mapping| mapping.start);
        self.profile.interval = sample_interval.and_then(|bytes| u64::try_from(bytes).ok());
        let depths = vec![0; self.profile.stacks.len()];
        SymbolizedProfile {
            profile: self.profile,
            names: self.names,
            depths,
        }
    }
}
