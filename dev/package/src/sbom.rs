//! Bill of materials of a package: the crates that are linked into it, in the tag-value format of SPDX 2.3.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use xtask::run::{cargo_command, output, project_root};

/// Returns the file name of a package's bill of materials.
pub(crate) fn bill_file_name(package: &str) -> String {
    format!("{package}.spdx")
}

/// Returns the bill of materials of a cargo package: the crates that it links for x86-64 with its default features.
/// `epoch` is the time of the commit, in seconds since 1970.
pub(crate) fn package_bill(package: &str, epoch: u64) -> Result<String> {
    let lock = fs::read_to_string(project_root().join("Cargo.lock"))?;
    let checksums = crate_checksums(&lock);
    let mut tree = cargo_command(&["tree", "--locked", "--prefix=none", "--no-dedupe"]);
    tree.args(["--edges=normal,no-proc-macro", "--format={p}\t{l}"])
        .args(["--target=x86_64-unknown-linux-gnu", "--package", package]);
    let tree = output(&mut tree)?;
    let mut linked = BTreeMap::new();
    for line in tree.lines() {
        let (named, license) = line.split_once('\t').context("cargo tree changed")?;
        let mut fields = named.split(' ');
        let name = fields.next().context("cargo tree changed")?;
        let version = fields.next().and_then(|field| field.strip_prefix('v'));
        linked.insert((name, version.context("cargo tree changed")?), license);
    }
    let version = env!("CARGO_PKG_VERSION");
    let created = output(Command::new("date").args([
        "--utc",
        "+%Y-%m-%dT%H:%M:%SZ",
        &format!("--date=@{epoch}"),
    ]))?;
    let mut bill = format!(
        "SPDXVersion: SPDX-2.3\nDataLicense: CC0-1.0\nSPDXID: SPDXRef-DOCUMENT\n\
         DocumentName: {package}-{version}\n\
         DocumentNamespace: https://spdx.org/spdxdocs/{package}-{version}-{epoch}\n\
         Creator: Tool: cargo-xtask-package\nCreated: {created}"
    );
    for ((name, version), license) in linked {
        // An identifier of SPDX has letters, digits, `.` and `-` only.
        let id = format!("SPDXRef-{}-{version}", name.replace('_', "-")).replace('+', "-");
        let license = license.replace('/', " OR ");
        write!(
            bill,
            "\nPackageName: {name}\nSPDXID: {id}\nPackageVersion: {version}\n\
             PackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n\
             PackageLicenseConcluded: {license}\nPackageLicenseDeclared: {license}\n\
             PackageCopyrightText: NOASSERTION\n\
             ExternalRef: PACKAGE-MANAGER purl pkg:cargo/{name}@{version}\n"
        )?;
        if let Some(checksum) = checksums.get(&(name, version)) {
            writeln!(bill, "PackageChecksum: SHA256: {checksum}")?;
        }
        writeln!(bill, "Relationship: SPDXRef-DOCUMENT DESCRIBES {id}")?;
    }
    Ok(bill)
}

/// Returns the checksums of the crates from a registry in the text of a Cargo.lock, by name and version.
fn crate_checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let package_checksum = |package| {
        let value = |key: &str| {
            let mut lines = str::lines(package);
            lines.find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]")
        .filter_map(package_checksum)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_crates_have_checksums() {
        let lock = fs::read_to_string(project_root().join("Cargo.lock")).unwrap();
        let checksums = crate_checksums(&lock);
        let found = |name| checksums.iter().find(|((package, _), _)| *package == name);
        assert_eq!(found("libc").unwrap().1.len(), 64);
        assert_eq!(found("memprof-core"), None);
    }
}
