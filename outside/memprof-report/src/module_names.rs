//! Names of modules, for places that have no symbol: the end of a path, as long as distinguishes the module from others
//! of its file name in a profile and in its base.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::names::Names;
use crate::profile::{Address, Mapping, Profile};
use crate::program_link::ProgramLink;
use crate::stacks::AddressId;

/// Hex digits of a build id in a name that distinguishes versions of a file.
const BUILD_ID_DIGITS: usize = 8;

/// Names of the modules that have places without a symbol.
#[derive(Debug, Default)]
pub(crate) struct ModuleNames {
    /// By path: the shortest text that no other path has.
    paths: HashMap<String, String>,
    /// By path: build ids, of a path that several versions have.
    build_ids: HashMap<String, BTreeSet<String>>,
    /// Whether there are places in several regions of memory without a file.
    has_several_regions: bool,
    /// Names of memory, such as `[anon:jit]`, that several regions with places in one profile have.
    shared_names: HashSet<String>,
}

impl ModuleNames {
    /// Finds the modules, mapped files and other named memory, in which an address of these profiles has no function
    /// name, and the shortest unambiguous name of each.
    pub(crate) fn new<'a>(profiles: impl IntoIterator<Item = (&'a Profile, &'a Names)>) -> Self {
        let mut build_ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut regions: BTreeSet<Address> = BTreeSet::new();
        let mut shared_names: HashSet<String> = HashSet::new();
        for (profile, names) in profiles {
            // By name: start of the first region.
            let mut named_regions: HashMap<&str, Address> = HashMap::new();
            let mut is_unnamed = vec![false; profile.mappings.len()];
            for id in (0..profile.stacks.addresses().len() as u32).map(AddressId) {
                if let (true, Some(mapping)) =
                    (names.frames(id).is_empty(), profile.mapping_of_frame(id))
                {
                    is_unnamed[mapping] = true;
                }
            }
            let used = profile.mappings.iter().zip(is_unnamed);
            for (mapping, _) in used.filter(|(_, is_unnamed)| *is_unnamed) {
                match mapping.has_name() {
                    true => {
                        if mapping.may_share_name() {
                            let first = named_regions.entry(&mapping.path).or_insert(mapping.start);
                            if *first != mapping.start {
                                shared_names.insert(mapping.path.clone());
                            }
                        }
                        let known = build_ids.entry(&mapping.path).or_default();
                        known.extend(mapping.build_id.as_deref());
                    }
                    false => {
                        regions.insert(mapping.start);
                    }
                }
            }
        }
        let build_ids_of_versions = build_ids.iter().filter(|(_, ids)| ids.len() > 1);
        Self {
            paths: shortest_names(build_ids.keys().copied()),
            build_ids: build_ids_of_versions
                .map(|(path, ids)| {
                    let ids = ids.iter().map(|id| (*id).to_owned());
                    ((*path).to_owned(), ids.collect())
                })
                .collect(),
            has_several_regions: regions.len() > 1,
            shared_names,
        }
    }

    /// Replaces the name of the program's file by the name of the `link` by which the program was started. Does nothing
    /// if the file is not among the modules: all its addresses have function names.
    pub(crate) fn rename_by_link(&mut self, link: &ProgramLink) {
        if let Some(name) = self.paths.get_mut(&link.path) {
            name.clone_from(&link.name);
        }
    }

    /// Returns the name of a place without a symbol: its module and the offset of `call` in the module. Unloaded code
    /// has its module only. A call outside of its mapping has its address instead of the offset. Memory without a name
    /// is `[jit]` if it is executable, else `[anonymous]`, with the address of the call if the profiles have several
    /// such regions. The same holds for memory whose name, such as `/memfd:jit`, several regions have.
    ///
    /// Without a mapping, the name is the address of the call, or `[unknown]` if that is 0.
    pub(crate) fn place_name(&self, mapping: Option<&Mapping>, call: Address) -> String {
        match mapping {
            None if call.0 == 0 => "[unknown]".to_owned(),
            None => call.to_string(),
            // The file of unloaded code is not mapped any more, so an offset would mean nothing.
            Some(mapping) if mapping.is_unloaded() => match mapping.is_file() {
                true => format!("[unloaded {}]", self.module_name(mapping)),
                false => mapping.path.clone(),
            },
            Some(mapping) if mapping.has_name() => {
                let module = self.module_name(mapping);
                match mapping.contains(call) {
                    true if self.shared_names.contains(&mapping.path) => format!("{module} {call}"),
                    true => format!("{module}+{:#x}", mapping.file_offset(call).0),
                    false => format!("{call} in {module}"),
                }
            }
            // An offset from a region's start has a meaning only inside the region, and only if it is not all of
            // memory.
            Some(mapping) if !mapping.contains(call) || mapping.has_linked_addresses() => {
                call.to_string()
            }
            Some(mapping) => {
                let kind = match mapping.executable {
                    true => "[jit]",
                    false => "[anonymous]",
                };
                match self.has_several_regions {
                    true => format!("{kind} {call}"),
                    false => format!("{kind}+{:#x}", call.0 - mapping.start.0),
                }
            }
        }
    }

    /// Returns the shortest name of a mapped file, with its build id if files of several build ids had that path. The
    /// build id is cut to [`BUILD_ID_DIGITS`] digits if they distinguish it.
    fn module_name(&self, mapping: &Mapping) -> String {
        let name = self.paths.get(&mapping.path).map(String::as_str);
        let name = name.unwrap_or_else(|| mapping.file_name());
        let Some((versions, id)) = self
            .build_ids
            .get(&mapping.path)
            .zip(mapping.build_id.as_ref())
        else {
            return name.to_owned();
        };
        let short = id.get(..BUILD_ID_DIGITS).unwrap_or(id);
        let is_unique = versions.iter().filter(|id| id.starts_with(short)).count() == 1;
        format!("{name} ({})", if is_unique { short } else { id })
    }
}

