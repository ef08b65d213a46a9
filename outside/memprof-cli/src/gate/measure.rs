//! Runs the command with every allocation counted, and reads the totals from the dumps of its processes.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::Context;
use memprof_report::{Limits, ProfileOrigin};

use super::TestArgs;
use super::command::{self, CommandEnd};
use super::measurement::Measurement;
use crate::exit::{FAILED, NO_DATA, with_exit_code};
use crate::interrupts;
use crate::run::{RunArgs, preload_command};

/// Config of the plugin: each process leaves an exit dump. It needs no control socket.
const CONFIG: &str = "sampler = \"memprof\"\ncontrol = \"off\"\n[keep]\ncount = 100000\nbytes = \"1TiB\"\n\
                      [[watch]]\nat_exit = true\n";

/// Runs the command once, and reads the totals of its processes from their dumps. If this program's standard output is
/// one document, the command's own output goes to standard error.
///
/// # Errors
/// The command cannot be run, has failed, was interrupted, or has left no dump.
pub(super) fn measure_command(args: &TestArgs) -> anyhow::Result<Measurement> {
    let dir = tempfile::tempdir().context("failed to make a directory for the dumps")?;
    let config = dir.path().join("config.toml");
    let dumps = dir.path().join("dumps");
    fs::write(&config, CONFIG).with_context(|| config.display().to_string())?;
    let mut command = preload_command(&RunArgs {
        active: true,
        is_tallied: true,
        allocator: None,
        lg_sample: Some(args.lg_sample()),
        sample_interval: None,
        socket_dir: None,
        dump_dir: Some(dumps.clone()),
        config: Some(config),
        plugin: args.plugin.clone(),
        command: args.command.clone(),
    })?;
    if args.prints_document() {
        command.stdout(Stdio::from(io::stderr()));
    }
    let name = command.get_program().display().to_string();
    let end = command::run(&mut command);
    match end.with_context(|| format!("failed to run {name}"))? {
        CommandEnd::Status(status) if status.success() => {}
        CommandEnd::Status(status) => {
            return Err(with_exit_code(
                FAILED,
                format!("{name} failed: {}", describe_exit(status)),
            ));
        }
        CommandEnd::Interrupted(signal) => {
            let message = format!("{signal}: ended {name} too; nothing is compared or written");
            return Err(with_exit_code(
                interrupts::signal_exit_code(signal),
                message,
            ));
        }
    }
    let mut measured = read_dumps(&dumps)?;
    // Keeps the dumps for `Stacks::read`.
    measured.dumps.dir = Some(dir);
    if measured.processes == 0 {
        let message = format!(
            "{name} left no figures: it ended by _exit(2), it executed itself again, or a program that it ran has an \
             allocator linked in; look at it while it runs: `memprof run -- {name}`, then `memprof status`"
        );
        return Err(with_exit_code(NO_DATA, message));
    }
    Ok(measured)
}

/// Describes the end of a command: "exit status 1" or "signal 9".
fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it did not end".to_owned(),
    }
}

/// Reads the totals of all dumps in a directory. A missing directory means that no process was counted.
fn read_dumps(dumps: &Path) -> anyhow::Result<Measurement> {
    let mut measured = Measurement::default();
    let entries = match fs::read_dir(dumps) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(measured),
        Err(error) => return Err(error).with_context(|| dumps.display().to_string()),
    };
    for entry in entries {
        let path = entry.with_context(|| dumps.display().to_string())?.path();
        add_dump(&mut measured, path)?;
    }
    Ok(measured)
}

/// Returns whether a dump is unfinished: the plugin gives it a hidden name until it is written, where the file system
/// has no nameless files.
fn is_unfinished(dump: &Path) -> bool {
    let name = dump.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

/// Adds the totals of a process's dump: sums the allocated bytes, and keeps the largest peak. Lost samples add a note.
/// A process whose allocations were not counted, or that ended while it wrote its dump, adds nothing but a note and its
/// name.
fn add_dump(measured: &mut Measurement, dump: PathBuf) -> anyhow::Result<()> {
    if is_unfinished(&dump) {
        measured.notes.push(
            "a process was not counted: it was ended while it wrote its dump at its exit"
                .to_owned(),
        );
        measured.uncounted.push("a process".to_owned());
        return Ok(());
    }
    let origin = read_origin(&dump).with_context(|| dump.display().to_string())?;
    let host = origin.host.as_deref().unwrap_or("a process");
    let Some(tally) = origin.tally else {
        measured.notes.push(format!(
            "{host} was not counted: its allocator cannot report the size of a block"
        ));
        measured.uncounted.push(host.to_owned());
        return Ok(());
    };
    if let Some(lost) = origin.lost_samples.filter(|lost| *lost > 0) {
        measured.notes.push(format!(
            "{lost} samples of {host} were lost, so the values of functions are too low: use --sample-interval 1MiB"
        ));
    }
    measured.processes += 1;
    measured.allocated = measured.allocated.saturating_add(tally.bytes);
    if tally.peak > measured.peak {
        measured.peak = tally.peak;
        measured.dumps.peak_index = Some(measured.dumps.files.len());
    }
    measured.dumps.files.push(dump);
    Ok(())
}

/// Returns the data in the comment lines of a dump: the process and its counts. Parses the whole dump; fails if it is
/// truncated, or holds several processes.
fn read_origin(dump: &Path) -> anyhow::Result<ProfileOrigin> {
    let mut bytes = BufReader::new(File::open(dump)?);
    Ok(memprof_report::parse_profile(&mut bytes, &Limits::default(), false)?.origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_tally_is_uncounted() {
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("one.heap");
        let text = "heap_v2/524288\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n";
        fs::write(&dump, text).unwrap();
        let measured = read_dumps(dir.path()).unwrap();
        assert_eq!(measured.processes, 0);
        assert_eq!(measured.uncounted, ["a process"]);
        let counted = Measurement::default();
        assert!(counted.require_all_counted().is_ok());
        let error = measured.require_all_counted().unwrap_err().to_string();
        assert!(error.contains("a process was not counted"), "{error}");
    }

    #[test]
    fn process_that_ended_while_it_wrote_its_dump_is_uncounted() {
        let dir = tempfile::tempdir().unwrap();
        let hidden = dir.path().join(".20261127T180000Z.7.1.0000beef.heap");
        fs::write(hidden, "heap_v2/5").unwrap();
        let measured = read_dumps(dir.path()).unwrap();
        assert_eq!(measured.processes, 0);
        let error = measured.require_all_counted().unwrap_err().to_string();
        assert!(error.contains("a process was not counted"), "{error}");
    }

    /// Any process can write a dump into the directory.
    #[test]
    fn sum_of_largest_tallies_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let text = "heap_v2/524288\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n\
                    # tally: 1 objects, 18446744073709551615 bytes, 8 at the peak\n";
        for name in ["one.heap", "two.heap"] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let measured = read_dumps(dir.path()).unwrap();
        assert_eq!((measured.processes, measured.allocated), (2, u64::MAX));
    }
}
