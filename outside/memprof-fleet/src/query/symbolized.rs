//! Converts sums by stack to a symbolized profile, which `memprof-report` renders like that of one process.

use std::collections::HashMap;

use memprof_report::{
    Address, AddressId, Frame, Mapping, Names, Profile, Sample, SampleType, SampleValues,
    SymbolizedProfile,
};

use crate::columns::Columns;
use crate::query::ProfileQuery;
use crate::query::weights::WeightedSums;
use crate::scan::{list_table_files, scan_file};
use crate::schema::Table;

/// Length in bytes of a module's invented address range, in which each of its functions has one address.
const MODULE_SIZE: u64 = 1 << 32;

/// Builds a profile of the sums by stack, with the frames from the table STACKS. A stack whose frames are missing is
/// named by its id, and a note gives the bytes of all such stacks. Files that cannot be read are left out, with a note.
/// Fails if the files cannot be listed.
pub(crate) fn build_symbolized_profile(
    query: &ProfileQuery,
    sums: &WeightedSums,
) -> anyhow::Result<SymbolizedProfile> {
    let mut builder = ProfileBuilder::default();
    let mut missing = sums.by_stack.clone();
    for (_, object) in
        &list_table_files(&query.store, Table::Stacks, (query.from, query.to))?.counted
    {
        let columns = ["stack_id", "frames", "modules"];
        let read = scan_file(&query.store, object, &columns, None, |batch| {
            let columns = Columns(batch);
            let ids = columns.numbers("stack_id")?;
            // Lists are decoded only if the batch has a missing stack: most stacks of a file may be known
            // already.
            if ids.iter().any(|id| missing.contains_key(id)) {
                let lists = columns
                    .text_lists("frames")?
                    .into_iter()
                    .zip(columns.text_lists("modules")?);
                for (id, (frames, modules)) in ids.iter().zip(lists) {
                    if let Some(values) = missing.remove(id) {
                        builder.add_stack(&frames, &modules, values);
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = read {
            query
                .notes
                .add(format!("{} is not counted: {error:#}", object.name));
        }
    }
    let unnamed: f64 = missing.values().map(|[bytes, _]| bytes).sum();
    if unnamed > 0.0 {
        query.notes.add(format!(
            "the names of the stacks of {unnamed:.0} bytes are missing"
        ));
    }
    for (id, values) in missing {
        builder.add_stack(&[format!("stack {id:016x}")], &[String::new()], values);
    }
    Ok(builder.into_symbolized(sums.sample_interval))
}

/// Profile under construction, with invented addresses.
#[derive(Default)]
struct ProfileBuilder {
    profile: Profile,
    names: Names,
    /// Index and number of functions of each module, by name.
    modules: HashMap<String, (u64, u64)>,
    functions: HashMap<(String, String), AddressId>,
}

impl ProfileBuilder {
    /// Adds a stack with its bytes and objects, rounded to whole numbers. `frames` are the functions, root first, and
    /// `modules` the module of each.
    fn add_stack(&mut self, frames: &[String], modules: &[String], [bytes, objects]: [f64; 2]) {
        for (function, module) in frames.iter().zip(modules).rev() {
            let id = self.intern_function(function, module);
            self.profile.stacks.push_frame(id);
        }
        let mut values = SampleValues::default();
        values[SampleType::InuseSpace] = bytes.round() as i64;
        values[SampleType::InuseObjects] = objects.round() as i64;
        let stack = self.profile.stacks.finish_stack();
        self.profile.samples.push(Sample::new(stack, values));
    }

    /// Returns the invented address of a function. A new function gets the next address in the range of its module, a
    /// new module the next range.
    fn intern_function(&mut self, function: &str, module: &str) -> AddressId {
        let key = (function.to_owned(), module.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let next = self.modules.len() as u64 + 1;
        let (index, count) = self.modules.entry(module.to_owned()).or_insert((next, 0));
        *count += 1;
        // The report takes a frame for a return address, and looks up the byte before. Because counts begin at 1, that
        // byte lies in the module.
        let id = self
            .profile
            .stacks
            .intern_address(Address(*index * MODULE_SIZE + *count));
        let frame = Frame {
            function: self.names.strings.intern(function),
            linkage: None,
            file: None,
            line: 0,
            // `MODULE+0x…` is the offset of a function without a name.
            named: !function
                .strip_prefix(module)
                .is_some_and(|rest| rest.starts_with("+0x")),
        };
        self.names.set_frames(id, &[frame]);
        self.functions.insert(key, id);
        id
    }

    /// Returns the profile, with a mapping for each module. `sample_interval` is the mean bytes between samples; `None`
    /// if unknown.
    fn into_symbolized(mut self, sample_interval: Option<i64>) -> SymbolizedProfile {
        let mapping = |(module, (index, _)): (&String, &(u64, u64))| Mapping {
            start: Address(index * MODULE_SIZE),
            end: Address((index + 1) * MODULE_SIZE),
            executable: true,
            // The report recognizes the path of a file by its first `/`.
            path: match module.starts_with('[') || module.is_empty() {
                true => module.clone(),
                false => format!("/{module}"),
            },
            ..Mapping::default()
        };
        self.profile.mappings = self.modules.iter().map(mapping).collect();
        self.profile.mappings.sort_by_key(|mapping| mapping.start);
        self.profile.interval = sample_interval.and_then(|bytes| u64::try_from(bytes).ok());
        // The stored stacks begin without the allocator's frames, which a depth would skip.
        let depths = vec![0; self.profile.stacks.len()];
        SymbolizedProfile {
            profile: self.profile,
            names: self.names,
            depths,
        }
    }
}
