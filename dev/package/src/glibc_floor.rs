//! What a packaged program and plugin may need of the system.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::toolchain::FLOOR;
use xtask::run::output;

/// The most that the plugin's file may take: every host maps it.
const PLUGIN_BYTES: u64 = 2_200_000;

/// What every glibc system has.
const LIBRARIES: [&str; 6] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// No symbol of a newer C library than [`FLOOR`], and no library besides the C library's.
pub(crate) fn check(file: &Path) -> Result<()> {
    let symbols = output(Command::new("objdump").arg("-T").arg(file))?;
    let newest = newest_glibc(&symbols).with_context(|| format!("{}", file.display()))?;
    ensure!(
        newest <= version(FLOOR)?,
        "{} needs glibc {}.{}:\n{}",
        file.display(),
        newest.0,
        newest.1,
        naming(&symbols, newest)
    );
    for needed in dynamic(file, "(NEEDED)")? {
        ensure!(
            LIBRARIES.contains(&needed.as_str()),
            "{} needs {needed}",
            file.display()
        );
    }
    println!("{}: glibc {}.{}", file.display(), newest.0, newest.1);
    Ok(())
}

/// What a plugin has to be besides, so that running programs can load it and keep it.
pub(crate) fn check_plugin(file: &Path) -> Result<()> {
    check(file)?;
    let bytes = fs::metadata(file)?.len();
    ensure!(
        bytes <= PLUGIN_BYTES,
        "{} has {bytes} bytes, of {PLUGIN_BYTES}",
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

/// The names in brackets of the dynamic section's entries of a kind.
fn dynamic(file: &Path, kind: &str) -> Result<Vec<String>> {
    let entries = output(Command::new("readelf").args(["-d", "-W"]).arg(file))?;
    let of_kind = entries.lines().filter(|line| line.contains(kind));
    let names = of_kind.filter_map(|line| line.split_once('[')?.1.split_once(']'));
    Ok(names.map(|(name, _)| name.to_owned()).collect())
}

fn newest_glibc(symbols: &str) -> Result<(u32, u32)> {
    let named = symbols.split("GLIBC_").skip(1);
    let versions = named.filter_map(|rest| version(rest.split([')', ' ']).next()?).ok());
    versions.max().context("no symbol of glibc")
}

fn naming(symbols: &str, version: (u32, u32)) -> String {
    let name = format!("GLIBC_{}.{}", version.0, version.1);
    let lines = symbols.lines().filter(|line| line.contains(&name));
    lines.collect::<Vec<_>>().join("\n")
}

/// The first two numbers: `2.2.5` is as old as `2.2`.
fn version(text: &str) -> Result<(u32, u32)> {
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
    fn the_newest_version_counts_not_the_longest() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.2.5) free\n0 DF *UND* 0 (GLIBC_2.17) clock_gettime\n\
                       0 DF *UND* 0 (GLIBC_2.9) pipe2\n";
        assert_eq!(newest_glibc(symbols).unwrap(), (2, 17));
        assert!(naming(symbols, (2, 17)).ends_with("clock_gettime"));
        assert!(newest_glibc("nothing").is_err());
    }
}
