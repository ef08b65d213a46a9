//! `cargo xtask features`: every feature of every crate alone, and none, under clippy. A build of the whole workspace
//! turns nearly all of them on, and hides what a plugin that takes only one of them would find.

use std::fs;

use anyhow::{Context, Result};

use xtask::run::{cargo_command, project_root, run, workspace_members};

/// Runs clippy on each crate with each of its features alone, and without any. Fails at a warning.
pub(crate) fn check_features() -> Result<()> {
    for member in workspace_members()? {
        let file = project_root().join(&member).join("Cargo.toml");
        let manifest = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for feature in features_to_check(&manifest) {
            let package = package_name(&manifest).context("a manifest without a name")?;
            println!("{package} {feature}");
            let mut clippy =
                cargo_command(&["clippy", "--quiet", "--no-deps", "--no-default-features"]);
            clippy.args(["--package", package, "--features", feature]);
            run(clippy.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}

/// Returns "" for a build without any feature, and the features of a manifest to check alone. Leaves out `default`, and
/// the feature of a crate that has only one, which clippy checks in the whole workspace. A crate without default
/// features is built with none only here: clippy turns all on, and the workspace those that another crate uses. Empty
/// if the crate has no features.
fn features_to_check(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().skip_while(|line| *line != "[features]");
    let lines = lines.skip(1).take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| !line.starts_with('#'));
    let lines: Vec<_> = lines.filter_map(|line| line.split_once(" = ")).collect();
    let names = lines.iter().map(|(name, _)| *name);
    let names: Vec<_> = names.filter(|name| *name != "default").collect();
    let names = if names.len() == 1 { &[] } else { &names[..] };
    let none = (!lines.is_empty()).then_some("");
    none.into_iter().chain(names.iter().copied()).collect()
}

/// Returns the name of the package in the text of a Cargo.toml. `None` if it has none.
fn package_name(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines();
    lines.find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_a_manifest() {
        let manifest = "[package]\nname = \"memprof-host\"\n\n[features]\ndefault = [\"a\"]\n## What `a = 1` does.\n\
                        a = [\"dep:x\"]\nb-c = [\"a\"]\n\n[dependencies]\nx = \"1\"\n";
        assert_eq!(package_name(manifest), Some("memprof-host"));
        assert_eq!(features_to_check(manifest), ["", "a", "b-c"]);
        let check = |lines: &str, expected: &[&str]| {
            assert_eq!(features_to_check(&format!("[features]\n{lines}")), expected);
        };
        check("default = [\"a\"]\na = []\n", &[""]);
        check("a = []\n", &[""]);
        check("default = []\na = []\n", &[""]);
        check("a = []\nb = []\n", &["", "a", "b"]);
        check("default = []\na = []\nb = []\n", &["", "a", "b"]);
        assert!(features_to_check("[package]\nname = \"x\"\n").is_empty());
    }
}