impl Mapping {
    /// Returns whether the mapping has a name: a file's path, or one such as `[vdso]`, but not perf's `//anon`.
    fn has_name(&self) -> bool {
        !self.path.is_empty() && !self.path.starts_with("//")
    }

    /// Returns whether memory with other contents may have the same name, as `[anon:jit]` and `/memfd:jit (deleted)`;
    /// false for a file and for the kernel's code, `[vdso]`.
    fn may_share_name(&self) -> bool {
        let is_kernel_code = matches!(self.path.as_str(), "[vdso]" | "[vsyscall]");
        let may_be_other = !self.is_file() || self.is_memory_by_name();
        // A build id is that of one program or library, as of one that was executed from a memfd.
        !is_kernel_code && self.build_id.is_none() && may_be_other
    }
}

/// Returns the shortest name of each path, by path: as many of its last components as no other path ends in.
fn shortest_names<'a>(paths: impl Iterator<Item = &'a str>) -> HashMap<String, String> {
    let file_of = |path: &'a str| last_components(path.trim_end_matches(" (deleted)"), 1);
    let mut by_file: HashMap<&str, Vec<&str>> = HashMap::new();
    for path in paths {
        by_file.entry(file_of(path)).or_default().push(path);
    }
    let mut names = HashMap::new();
    for (file, paths) in by_file {
        if let [path] = paths.as_slice() {
            names.insert((*path).to_owned(), file.to_owned());
            continue;
        }
        let mut reversed: Vec<(Vec<&str>, &str)> = paths
            .iter()
            .map(|path| (path.rsplit(separator_of(path)).collect(), *path))
            .collect();
        // In this order, the paths with most last components in common are neighbours.
        reversed.sort_unstable();
        let common = |a: &[&str], b: &[&str]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        for (index, (components, path)) in reversed.iter().enumerate() {
            let neighbours = [index.checked_sub(1), Some(index + 1)];
            let neighbours = neighbours.into_iter().flatten();
            let neighbours = neighbours.filter_map(|index| reversed.get(index));
            let shared = neighbours.map(|(other, _)| common(components, other)).max();
            let name = last_components(path, shared.unwrap_or(0) + 1);
            names.insert((*path).to_owned(), name.to_owned());
        }
    }
    names
}

/// Separator of a path's components: that of Windows if the path has no other.
fn separator_of(path: &str) -> char {
    match path.contains('/') {
        true => '/',
        false => '\\',
    }
}

