//! Licences and sources of all crates in the packages, checked by the rules of `.cargo/deny.toml`. `cargo deny` checks
//! them too, but takes minutes to build.

use std::collections::HashMap;
use std::fs;

use serde_json::Value;
use spdx::{Expression, Licensee};
use xtask::run::{cargo_command, output, project_root};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that `.cargo/deny.toml` allows: for all crates, and by the name of a crate.
struct Allowed {
    all: Vec<Licensee>,
    exceptions: HashMap<String, Vec<Licensee>>,
}

impl Allowed {
    fn parse(text: &str) -> Self {
        let config: toml::Table = text.parse().unwrap();
        let licenses = &config["licenses"];
        let list = |value: &toml::Value| -> Vec<Licensee> {
            let names = value["allow"].as_array().unwrap().iter();
            names
                .map(|name| Licensee::parse(name.as_str().unwrap()).unwrap())
                .collect()
        };
        let exceptions = licenses["exceptions"].as_array().unwrap().iter();
        Self {
            all: list(licenses),
            exceptions: exceptions
                .map(|one| (one["crate"].as_str().unwrap().to_owned(), list(one)))
                .collect(),
        }
    }

    /// Reason why a crate may not be used; `None` if it may.
    fn refusal_reason(&self, package: &Value) -> Option<String> {
        let text = |field| package[field].as_str();
        let name = text("name").unwrap();
        if text("source").is_some_and(|source| source != REGISTRY) {
            return Some(format!("{name} is not from crates.io"));
        }
        let Some(license) = text("license") else {
            return Some(format!("{name} names no licence"));
        };
        let exceptions = self.exceptions.get(name);
        let license = match Expression::parse(&license.replace('/', " OR ")) {
            Ok(license) => license,
            Err(error) => return Some(format!("{name}: {error}")),
        };
        let is_allowed = license.evaluate(|required| {
            let mut licensees = self.all.iter().chain(exceptions.into_iter().flatten());
            licensees.any(|licensee| licensee.satisfies(required))
        });
        (!is_allowed).then(|| format!("{name}: {license} is not allowed"))
    }
}

#[test]
fn all_crates_have_allowed_licences_and_sources() {
    let allowed =
        Allowed::parse(&fs::read_to_string(project_root().join(".cargo/deny.toml")).unwrap());
    let metadata = output(&mut cargo_command(&[
        "metadata",
        "--all-features",
        "--filter-platform=x86_64-unknown-linux-gnu",
        "--format-version=1",
        "--locked",
    ]));
    let metadata: Value = serde_json::from_str(&metadata.unwrap()).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 300, "cargo names {}", packages.len());
    let refused: Vec<_> = packages
        .iter()
        .filter_map(|package| allowed.refusal_reason(package))
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn unlisted_licences_and_sources_are_refused() {
    let allowed = Allowed::parse(
        "[licenses]\nallow = ['MIT', 'Apache-2.0', 'Apache-2.0 WITH LLVM-exception']\n\
         exceptions = [{ crate = 'x', allow = ['ISC'] }]\n",
    );
    let check =
        |name: &str, license: Option<&str>, source: Option<&str>, expected: Option<&str>| {
            let package = serde_json::json!({ "name": name, "license": license, "source": source });
            assert_eq!(allowed.refusal_reason(&package).as_deref(), expected);
        };
    let registry = Some(REGISTRY);
    check("a", Some("MIT"), None, None);
    check("a", Some("GPL-3.0-only OR MIT"), registry, None);
    check("a", Some("GPL-3.0-only/MIT"), registry, None);
    check("a", Some("Apache-2.0 WITH LLVM-exception"), registry, None);
    check("x", Some("MIT AND ISC"), registry, None);
    let refused = Some("a: MIT AND ISC is not allowed");
    check("a", Some("MIT AND ISC"), registry, refused);
    let refused = Some("a: GPL-3.0-only is not allowed");
    check("a", Some("GPL-3.0-only"), registry, refused);
    check("a", None, registry, Some("a names no licence"));
    let refused = Some("a is not from crates.io");
    check("a", Some("MIT"), Some("git+https://example.org/a"), refused);
}
