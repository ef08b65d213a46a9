//! Opens reports in a browser, if there is one.

use std::env;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::output;
use crate::signals;

/// Writes an HTML page to a new file in the directory for temporary files. The file stays after this program's end, and
/// only this user may read it. Returns its path and the result of `write`.
pub(crate) fn write_temporary_page<T>(
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<(PathBuf, T)> {
    let failed = || format!("failed to write a page in {}", env::temp_dir().display());
    let file = tempfile::Builder::new()
        .prefix("memprof-")
        .suffix(".html")
        .permissions(Permissions::from_mode(0o600))
        .tempfile()
        .with_context(failed)?;
    let mut out = BufWriter::with_capacity(256 << 10, file);
    let value = write(&mut out)?;
    let file = out.into_inner().map_err(|error| error.into_error());
    let (_, path) = file.with_context(failed)?.keep().with_context(failed)?;
    Ok((path, value))
}

/// Opens a file in the user's browser. Prints its absolute path on stdout if no browser starts.
pub(crate) fn open_or_print_path(file: &Path) -> anyhow::Result<()> {
    if !open_in_browser(file)? {
        output::print(&std::path::absolute(file)?.display().to_string());
    }
    Ok(())
}

/// Like [`open_or_print_path`], but prints the path on stderr, because stdout carries the page or a dump.
pub(crate) fn open_or_print_path_to_stderr(file: &Path) -> anyhow::Result<()> {
    if !open_in_browser(file)? {
        output::print_stderr(&std::path::absolute(file)?.display().to_string());
    }
    Ok(())
}

/// Opens a file in the first of the user's browsers that starts, and says so on stderr. Notes each failure to start one
/// on stderr. Returns false if none starts.
fn open_in_browser(file: &Path) -> anyhow::Result<bool> {
    let file = std::path::absolute(file)?;
    let started = candidate_browsers()
        .iter()
        .any(|browser| match spawn_browser(browser, &file) {
            Ok(()) => true,
            Err(error) => {
                output::note(&format!("failed to start {browser}: {error}"));
                false
            }
        });
    if started {
        output::print_stderr(&format!("opened {}", file.display()));
    }
    Ok(started)
}

/// Returns the browsers to try: the programs in `BROWSER`, which are separated by colons, then `xdg-open` if there is a
/// display.
fn candidate_browsers() -> Vec<String> {
    let listed = env::var("BROWSER").unwrap_or_else(|_| String::new());
    let listed = listed.split(':').filter(|browser| !browser.is_empty());
    let mut browsers: Vec<_> = listed.map(str::to_owned).collect();
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") {
        browsers.push("xdg-open".to_owned());
    }
    browsers
}

/// Starts a browser with its output discarded, and does not wait for it: it may run for as long as its window is open.
/// The browser gets the signal mask and SIGPIPE's disposition of this program's caller.
fn spawn_browser(browser: &str, file: &Path) -> io::Result<()> {
    let mut command = Command::new(browser);
    command
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    signals::inherit_caller_signals(&mut command)
        .spawn()
        .map(drop)
}
