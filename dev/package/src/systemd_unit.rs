//! Systemd unit of a package, and the scripts that run when the package is installed or removed. Installation does
//! not start the service; removal stops it.

use std::path::PathBuf;

/// Makes systemd read the units again, if it runs. Never fails, so that the package can be installed and removed.
pub(crate) const RELOAD_SCRIPT: &str =
    "[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n";

/// Returns the file name of the service among the installed files of a package. `None` if it has none.
pub(crate) fn unit_name(installed: &[PathBuf]) -> Option<String> {
    let is_unit = |file: &&PathBuf| file.extension().is_some_and(|end| end == "service");
    let unit = installed.iter().find(is_unit)?;
    Some(unit.file_name()?.to_str()?.to_owned())
}

/// Returns the shell script that stops and disables the unit, to run before the package's files are removed.
pub(crate) fn removal_script(unit: &str) -> String {
    format!(
        "if [ -d /run/systemd/system ]; then systemctl disable --now {unit} || :\n\
         else rm -f /etc/systemd/system/*.wants/{unit}; fi\n"
    )
}
