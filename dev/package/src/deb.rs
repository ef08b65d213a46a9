//! Debian packages.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::contents::{DependencyKind, Package};
use crate::install_tree::files_below;
use crate::systemd_unit::{RELOAD_SCRIPT, removal_script, unit_name};
use crate::toolchain::MIN_GLIBC;
use xtask::run::{output, run};

/// Returns the value of the field `Maintainer`: the person who builds the package, from the variables of Debian's tools
/// (dch(1)), because the project has no address. A variable that is not set (`None`) is replaced by a placeholder.
fn maintainer_address(name: Option<String>, email: Option<String>) -> String {
    let name = name.unwrap_or_else(|| "memprof developers".to_owned());
    let email = email.unwrap_or_else(|| "memprof@localhost".to_owned());
    format!("{name} <{email}>")
}

/// Builds the package from its installation tree `tree`, writes it to the directory `to`, and returns its path. During
/// the build, the tree also has the directory `DEBIAN`. `epoch` is the time of all files, in seconds since 1970.
pub(crate) fn build_deb(
    package: &Package,
    version: &str,
    tree: &Path,
    to: &Path,
    epoch: u64,
) -> Result<PathBuf> {
    let control = tree.join("DEBIAN");
    if control.exists() {
        fs::remove_dir_all(&control)?;
    }
    let installed = files_below(tree)?;
    let mut kib = 0;
    for file in &installed {
        kib += fs::metadata(tree.join(file))?.len().div_ceil(1024);
    }
    fs::create_dir(&control)?;
    fs::write(
        control.join("control"),
        control_text(package, version, kib.max(1)),
    )?;
    let mut sums = Command::new("md5sum");
    let sums = output(sums.args(&installed).current_dir(tree))?;
    fs::write(control.join("md5sums"), sums)?;
    let configuration = installed.iter().filter(|file| file.starts_with("etc"));
    let configuration: String = configuration
        .map(|file| format!("/{}\n", file.display()))
        .collect();
    if !configuration.is_empty() {
        fs::write(control.join("conffiles"), configuration)?;
    }
    if let Some(unit) = unit_name(&installed) {
        for (name, script) in maintainer_scripts(&unit) {
            let file = control.join(name);
            fs::write(&file, script)?;
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755))?;
        }
    }
    let file = to.join(format!("{}_{version}_amd64.deb", package.name));
    run(Command::new("dpkg-deb")
        .args(["--build", "--root-owner-group", "-Zgzip"])
        .args([tree, &file])
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .stdout(std::process::Stdio::null()))?;
    fs::remove_dir_all(&control).with_context(|| control.display().to_string())?;
    Ok(file)
}

/// Returns the text of the package's control file. `kib` is the size of the installed files, in KiB.
fn control_text(package: &Package, version: &str, kib: u64) -> String {
    let mut fields = vec![
        ("Package", package.name.to_owned()),
        ("Version", version.to_owned()),
        ("Architecture", "amd64".to_owned()),
        (
            "Maintainer",
            maintainer_address(env::var("DEBFULLNAME").ok(), env::var("DEBEMAIL").ok()),
        ),
        ("Installed-Size", kib.to_string()),
        ("Section", "devel".to_owned()),
        ("Priority", "optional".to_owned()),
    ];
    let library = format!("libc6 (>= {MIN_GLIBC})");
    match package.needs {
        DependencyKind::Nothing if package.built_from.is_none() => {}
        DependencyKind::Nothing => fields.push(("Depends", library)),
        DependencyKind::Recommended(other) => fields.extend([
            ("Depends", library),
            ("Recommends", format!("{other} (= {version})")),
        ]),
        DependencyKind::SameVersion(other) => {
            fields.push(("Depends", format!("{library}, {other} (= {version})")));
        }
    }
    let lines = fields
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}\n"));
    let described = format!(
        "Description: {}\n {}\n",
        package.summary, package.description
    );
    lines.chain([described]).collect()
}

/// Returns the names and texts of the scripts for a package with a systemd unit (Debian policy, section 6).
fn maintainer_scripts(unit: &str) -> [(&'static str, String); 3] {
    let reload = format!("#!/bin/sh\nset -e\n{RELOAD_SCRIPT}");
    let removal = format!(
        "#!/bin/sh\nset -e\n[ \"$1\" = remove ] || exit 0\n{}",
        removal_script(unit)
    );
    [
        ("postinst", reload.clone()),
        ("prerm", removal),
        ("postrm", reload),
    ]
}

#[cfg(test)]
mod tests {
    use super::maintainer_address;

    #[test]
    fn maintainer_is_the_builder() {
        let check = |name: Option<&str>, email: Option<&str>, expected| {
            let made = maintainer_address(name.map(str::to_owned), email.map(str::to_owned));
            assert_eq!(made, expected);
        };
        check(None, None, "memprof developers <memprof@localhost>");
        check(
            Some("A. Builder"),
            Some("builder@site.example"),
            "A. Builder <builder@site.example>",
        );
    }
}
