//! Modules that use each other in a circle, folders that use one above them, and files that grew too
//! long: read from the sources of each crate, without tests.
//!
//! Modules are compared with their siblings: what a module uses of a sibling's, or of anything in
//! it, is an arrow from the one to the other. A module and the file that declares it are one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use syn::visit::Visit;
use xtask::run::{members, root};

/// The crate whose modules stand in the order of their floors.
const IN_ORDER: &str = "memprof-core";

/// The most lines of a file, without its tests.
const MOST_LINES: usize = 400;

/// A module by its path in the crate; the crate itself has none.
type Name = Vec<String>;

/// One module.
#[derive(Debug, Default)]
struct Module {
    /// In the order of their declaration.
    children: Vec<String>,
    /// The paths that it imports, by the names that it gives them.
    imports: BTreeMap<String, Vec<String>>,
    /// Every path in it.
    paths: BTreeSet<Vec<String>>,
    /// Of its file, without tests; 0 where it has none of its own.
    lines: usize,
}

/// All modules of a crate.
type Modules = BTreeMap<Name, Module>;

/// Checks every crate of the workspace.
pub(crate) fn check() -> Result<()> {
    let mut wrong = String::new();
    for (name, file) in crates()? {
        let modules = read(&file).with_context(|| format!("read {}", file.display()))?;
        for circle in circles(&modules) {
            writeln!(wrong, "{name}: {circle}")?;
        }
        for (module, Module { lines, .. }) in &modules {
            if *lines > MOST_LINES {
                let module = module.join("::");
                writeln!(
                    wrong,
                    "{name}: crate::{module} has {lines} lines, not {MOST_LINES}"
                )?;
            }
        }
        if name == IN_ORDER {
            for arrow in upward(&modules) {
                writeln!(wrong, "{name}: {arrow}")?;
            }
        }
    }
    let count = wrong.lines().count();
    ensure!(
        wrong.is_empty(),
        "{count} circles, arrows upward or long files:\n{wrong}"
    );
    Ok(())
}

/// Each crate's name and its root file.
fn crates() -> Result<Vec<(String, PathBuf)>> {
    let roots = members()?.into_iter().flat_map(|member| {
        let files = ["src/lib.rs", "src/main.rs"].map(|file| root().join(&member).join(file));
        files
            .into_iter()
            .filter(|file| file.exists())
            .map(move |file| (member.clone(), file))
    });
    Ok(roots.collect())
}

fn read(file: &Path) -> Result<Modules> {
    let mut modules = Modules::new();
    let directory = file.parent().context("a file without a directory")?;
    read_file(file, directory, &Name::new(), &mut modules)?;
    Ok(modules)
}

/// `directory` is where the modules lie that the file declares.
fn read_file(file: &Path, directory: &Path, name: &Name, modules: &mut Modules) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    let items = syn::parse_file(&text)?.items;
    read_items(items, file, directory, name, modules)?;
    if let Some(module) = modules.get_mut(name) {
        module.lines = lines_without_tests(&text);
    }
    Ok(())
}

/// The tests are the last module of a file.
fn lines_without_tests(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod ").next();
    code.unwrap_or(text).lines().count()
}

fn read_items(
    items: Vec<syn::Item>,
    file: &Path,
    directory: &Path,
    name: &Name,
    modules: &mut Modules,
) -> Result<()> {
    let mut module = Module::default();
    for item in items {
        let syn::Item::Mod(declared) = item else {
            Reader(&mut module).visit_item(&item);
            continue;
        };
        if is_test(&declared.attrs) {
            continue;
        }
        let child = declared.ident.to_string();
        let inside = directory.join(&child);
        let mut child_name = name.clone();
        child_name.push(child.clone());
        if let Some((_, items)) = declared.content {
            read_items(items, file, &inside, &child_name, modules)?;
        } else {
            let beside = file.parent().context("a file without a directory")?;
            let candidates = match path_attribute(&declared.attrs) {
                Some(path) => vec![beside.join(path)],
                None => vec![inside.with_extension("rs"), inside.join("mod.rs")],
            };
            let found = candidates.into_iter().find(|file| file.exists());
            let found = found.with_context(|| format!("no file for mod {child}"))?;
            read_file(&found, &inside, &child_name, modules)
                .with_context(|| format!("read {}", found.display()))?;
        }
        module.children.push(child);
    }
    modules.insert(name.clone(), module);
    Ok(())
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let condition = attribute.parse_args::<syn::Path>();
        is_cfg && condition.is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// Of `#[path]`, or of the first one that a condition sets.
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
struct Reader<'a>(&'a mut Module);

