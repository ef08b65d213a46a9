//! Whole names of Rust functions that debug information calls by their last part only. With
//! `-Cdebuginfo=line-tables-only`, which the standard library has too, an inlined function has neither a
//! linkage name nor a namespace around it, but its lines tell the file, and files are modules.

/// The crate that a unit of debug information was compiled for, and where its sources lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct RustCrate<'s> {
    /// Up to `src/`.
    root: &'s str,
    name: &'s str,
}

impl<'s> RustCrate<'s> {
    /// Of a unit's name, as in `shop/src/main.rs/@/shop.4f1d-cgu.0`.
    pub(super) fn from_unit_name(name: &'s str) -> Option<Self> {
        let (file, codegen_unit) = name.split_once("/@/")?;
        let root = file.find("src/").map(|at| &file[..at])?;
        // An incremental build has nothing but a hash there.
        let (name, _) = codegen_unit.split_once('.')?;
        Some(Self { root, name })
    }
}

/// Whether a source file is Rust's.
pub(super) fn is_rust(file: &str) -> bool {
    file.ends_with(".rs")
}

/// `alloc::alloc::alloc_zeroed` of `alloc_zeroed` in `/rustc/…/library/alloc/src/alloc.rs`; none where the
/// file tells no crate.
pub(super) fn qualified(function: &str, file: &str, unit: Option<RustCrate<'_>>) -> Option<String> {
    let (place, module) = file.rsplit_once("/src/")?;
    let directory = place.rsplit('/').next()?;
    let of_unit = unit.filter(|unit| {
        let root = unit.root.trim_end_matches('/');
        !root.is_empty() && place.ends_with(root) || (root.is_empty() && !is_foreign(place))
    });
    let name = match of_unit {
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

/// Whether sources lie where cargo or rustc put those of other crates.
fn is_foreign(place: &str) -> bool {
    [
        "/registry/src/",
        "/git/checkouts/",
        "/rustc/",
        "/library/",
        "/vendor/",
    ]
    .iter()
    .any(|part| place.contains(part))
}

/// `hashbrown` of `hashbrown-0.15.2`.
fn without_version(directory: &str) -> &str {
    let version = |at: &usize| directory[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let dashes = directory.match_indices('-').map(|(at, _)| at);
    let mut versions = dashes.filter(version);
    versions.next().map_or(directory, |at| &directory[..at])
}

#[cfg(test)]
mod tests {
    use super::{RustCrate, qualified};

    #[test]
    fn files_tell_the_modules_of_inlined_functions() {
        let check = |function: &str, file: &str, unit: &str, expected: Option<&str>| {
            let found = qualified(function, file, RustCrate::from_unit_name(unit));
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
