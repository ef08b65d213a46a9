//! Dumps in the form that other tools read.

use std::io::{self, BufReader};
use std::path::Path;

use memprof_report::Limits;

use crate::output;

/// Size of the read buffer in bytes.
const BUFFER_SIZE: usize = 256 << 10;

/// Writes a dump to `path`, or to stdout for `-`, in the form that other tools read: memprof's pseudo frames, which are
/// data and not code, become comments. Returns the number of bytes written; `None` if the reader of stdout went away.
pub(crate) fn export_dump(dump: &mut dyn io::Read, path: &Path) -> anyhow::Result<Option<u64>> {
    let mut dump = BufReader::with_capacity(BUFFER_SIZE, dump);
    let limits = Limits::default();
    output::write_output(path, |out| {
        Ok(memprof_report::export_dump(&mut dump, &limits, out)?)
    })
}
