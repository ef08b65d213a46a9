//! The processes of the machine, as `memprof ps --all` lists them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::problem::{Problem, Result};

/// Age up to which a list is shown again: it costs some CPU time for each process.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Lists the processes.
#[derive(Debug)]
pub(super) struct ProcessList {
    program: PathBuf,
    /// The last list, as JSON, with its time. Locked while a list is made, so that requests share it.
    last: Mutex<Option<(Instant, Vec<u8>)>>,
}

impl ProcessList {
    pub(super) fn new(program: PathBuf) -> Self {
        Self {
            program,
            last: Mutex::default(),
        }
    }

    /// The list, as the JSON of `memprof ps --all`.
    ///
    /// # Errors
    /// The command fails, with its message.
    pub(super) async fn list(&self) -> Result<Vec<u8>> {
        let mut last = self.last.lock().await;
        if let Some((time, list)) = &*last
            && time.elapsed() < MAX_AGE
        {
            return Ok(list.clone());
        }
        let mut command = Command::new(&self.program);
        command.args(["ps", "--all", "--json"]).stdin(Stdio::null());
        let listed = spawn_blocking(move || command.output()).await;
        let listed = listed.map_err(|error| Problem::internal(error.to_string()))?;
        let listed = listed
            .map_err(|error| Problem::internal(format!("failed to list processes: {error}")))?;
        if !listed.status.success() {
            let message = String::from_utf8_lossy(&listed.stderr);
            return Err(Problem::internal(message.trim()));
        }
        *last = Some((Instant::now(), listed.stdout.clone()));
        Ok(listed.stdout)
    }
}