/// Returns the last `count` components of a path, at least 1; the whole path if it has no more.
fn last_components(path: &str, count: usize) -> &str {
    let mut separators = path.rmatch_indices(separator_of(path));
    let before = separators.nth(count - 1);
    before.map_or(path, |(index, _)| &path[index + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_as_long_as_needed() {
        let check = |paths: &[&str], expected: &[&str]| {
            let names = shortest_names(paths.iter().copied());
            let found: Vec<&str> = paths.iter().map(|path| names[*path].as_str()).collect();
            assert_eq!(found, expected);
        };
        check(&["/usr/bin/app", "/lib/libc.so.6"], &["app", "libc.so.6"]);
        check(&["/srv/app (deleted)"], &["app"]);
        check(
            &["/srv/app (deleted)", "/srv/app"],
            &["app (deleted)", "app"],
        );
        check(
            &[
                "/a/x/Release/b.node",
                "/a/y/Release/b.node",
                "/b.node",
                "/z/b.node",
            ],
            &[
                "x/Release/b.node",
                "y/Release/b.node",
                "/b.node",
                "z/b.node",
            ],
        );
        check(&["app", "/app", "bin/app"], &["app", "/app", "bin/app"]);
        check(&["[vdso]", "[heap]"], &["[vdso]", "[heap]"]);
        check(&[r"C:\srv\app.exe", "/app"], &["app.exe", "app"]);
        check(&[r"C:\a\x.dll", r"D:\b\x.dll"], &[r"a\x.dll", r"b\x.dll"]);
    }

    fn mapping(start: u64, path: &str, build_id: Option<&str>) -> Mapping {
        Mapping {
            start: Address(start),
            end: Address(start + 0x1000),
            executable: true,
            path: path.to_owned(),
            build_id: build_id.map(str::to_owned),
            ..Mapping::default()
        }
    }

    /// Names of the call at 0x10 in each mapping, each of which has one.
    fn places(mappings: &[Mapping]) -> Vec<String> {
        let mut profile = Profile {
            mappings: mappings.to_vec(),
            ..Profile::default()
        };
        for mapping in mappings {
            profile.stacks.add_address(Address(mapping.start.0 + 0x11));
        }
        profile.address_mappings = Some((0..mappings.len() as u32).map(Some).collect());
        let names = ModuleNames::new([(&profile, &Names::default())]);
        let mappings = mappings.iter();
        mappings
            .map(|mapping| names.place_name(Some(mapping), Address(mapping.start.0 + 0x10)))
            .collect()
    }

    #[test]
    fn places_of_different_modules_differ() {
        let check = |mappings: &[Mapping], expected: &[&str]| {
            assert_eq!(places(mappings), expected);
        };
        check(&[mapping(0x1000, "", None)], &["[jit]+0x10"]);
        check(
            &[mapping(0x1000, "", None), mapping(0x9000, "//anon", None)],
            &["[jit] 0x1010", "[jit] 0x9010"],
        );
        for name in [
            "[anon:jit]",
            "/memfd:jit (deleted)",
            "/dev/zero (deleted)",
            "/SYSV00000000 (deleted)",
        ] {
            let [first, second] = [mapping(0x1000, name, None), mapping(0x9000, name, None)];
            let found = places(&[first.clone(), second]);
            assert!(
                found[0].ends_with(" 0x1010") && found[1].ends_with(" 0x9010"),
                "{found:?}"
            );
            let alone = places(&[first]);
            assert!(alone[0].ends_with("+0x10"), "{alone:?}");
        }
        // Two segments of a file are one module.
        check(
            &[
                mapping(0x1000, "/app", Some("aa")),
                mapping(0x9000, "/app", Some("aa")),
            ],
            &["app+0x10", "app+0x10"],
        );
        check(
            &[
                mapping(0x1000, "/app", Some("0011223344")),
                mapping(0x1000, "/app", Some("00112233ff")),
                mapping(0x1000, "/app", Some("99887766aa")),
                mapping(0x1000, "/app", None),
            ],
            &[
                "app (0011223344)+0x10",
                "app (00112233ff)+0x10",
                "app (99887766)+0x10",
                "app+0x10",
            ],
        );
        let all = Mapping {
            end: Address(u64::MAX),
            ..mapping(0, "", None)
        };
        check(&[all], &["0x10"]);
    }

    #[test]
    fn place_outside_its_mapping_has_no_offset() {
        let names = ModuleNames::default();
        let app = mapping(0x1000, "/srv/app", None);
        assert_eq!(names.place_name(Some(&app), Address(0x10)), "0x10 in app");
        assert_eq!(names.place_name(None, Address(0x10)), "0x10");
        assert_eq!(names.place_name(None, Address(0)), "[unknown]");
    }
}
