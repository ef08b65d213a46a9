//! Limits on the system libraries that a packaged program or plugin needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::toolchain::MIN_GLIBC;
use xtask::run::output;

/// Maximum size of the plugin's file in bytes, because every host maps it.
const MAX_PLUGIN_BYTES: u64 = 2_350_000;

/// Libraries of glibc, which every system with glibc has.
const ALLOWED_LIBRARIES: [&str; 6] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// Checks that a file needs no glibc newer than [`MIN_GLIBC`] and no library but glibc's.
pub(crate) fn check_needed_libraries(file: &Path) -> Result<()> {
    let symbols = output(Command::new("objdump").arg("-T").arg(file))?;
    let newest = newest_glibc(&symbols).with_context(|| format!("{}", file.display()))?;
    ensure!(
        newest <= parse_version(MIN_GLIBC)?,
        "{} needs glibc {}.{}:\n{}",
        file.display(),
        newest.0,
        newest.1,
        lines_with_version(&symbols, newest)
    );
    for needed in dynamic_entries(file, "(NEEDED)")? {
        ensure!(
            ALLOWED_LIBRARIES.contains(&needed.as_str()),
            "{} needs {needed}",
            file.display()
        );
    }
    println!("{}: glibc {}.{}", file.display(), newest.0, newest.1);
    Ok(())
}

/// Checks the plugin's file: the libraries that it needs, by [`check_needed_libraries`], its size, and the linker flags
/// that let running programs load the plugin and keep it.
pub(crate) fn check_plugin(file: &Path) -> Result<()> {
    check_needed_libraries(file)?;
    let bytes = fs::metadata(file)?.len();
    ensure!(
        bytes <= MAX_PLUGIN_BYTES,
        "{} has {bytes} bytes, of {MAX_PLUGIN_BYTES}",
        file.display()
    );
    let flags = output(Command::new("readelf").args(["-d", "-W"]).arg(file))?;
    ensure!(
        flags.contains("NODELETE") && flags.contains("SYMBOLIC") && !flags.contains("STATIC_TLS"),
        "{} is not linked as a plugin:\n{flags}",
        file.display()
    );
    println!("{}: {bytes} bytes", file.display());
    Ok(())
}

/// Returns the values of the dynamic section's entries of one kind, such as the libraries of `(NEEDED)`.
fn dynamic_entries(file: &Path, kind: &str) -> Result<Vec<String>> {
    let entries = output(Command::new("readelf").args(["-d", "-W"]).arg(file))?;
    let of_kind = entries.lines().filter(|line| line.contains(kind));
    let names = of_kind.filter_map(|line| line.split_once('[')?.1.split_once(']'));
    Ok(names.map(|(name, _)| name.to_owned()).collect())
}

/// Returns the newest version of glibc that the symbols in the output of `objdump -T` need, as its first two numbers.
/// Fails if they need none, or one that is no number, such as `GLIBC_PRIVATE`, which may change with each glibc.
fn newest_glibc(symbols: &str) -> Result<(u32, u32)> {
    let mut newest = None;
    for line in symbols.lines() {
        newest = newest.max(needed_glibc(line)?);
    }
    newest.context("no symbol of glibc")
}

/// Returns the version of glibc that a line of `objdump -T` names, as its first two numbers; `None` if it names none.
/// Fails if the version is no number.
fn needed_glibc(line: &str) -> Result<Option<(u32, u32)>> {
    let Some((_, version)) = line.split_once("GLIBC_") else {
        return Ok(None);
    };
    let version = version.split([')', ' ']).next().unwrap_or_default();
    Ok(Some(
        parse_version(version).with_context(|| line.to_owned())?,
    ))
}

/// Returns the lines of `objdump -T` whose symbols need this version of glibc.
fn lines_with_version(symbols: &str, version: (u32, u32)) -> String {
    let needs_version =
        |line: &&str| matches!(needed_glibc(line), Ok(Some(found)) if found == version);
    let lines = symbols.lines().filter(needs_version);
    lines.collect::<Vec<_>>().join("\n")
}

/// Parses the first two numbers of a version: `2.2.5` counts as `2.2`. Fails if there are fewer.
fn parse_version(text: &str) -> Result<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    let mut next = || {
        numbers
            .next()
            .context("no version")
            .and_then(|number| Ok(number?))
    };
    Ok((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_glibc_compares_numbers() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.2.5) free\n0 DF *UND* 0 (GLIBC_2.17) clock_gettime\n\
                       0 DF *UND* 0 (GLIBC_2.9) pipe2\n";
        assert_eq!(newest_glibc(symbols).unwrap(), (2, 17));
        assert!(lines_with_version(symbols, (2, 17)).ends_with("clock_gettime"));
        assert!(newest_glibc("nothing").is_err());
    }

    #[test]
    fn lines_of_one_version_are_not_those_of_another() {
        let symbols =
            "(GLIBC_2.1) old\n(GLIBC_2.17) clock_gettime\n(GLIBC_2.1.3) older\nGLIBC_2.1   own\n";
        let lines = lines_with_version(symbols, (2, 1));
        assert_eq!(
            lines,
            "(GLIBC_2.1) old\n(GLIBC_2.1.3) older\nGLIBC_2.1   own"
        );
    }

    #[test]
    fn version_that_is_no_number_fails() {
        let error = newest_glibc("(GLIBC_2.17) read\n(GLIBC_PRIVATE) _dl_allocate_tls\n");
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("_dl_allocate_tls"), "{error}");
    }
}
