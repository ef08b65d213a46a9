//! Tests that only root can run.

use std::env;
use std::io::{self, Write};

use nix::unistd::geteuid;

/// Whether a test is to be left out, because this is not root. Says so on stderr, past libtest, which drops the output
/// of tests that pass. In CI, which runs as root, it fails instead.
#[track_caller]
pub(crate) fn skip_without_root(test: &str) -> bool {
    if geteuid().is_root() {
        return false;
    }
    assert!(
        env::var_os("CI").is_none(),
        "{test}: CI is to run the tests as root"
    );
    let line = format!("SKIPPED (needs root): {test}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
    true
}
