//! Modules that use each other in a cycle, folders that use one above them, and files that grew too long: read from the
//! sources of each crate, without tests.
//!
//! Modules are compared with their siblings: a module depends on a sibling if it uses anything in it, or in one of its
//! submodules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::visit::Visit;
use xtask::run::{project_root, workspace_members};

/// The crate whose modules are declared in the order of their dependencies.
const ORDERED_CRATE: &str = "memprof-core";

/// The most lines of a file, without its tests.
const MAX_LINES: usize = 400;

/// A module by its path in the crate; the crate itself has none.
type ModuleName = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    /// Child modules, in the order of their declaration.
    children: Vec<String>,
    /// Imported paths, by the names under which it imports them.
    imports: BTreeMap<String, Vec<String>>,
    /// Every path that its code uses.
    paths: BTreeSet<Vec<String>>,
    /// Lines of its file, without tests; 0 if it has no file of its own.
    lines: usize,
}

/// All modules of a crate.
type Modules = BTreeMap<ModuleName, Module>;

/// Finds modules that depend on each other in a cycle, are too long or, in [`ORDERED_CRATE`], use a module that is
/// declared after them. Each fault is a line with the name of the crate.
pub(super) fn find_faults() -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, file) in crate_roots()? {
        let modules = read_modules(&file).with_context(|| format!("read {}", file.display()))?;
        let cycles = find_cycles(&modules);
        faults.extend(cycles.into_iter().map(|cycle| format!("{name}: {cycle}")));
        for (module, Module { lines, .. }) in &modules {
            if *lines > MAX_LINES {
                let module = module.join("::");
                faults.push(format!(
                    "{name}: crate::{module} has {lines} lines, more than {MAX_LINES}"
                ));
            }
        }
        if name == ORDERED_CRATE {
            let upward = upward_dependencies(&modules);
            faults.extend(
                upward
                    .into_iter()
                    .map(|dependency| format!("{name}: {dependency}")),
            );
        }
    }
    Ok(faults)
}

/// Returns the folder of each crate with its root file, `src/lib.rs` or `src/main.rs`. A crate with both is listed
/// twice.
fn crate_roots() -> Result<Vec<(String, PathBuf)>> {
    let roots = workspace_members()?.into_iter().flat_map(|member| {
        let files =
            ["src/lib.rs", "src/main.rs"].map(|file| project_root().join(&member).join(file));
        files
            .into_iter()
            .filter(|file| file.exists())
            .map(move |file| (member.clone(), file))
    });
    Ok(roots.collect())
}

/// Reads all modules of a crate, given its root file.
fn read_modules(file: &Path) -> Result<Modules> {
    let mut modules = Modules::new();
    let directory = file.parent().context("a file without a directory")?;
    read_module_file(file, directory, &ModuleName::new(), &mut modules)?;
    Ok(modules)
}

/// Reads the file of the module `name`. Adds this module, and its submodules, whose files lie in `directory`.
fn read_module_file(
    file: &Path,
    directory: &Path,
    name: &ModuleName,
    modules: &mut Modules,
) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    let items = syn::parse_file(&text)?.items;
    read_module_items(items, file, directory, name, modules)?;
    if let Some(module) = modules.get_mut(name) {
        module.lines = lines_without_tests(&text);
    }
    Ok(())
}

/// Counts the lines before a file's module of tests, which comes last.
fn lines_without_tests(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod ").next();
    code.unwrap_or(text).lines().count()
}

/// Adds the module `name` with these items of `file`, and its submodules. Skips modules of tests.
fn read_module_items(
    items: Vec<syn::Item>,
    file: &Path,
    directory: &Path,
    name: &ModuleName,
    modules: &mut Modules,
) -> Result<()> {
    let mut module = Module::default();
    for item in items {
        let syn::Item::Mod(declared) = item else {
            ImportVisitor(&mut module).visit_item(&item);
            continue;
        };
        if has_cfg_test(&declared.attrs) {
            continue;
        }
        let child = declared.ident.to_string();
        let inside = directory.join(&child);
        let mut child_name = name.clone();
        child_name.push(child.clone());
        if let Some((_, items)) = declared.content {
            read_module_items(items, file, &inside, &child_name, modules)?;
        } else {
            let beside = file.parent().context("a file without a directory")?;
            let candidates = match path_attribute(&declared.attrs) {
                Some(path) => vec![beside.join(path)],
                None => vec![inside.with_extension("rs"), inside.join("mod.rs")],
            };
            let found = candidates.into_iter().find(|file| file.exists());
            let found = found.with_context(|| format!("no file for mod {child}"))?;
            read_module_file(&found, &inside, &child_name, modules)
                .with_context(|| format!("read {}", found.display()))?;
        }
        module.children.push(child);
    }
    modules.insert(name.clone(), module);
    Ok(())
}

