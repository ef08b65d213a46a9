//! Qualifies names of Rust functions of which debug information has only the last part. With
//! `-Cdebuginfo=line-tables-only`, as in the standard library, an inlined function has neither a linkage name nor
//! an enclosing namespace; but its lines name the file, and files are modules.

/// Crate for which a unit of debug information was compiled.
#[derive(Clone, Copy, Debug)]
pub(super) struct RustCrate<'s> {
    /// Path of its sources up to `src/`.
    root: &'s str,
    name: &'s str,
}

impl<'s> RustCrate<'s> {
    /// Parses a unit's name such as `shop/src/main.rs/@/shop.4f1d-cgu.0`. `None` if it has another form.
    pub(super) fn from_unit_name(name: &'s str) -> Option<Self> {
        let (file, codegen_unit) = name.split_once("/@/")?;
        let root = file.find("src/").map(|at| &file[..at])?;
        // An incremental build has only a hash here.
        let (name, _) = codegen_unit.split_once('.')?;
        Some(Self { root, name })
    }
}

/// Returns whether a source file is written in Rust, by the end of its name.
pub(super) fn is_rust_source(file: &str) -> bool {
    file.ends_with(".rs")
}

/// Returns the qualified name of a function: `alloc::alloc::alloc_zeroed` for `alloc_zeroed` in
/// `/rustc/…/library/alloc/src/alloc.rs`. A `unit` to which the file belongs gives the name of the crate, else its
/// directory does. `None` if the path shows no crate.
pub(super) fn qualified_name(
    function: &str,
    file: &str,
    unit: Option<RustCrate<'_>>,
) -> Option<String> {
    let (source_root, module) = file.rsplit_once("/src/")?;
    let directory = source_root.rsplit('/').next()?;
    let unit = unit.filter(|unit| {
        let root = unit.root.trim_end_matches('/');
        !root.is_empty() && source_root.ends_with(root)
            || (root.is_empty() && !is_dependency_directory(source_root))
    });
    let name = match unit {
        Some(unit) => unit.name.to_owned(),
        None => without_version(directory).replace('-', "_"),
    };
    let module = module.strip_suffix(".rs")?;
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let parts = module
        .split('/')
        .filter(|part| !matches!(*part, "lib" | "main"));
    let mut path = name;
    for part in parts {
        path.push_str("::");
        path.push_str(part);
    }
    Some(format!("{path}::{function}"))
}

/// Returns whether a path lies in a directory in which cargo or rustc stores the sources of other crates.
fn is_dependency_directory(path: &str) -> bool {
    [
        "/registry/src/",
        "/git/checkouts/",
        "/rustc/",
        "/library/",
        "/vendor/",
    ]
    .iter()
    .any(|part| path.contains(part))
}

/// Removes a version: `hashbrown` of `hashbrown-0.15.2`.
fn without_version(directory: &str) -> &str {
    let version = |at: &usize| directory[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let dashes = directory.match_indices('-').map(|(at, _)| at);
    let mut versions = dashes.filter(version);
    versions.next().map_or(directory, |at| &directory[..at])
}

#[cfg(test)]
mod tests {
    use super::{RustCrate, qualified_name};

    #[test]
    fn inlined_function_is_qualified_by_its_file() {
        let check = |function: &str, file: &str, unit: &str, expected: Option<&str>| {
            let found = qualified_name(function, file, RustCrate::from_unit_name(unit));
            assert_eq!(found.as_deref(), expected);
        };
        let shop = "hosts/shop/src/main.rs/@/shop_host.4f1d-cgu.0";
        let std = "/rustc/59807616e1fa/library/";
        check(
            "alloc_zeroed",
            &format!("{std}alloc/src/alloc.rs"),
            shop,
            Some("alloc::alloc::alloc_zeroed"),
        );
        check(
            "push<u8>",
            &format!("{std}alloc/src/vec/mod.rs"),
            shop,
            Some("alloc::vec::push<u8>"),
        );
        check(
            "reserve",
            "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/lock-api-0.4.1/src/lib.rs",
            "src/main.rs/@/shop.1-cgu.0",
            Some("lock_api::reserve"),
        );
        check(
            "{closure#0}",
            "/home/a/hosts/shop/src/work.rs",
            shop,
            Some("shop_host::work::{closure#0}"),
        );
        check(
            "{closure#0}",
            "/home/a/other-crate/src/work.rs",
            shop,
            Some("other_crate::work::{closure#0}"),
        );
        check(
            "add",
            "/home/a/shop/src/main.rs",
            "src/main.rs/@/shop_host.4f1d-cgu.0",
            Some("shop_host::add"),
        );
        check(
            "add",
            "/home/a/shop/src/main.rs",
            "src/main.rs/@/08kqzqakv0z7movwjc0757z2m",
            Some("shop::add"),
        );
        check("main", "build.rs", shop, None);
    }
}
