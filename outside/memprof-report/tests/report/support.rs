//! The corpus of dumps, and reports on bytes.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use memprof_report::{Error, Input, Options, Result, Sources, write_report};

/// Real dumps of programs of Debian 12 under jemalloc 5.3.
pub(crate) const CORPUS: [&str; 5] = ["cc1plus", "gs-pdf", "node", "redis", "sqlite"];

pub(crate) fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(file)
}

/// Returns a dump of the corpus, decompressed.
pub(crate) fn corpus(name: &str) -> Vec<u8> {
    let compressed =
        fs::File::open(path(&format!("corpus/{name}.heap.gz"))).expect("the corpus is there");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(compressed)
        .read_to_end(&mut bytes)
        .expect("it is whole");
    bytes
}

/// Returns a report on `bytes`, symbolized from `sources`.
pub(crate) fn report_on(
    bytes: &[u8],
    base: Option<&[u8]>,
    sources: Option<&Sources>,
    options: &Options,
) -> Result<(Vec<u8>, Vec<String>), Error> {
    let mut out = Vec::new();
    let (mut bytes, mut base) = (bytes, base);
    let input = Input {
        name: "new.heap",
        bytes: &mut bytes,
    };
    let base = base.as_mut().map(|bytes| Input {
        name: "base.heap",
        bytes,
    });
    let sources = sources.map_or(&[][..], std::slice::from_ref);
    let notes = write_report(input, base, sources, options, &|_, _| {}, &mut out)?;
    Ok((out, notes))
}

/// Runs a program of a Debian package and returns its output.
#[track_caller]
pub(crate) fn run(
    program: &str,
    package: &str,
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> Vec<u8> {
    let output = match arguments(&mut Command::new(program)).output() {
        Ok(output) => output,
        Err(error) => panic!("{program}: {error}; apt-get install {package}"),
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program}: {}: {complaint}",
        output.status
    );
    output.stdout
}
