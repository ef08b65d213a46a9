//! The shared jemalloc to preload.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::exit::{UNAVAILABLE, coded};

/// Where distributions put libraries (Debian's multiarch, others' lib64, self-built ones).
const DIRECTORIES: [&str; 6] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
];

/// The first `libjemalloc.so.2` that was built with profiling.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let mut without = Vec::new();
    for directory in DIRECTORIES {
        let library = Path::new(directory).join("libjemalloc.so.2");
        if !library.exists() {
            continue;
        }
        if can_profile(&library)? {
            return Ok(library);
        }
        without.push(library.display().to_string());
    }
    let message = if without.is_empty() {
        "no libjemalloc.so.2 is installed".to_owned()
    } else {
        format!("built without profiling: {}", without.join(", "))
    };
    Err(coded(
        UNAVAILABLE,
        format!("{message}; on Debian: apt-get install libjemalloc2"),
    ))
}

/// Lets jemalloc itself say so: it aborts the process over an option that it does not know.
fn can_profile(library: &Path) -> anyhow::Result<bool> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let status = Command::new(own)
        .arg("--version")
        .env_clear()
        .env("LD_PRELOAD", library)
        .env("MALLOC_CONF", "abort_conf:true,prof:true,prof_active:false")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("failed to try {}", library.display()))?;
    Ok(status.success())
}
