//! The SDK: what authors of plugins and hosts need, as it would be published.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::install_file;
use crate::run::{cargo_command, project_root, run};

/// Crates that authors of plugins and hosts depend on, and those of the project that these need.
pub const SDK: &[&str] = &[
    "memprof-host",
    "memprof-host-c",
    "memprof-labels",
    "memprof-messages",
    "memprof-own",
    "memprof-plugin-abi",
    "memprof-ptrace",
];

/// Returns the directory into which cargo packs the SDK. It lies in the target directory of tests that build packages
/// outside of the workspace with the same dependencies, so that these are built once.
fn packed_sdk_dir() -> PathBuf {
    project_root().join("target/abi/package")
}

/// Packs the crates of the SDK as they would be published. With `verify`, builds each from its package.
pub fn pack_sdk(verify: bool) -> Result<()> {
    let packed = packed_sdk_dir();
    // The files of an older version would be unpacked into the SDK too.
    if packed.exists() {
        fs::remove_dir_all(&packed).with_context(|| packed.display().to_string())?;
    }
    let target = project_root().join("target/abi");
    remove_cached_sdk(&target)?;
    let mut package = cargo_command(&["package", "--quiet", "--allow-dirty"]);
    package.args((!verify).then_some("--no-verify"));
    for name in SDK {
        package.args(["--package", name]);
    }
    run(package.arg("--target-dir").arg(target))
}

/// Removes what cargo has cached of packed crates: their unpacked sources in cargo's home, and the files that it has
/// built of them in the target directory `target`. Cargo tells cached crates apart only by their versions, so it would
/// use those of an earlier state.
fn remove_cached_sdk(target: &Path) -> Result<()> {
    let mut clean = cargo_command(&["clean", "--quiet"]);
    for name in SDK {
        clean.args(["--package", name]);
    }
    run(clean.arg("--target-dir").arg(target))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let sources = home.context("HOME is not set")?.join("registry/src");
    // Cargo names a registry's directory HOST-HASH; that of packed crates has no host.
    let registries = list_directory(&sources)?;
    for registry in registries
        .iter()
        .filter(|path| file_name(path).starts_with('-'))
    {
        let unpacked = list_directory(registry)?;
        for sources in unpacked
            .iter()
            .filter(|path| find_sdk_crate(file_name(path)).is_some())
        {
            fs::remove_dir_all(sources).with_context(|| sources.display().to_string())?;
        }
    }
    Ok(())
}

/// Returns the crate of the SDK in the name of a packed file or directory, which has the form `memprof-own-0.2.0`.
/// `None` if the name has another form, or another crate.
fn find_sdk_crate(packed_name: &str) -> Option<&'static str> {
    let has_version = |name: &&str| {
        let version = packed_name
            .strip_prefix(*name)
            .and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    SDK.iter().copied().find(has_version)
}

/// Returns the name of a file; empty if it is not UTF-8.
fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// Returns the paths in a directory; none if it does not exist.
fn list_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Headers for plugins and hosts in C.
pub(super) const HEADERS: &[&str] = &[
    "memprof-plugin-abi/include/memprof.h",
    "in-process/memprof-host-c/include/memprof_host.h",
];

/// Plugins and hosts that the book's parts for authors compile.
const SDK_EXAMPLES: &[&str] = &[
    "hosts-examples/c/c_host.c",
    "hosts-examples/c-admin/admin_host.c",
    "hosts-examples/unprepared/unprepared.c",
    "in-process/memprof-host/examples/admin_host.rs",
    "plugins/hello-c/hello_c.c",
    "plugins/hello-c/worker.c",
];

/// Lays out what authors of plugins and hosts need in the directory `sdk`: the crates of the SDK as they would be
/// published, each in a folder with its name, headers and examples.
pub fn lay_out_sdk(sdk: &Path) -> Result<()> {
    for (files, folder) in [(HEADERS, "include"), (SDK_EXAMPLES, "examples")] {
        for file in files {
            let name = Path::new(file).file_name().context("a file's name")?;
            install_file(&project_root().join(file), &sdk.join(folder).join(name))?;
        }
    }
    pack_sdk(false)?;
    for path in list_directory(&packed_sdk_dir())? {
        let packed = file_name(&path).strip_suffix(".crate");
        let Some(name) = packed.and_then(find_sdk_crate) else {
            continue;
        };
        let folder = sdk.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "--file"]).arg(&path);
        run(tar
            .args(["--extract", "--gzip", "--directory"])
            .arg(&folder))?;
        add_neighbour_paths(&folder.join("Cargo.toml"))?;
    }
    Ok(())
}

/// Gives each dependency in the manifest of a packed crate on another crate of the SDK the path of that crate's folder,
/// which lies beside its own. So authors can add the crate by `cargo add --path` alone.
fn add_neighbour_paths(manifest: &Path) -> Result<()> {
    let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    let with_paths = SDK.iter().fold(text, |text, name| {
        let table = format!("dependencies.{name}]\n");
        text.replace(&table, &format!("{table}path = \"../{name}\"\n"))
    });
    fs::write(manifest, with_paths).with_context(|| manifest.display().to_string())
}
