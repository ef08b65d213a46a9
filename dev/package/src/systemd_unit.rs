//! The service of a package, and what installing and removing it tells systemd. A service is not started by its
//! installation; its removal ends it.

use std::path::PathBuf;

/// What systemd refuses must not keep a package from being installed or removed.
pub(crate) const RELOAD: &str = "[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n";

/// The package's service.
pub(crate) fn unit(installed: &[PathBuf]) -> Option<String> {
    let is_unit = |file: &&PathBuf| file.extension().is_some_and(|end| end == "service");
    let unit = installed.iter().find(is_unit)?;
    Some(unit.file_name()?.to_str()?.to_owned())
}

/// Before its last file is gone.
pub(crate) fn end(unit: &str) -> String {
    format!(
        "if [ -d /run/systemd/system ]; then systemctl disable --now {unit} || :\n\
         else rm -f /etc/systemd/system/*.wants/{unit}; fi\n"
    )
}
