//! RPM packages.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::contents::{DependencyKind, Package};
use crate::install_tree::files_below;
use crate::systemd_unit::{RELOAD_SCRIPT, removal_script, unit_name};
use xtask::run::run;

/// Macros that make the build reproducible and leave the files unchanged.
const MACROS: &str = "\
%global debug_package %{nil}
%global _build_id_links none
%global __os_install_post %{nil}
%global _buildhost localhost
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _binary_payload w9.gzdio
";

/// Builds the package from its installation tree, and writes it to the directory `to`. `epoch` is the time of all
/// files, in seconds since 1970.
pub(crate) fn build_rpm(package: &Package, tree: &Path, to: &Path, epoch: u64) -> Result<()> {
    let work = tempfile::tempdir()?;
    let spec = work.path().join("package.spec");
    fs::write(&spec, spec_text(package, tree)?)?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    run(Command::new("rpmbuild")
        .args(["-bb", "--quiet", "--target=x86_64"])
        .args(define("_topdir", &work.path().display().to_string()))
        .args(define("_rpmdir", &to.display().to_string()))
        .args(define(
            "_rpmfilename",
            "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        ))
        .arg(&spec)
        .env("SOURCE_DATE_EPOCH", epoch.to_string()))
}

/// Returns the text of the spec file for a package with the files in `tree`.
fn spec_text(package: &Package, tree: &Path) -> Result<String> {
    let installed = files_below(tree)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut spec = format!(
        "{MACROS}Name: {}\nVersion: {version}\nRelease: 1\nSummary: {}\nLicense: MIT OR Apache-2.0\n",
        package.name, package.summary
    );
    match package.needs {
        DependencyKind::Nothing => {}
        DependencyKind::Recommended(other) => writeln!(spec, "Recommends: {other} = {version}")?,
        DependencyKind::SameVersion(other) => writeln!(spec, "Requires: {other} = {version}")?,
    }
    writeln!(spec, "%description\n{}", package.description)?;
    writeln!(spec, "%install\ncp -r {}/. %{{buildroot}}", tree.display())?;
    if let Some(unit) = unit_name(&installed) {
        writeln!(spec, "%post\n{RELOAD_SCRIPT}")?;
        // The argument is the number of versions that stay installed: 1 during an upgrade, 0 at the removal.
        writeln!(
            spec,
            "%preun\n[ $1 = 0 ] || exit 0\n{}",
            removal_script(&unit)
        )?;
        writeln!(spec, "%postun\n{RELOAD_SCRIPT}")?;
    }
    writeln!(spec, "%files\n%defattr(-,root,root,0755)")?;
    for directory in own_directories(&installed) {
        writeln!(spec, "%dir /{}", directory.display())?;
    }
    for file in &installed {
        let kind = match file.starts_with("etc") {
            true => "%config(noreplace) ",
            false => "",
        };
        writeln!(spec, "{kind}/{}", file.display())?;
    }
    Ok(spec)
}

/// Returns the directories above the installed files that no package of the distribution owns: memprof's own and those
/// below them, and those of build ids.
fn own_directories(installed: &[PathBuf]) -> BTreeSet<&Path> {
    let ancestors = installed.iter().flat_map(|file| file.ancestors().skip(1));
    let is_own = |directory: &&Path| {
        let mut names = directory.iter().filter_map(|name| name.to_str());
        names.any(|name| name.starts_with("memprof") || name == ".build-id")
    };
    ancestors.filter(is_own).collect()
}