impl Reader<'_> {
    fn import(&mut self, tree: &syn::UseTree, mut path: Vec<String>) {
        match tree {
            syn::UseTree::Path(next) => {
                path.push(next.ident.to_string());
                self.import(&next.tree, path);
            }
            syn::UseTree::Name(last) => {
                let mut name = last.ident.to_string();
                if name == "self" {
                    name = path.last().cloned().unwrap_or_default();
                } else {
                    path.push(name.clone());
                }
                self.add(name, path);
            }
            syn::UseTree::Rename(last) => {
                path.push(last.ident.to_string());
                self.add(last.rename.to_string(), path);
            }
            syn::UseTree::Glob(_) => self.add("*".to_owned(), path),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone());
                }
            }
        }
    }

    fn add(&mut self, name: String, path: Vec<String>) {
        self.0.paths.insert(path.clone());
        self.0.imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&item.tree, Vec::new());
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
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

/// The module that `path`, written in the module `at`, lies in; none outside of the crate.
fn resolve(modules: &Modules, at: &Name, path: &[String], depth: usize) -> Option<Name> {
    const DEEPEST: usize = 8;
    let mut now = at.clone();
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
                let Some(imported) = imported.filter(|_| depth < DEEPEST) else {
                    return (!is_first).then_some(now);
                };
                let mut path = imported.clone();
                path.extend_from_slice(others);
                return resolve(modules, &now, &path, depth + 1);
            }
        }
        is_first = false;
        rest = others;
    }
    Some(now)
}

/// Who uses whom among the modules that `parent` declares.
fn arrows(modules: &Modules, parent: &Name) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::<_, BTreeSet<_>>::new();
    let level = parent.len();
    let within = |name: &Name| name.len() > level && name.starts_with(parent);
    for (name, module) in modules.iter().filter(|(name, _)| within(name)) {
        let targets = module
            .paths
            .iter()
            .filter_map(|path| resolve(modules, name, path, 0))
            .filter(within)
            .map(|target| target[level].clone())
            .filter(|target| *target != name[level]);
        arrows
            .entry(name[level].clone())
            .or_default()
            .extend(targets);
    }
    arrows
}

/// Every circle, as `a → b → a`: one for each set of modules that all reach each other.
fn circles(modules: &Modules) -> Vec<String> {
    let mut circles = Vec::new();
    for parent in modules.keys() {
        let arrows = arrows(modules, parent);
        let mut known = BTreeSet::new();
        for start in arrows.keys() {
            let Some(circle) = way(&arrows, start, start).filter(|_| !known.contains(start)) else {
                continue;
            };
            let reach_each_other = |other: &&String| {
                way(&arrows, start, other).is_some() && way(&arrows, other, start).is_some()
            };
            known.extend(arrows.keys().filter(reach_each_other).cloned());
            circles.push(format!("crate::{}", parent.join("::")) + ": " + &circle.join(" → "));
        }
    }
    circles
}

/// The shortest way along the arrows, both ends with it.
fn way(arrows: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = std::collections::VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in arrows.get(way.last()?)? {
            let mut longer = way.clone();
            longer.push(next.clone());
            if next == to {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

/// The arrows from a module to one that the crate declares after it.
fn upward(modules: &Modules) -> Vec<String> {
    let order = &modules[&Name::new()].children;
    let floor = |name: &String| order.iter().position(|each| each == name);
    let mut upward = Vec::new();
    for (from, targets) in arrows(modules, &Name::new()) {
        let above = targets.iter().filter(|to| floor(to) > floor(&from));
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
        read(&place.path().join("lib.rs")).unwrap()
    }

    #[test]
    fn circles_are_found_at_every_level_and_through_reexports() {
        let check = |files: &[(&str, &str)], expected: &[&str]| {
            assert_eq!(circles(&modules(files)), expected);
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
    fn tests_and_parents_make_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; fn f() {}"),
            ("a.rs", "use crate::b::B; use crate::f; mod tests_of {}"),
            (
                "b.rs",
                "#[cfg(test)] mod tests { use crate::a; } #[cfg(test)] use crate::a;",
            ),
        ];
        assert_eq!(circles(&modules(&files)), [""; 0]);
    }

    #[test]
    fn tests_do_not_make_a_file_long() {
        let code = "mod a;\n\nfn f() {}\n";
        let tests = "\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(lines_without_tests(code), 3);
        assert_eq!(lines_without_tests(&(code.to_owned() + tests)), 3);
    }

    #[test]
    fn an_arrow_to_what_is_declared_later_goes_up() {
        let files = [
            ("lib.rs", "mod low; mod high;"),
            ("low.rs", "mod deep { use crate::high::High; }"),
            ("high.rs", ""),
        ];
        let expected = ["low uses high, which lib.rs declares after it"];
        assert_eq!(upward(&modules(&files)), expected);
    }
}
