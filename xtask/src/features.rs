//! `cargo xtask features`: every feature of every crate alone, and none, under clippy. A build of the whole workspace
//! turns them all on, and hides what a plugin that takes only one of them would find.

use std::fs;

use anyhow::{Context, Result};

use xtask::run::{cargo, members, root, run};

pub(crate) fn check() -> Result<()> {
    for member in members()? {
        let file = root().join(&member).join("Cargo.toml");
        let manifest = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let features = features(&manifest);
        if features.is_empty() {
            continue;
        }
        let package = name(&manifest).context("a manifest without a name")?;
        for feature in [""].into_iter().chain(features) {
            println!("{package} {feature}");
            let mut clippy = cargo(&["clippy", "--quiet", "--no-deps", "--no-default-features"]);
            clippy.args(["--package", package, "--features", feature]);
            run(clippy.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}

/// Those that a manifest declares, without the default.
fn features(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().skip_while(|line| *line != "[features]");
    let lines = lines.skip(1).take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| Some(line.split_once(" = ")?.0));
    names
        .filter(|name| !name.starts_with('#') && *name != "default")
        .collect()
}

fn name(manifest: &str) -> Option<&str> {
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
        assert_eq!(name(manifest), Some("memprof-host"));
        assert_eq!(features(manifest), ["a", "b-c"]);
        assert!(features("[package]\nname = \"x\"\n").is_empty());
    }
}
