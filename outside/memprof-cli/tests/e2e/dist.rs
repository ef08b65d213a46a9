//! What `cargo xtask build` laid out.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of `target/dist`.
pub(crate) fn dist(name: &str) -> PathBuf {
    let file = source("target/dist").join(name);
    assert!(
        file.exists(),
        "{} is missing: run `cargo xtask build`",
        file.display()
    );
    file
}

/// A file below the project's root.
pub(crate) fn source(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.unwrap().join(name)
}

/// Runs a tool from a Debian package.
pub(crate) fn tool(package: &str, command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; run `cargo xtask test`, or apt-get install {package}")
    })
}

/// Output of a tool, which must succeed.
pub(crate) fn tool_text(package: &str, command: &mut Command) -> String {
    let output = tool(package, command);
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {notes}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A library to preload, compiled from a C file of the fixtures into `place`.
pub(crate) fn preloadable(fixture: &str, place: &Path) -> PathBuf {
    let library = place.join(fixture).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args([
        "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
    ])
    .arg(&library)
    .arg(source("outside/memprof-cli/tests/fixtures").join(fixture));
    tool_text("gcc", &mut cc);
    library
}
