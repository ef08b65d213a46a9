//! Running `memprof`.

use std::path::Path;
use std::process::Command;

pub(crate) use testkit::Run;

use crate::dist::dist;

/// Runs `memprof`, which looks for hosts in the directory `sockets`.
pub(crate) fn memprof(sockets: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(dist("bin/memprof"));
    Run::from_command(command.args(args).env("MEMPROF_SOCKET_DIR", sockets))
}