/// Returns whether an item is compiled only for tests, by `#[cfg(test)]`.
fn has_cfg_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let condition = attribute.parse_args::<syn::Path>();
        is_cfg && condition.is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// Returns the value of `#[path]`, or of the last `path` in a `cfg_attr`. `None` without such an attribute.
fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let tokens = match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => {
                return match &pair.value {
                    syn::Expr::Lit(literal) => match &literal.lit {
                        syn::Lit::Str(path) => Some(path.value()),
                        _ => None,
                    },
                    _ => None,
                };
            }
            syn::Meta::List(list) if list.path.is_ident("cfg_attr") => list.tokens.to_string(),
            _ => return None,
        };
        let (_, value) = tokens.rsplit_once("path = \"")?;
        Some(value.split('"').next()?.to_owned())
    })
}

/// Collects the paths of one module.
struct ImportVisitor<'a>(&'a mut Module);

impl ImportVisitor<'_> {
    /// Adds the names that a `use` imports; `path` is the path before `tree`.
    fn add_imports(&mut self, tree: &syn::UseTree, mut path: Vec<String>) {
        match tree {
            syn::UseTree::Path(next) => {
                path.push(next.ident.to_string());
                self.add_imports(&next.tree, path);
            }
            syn::UseTree::Name(last) => {
                let mut name = last.ident.to_string();
                if name == "self" {
                    name = path.last().cloned().unwrap_or_default();
                } else {
                    path.push(name.clone());
                }
                self.add_import(name, path);
            }
            syn::UseTree::Rename(last) => {
                path.push(last.ident.to_string());
                self.add_import(last.rename.to_string(), path);
            }
            syn::UseTree::Glob(_) => self.add_import("*".to_owned(), path),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_imports(tree, path.clone());
                }
            }
        }
    }

    /// Adds the path that is imported as `name`, also to the paths that the module uses.
    fn add_import(&mut self, name: String, path: Vec<String>) {
        self.0.paths.insert(path.clone());
        self.0.imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for ImportVisitor<'_> {
    /// Adds the imports of a `use`, unless it is compiled only for tests.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !has_cfg_test(&item.attrs) {
            self.add_imports(&item.tree, Vec::new());
        }
    }

    /// Visits all functions but those that are compiled only for tests.
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !has_cfg_test(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.0
            .paths
            .insert(segments.map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

/// Returns the module of the item that the module `from` calls `path`. `None` if the item is outside of the crate.
/// `depth` is the number of imports followed so far, which is limited because imports may form a cycle.
fn resolve_module(
    modules: &Modules,
    from: &ModuleName,
    path: &[String],
    depth: usize,
) -> Option<ModuleName> {
    const MAX_IMPORT_DEPTH: usize = 8;
    let mut now = from.clone();
    let mut rest = path;
    let mut is_first = true;
    while let Some((segment, others)) = rest.split_first() {
        let module = modules.get(&now)?;
        match segment.as_str() {
            "crate" => now.clear(),
            "self" => {}
            "super" => drop(now.pop()),
            child if module.children.iter().any(|each| each == child) => now.push(child.to_owned()),
            other => {
                let imported = module.imports.get(other);
                let Some(imported) = imported.filter(|_| depth < MAX_IMPORT_DEPTH) else {
                    // The segment is no module: an item of the module `now` or, as the first one, a name from another
                    // crate.
                    return (!is_first).then_some(now);
                };
                let mut path = imported.clone();
                path.extend_from_slice(others);
                return resolve_module(modules, &now, &path, depth + 1);
            }
        }
        is_first = false;
        rest = others;
    }
    Some(now)
}

/// Returns the child modules of `parent`, each with the siblings that it, or a module in it, uses.
fn sibling_dependencies(
    modules: &Modules,
    parent: &ModuleName,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut dependencies = BTreeMap::<_, BTreeSet<_>>::new();
    let level = parent.len();
    let within = |name: &ModuleName| name.len() > level && name.starts_with(parent);
    for (name, module) in modules.iter().filter(|(name, _)| within(name)) {
        let targets = module
            .paths
            .iter()
            .filter_map(|path| resolve_module(modules, name, path, 0))
            .filter(within)
            .map(|target| target[level].clone())
            .filter(|target| *target != name[level]);
        dependencies
            .entry(name[level].clone())
            .or_default()
            .extend(targets);
    }
    dependencies
}

/// Finds cycles of modules that use each other, as `a → b → a`: one for each set of modules that all reach each other.
fn find_cycles(modules: &Modules) -> Vec<String> {
    let mut cycles = Vec::new();
    for parent in modules.keys() {
        let dependencies = sibling_dependencies(modules, parent);
        let mut known = BTreeSet::new();
        for start in dependencies.keys() {
            let cycle = shortest_path(&dependencies, start, start);
            let Some(cycle) = cycle.filter(|_| !known.contains(start)) else {
                continue;
            };
            let reach_each_other = |other: &&String| {
                shortest_path(&dependencies, start, other).is_some()
                    && shortest_path(&dependencies, other, start).is_some()
            };
            known.extend(dependencies.keys().filter(reach_each_other).cloned());
            cycles.push(format!("crate::{}", parent.join("::")) + ": " + &cycle.join(" → "));
        }
    }
    cycles
}

/// Returns the shortest path along the dependencies, with both ends; from a module to itself, the path is a cycle.
/// `None` if no path leads from `from` to `to`.
fn shortest_path(
    dependencies: &BTreeMap<String, BTreeSet<String>>,
    from: &str,
    to: &str,
) -> Option<Vec<String>> {
    let mut paths = std::collections::VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        for next in dependencies.get(path.last()?)? {
            let mut longer = path.clone();
            longer.push(next.clone());
            if next == to {
                return Some(longer);
            }
            if seen.insert(next) {
                paths.push_back(longer);
            }
        }
    }
    None
}

/// Returns a line for each module of the crate's root that uses one which the root declares after it.
fn upward_dependencies(modules: &Modules) -> Vec<String> {
    let order = &modules[&ModuleName::new()].children;
    let position = |name: &String| order.iter().position(|each| each == name);
    let mut upward = Vec::new();
    for (from, targets) in sibling_dependencies(modules, &ModuleName::new()) {
        let above = targets.iter().filter(|to| position(to) > position(&from));
        upward.extend(above.map(|to| format!("{from} uses {to}, which lib.rs declares after it")));
    }
    upward
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let place = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        read_modules(&place.path().join("lib.rs")).unwrap()
    }

    #[test]
    fn cycles_are_found_at_every_level_and_through_reexports() {
        let check = |files: &[(&str, &str)], expected: &[&str]| {
            assert_eq!(find_cycles(&modules(files)), expected);
        };
        let lib = ("lib.rs", "mod a; mod b; pub use a::A;");
        let a = ("a.rs", "use crate::b::{B, C}; pub struct A;");
        check(&[lib, a, ("b.rs", "pub struct B;")], &[]);
        check(
            &[lib, a, ("b.rs", "use super::a;")],
            &["crate::: a → b → a"],
        );
        check(
            &[lib, a, ("b.rs", "use crate::A;")],
            &["crate::: a → b → a"],
        );
        check(
            &[lib, a, ("b.rs", "fn f() { crate::a::g() }")],
            &["crate::: a → b → a"],
        );
        let deep = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; mod c; pub(crate) use b::B;"),
            ("a/b.rs", "use super::c; mod d { use super::super::c::C; }"),
            ("a/c/mod.rs", "use crate::a::B;"),
        ];
        check(&deep, &["crate::a: b → c → b"]);
    }

    #[test]
    fn tests_and_parents_make_no_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b; fn f() {}"),
            ("a.rs", "use crate::b::B; use crate::f; mod tests_of {}"),
            (
                "b.rs",
                "#[cfg(test)] mod tests { use crate::a; } #[cfg(test)] use crate::a;",
            ),
        ];
        assert_eq!(find_cycles(&modules(&files)), [""; 0]);
    }

    #[test]
    fn tests_do_not_make_a_file_long() {
        let code = "mod a;\n\nfn f() {}\n";
        let tests = "\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(lines_without_tests(code), 3);
        assert_eq!(lines_without_tests(&(code.to_owned() + tests)), 3);
    }

    #[test]
    fn dependency_on_a_later_module_goes_up() {
        let files = [
            ("lib.rs", "mod low; mod high;"),
            ("low.rs", "mod deep { use crate::high::High; }"),
            ("high.rs", ""),
        ];
        let expected = ["low uses high, which lib.rs declares after it"];
        assert_eq!(upward_dependencies(&modules(&files)), expected);
    }
}
