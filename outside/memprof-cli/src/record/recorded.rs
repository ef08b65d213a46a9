//! Results of recordings, and their report.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use memprof_report::{Limits, join_notes};

use super::arguments::RecordArgs;
use super::sampling::SamplingEnd;
use crate::exit::{NO_DATA, Outcome, UNREACHABLE, with_exit_code};
use crate::export::export_dump;
use crate::process_names::describe_process;
use crate::program_kind::{ProgramKinds, unsampled_objects_text};
use crate::report_form::{FormArgs, LiveDump, open_dumps, show_live_report, write_live_page};
use crate::scratch::ScratchFile;
use crate::{browser, exit, output};

/// Rows of the table.
const TABLE_ROWS: usize = 20;

/// Most descendants that are recorded: each has a thread here, and a dump in a file.
pub(super) const MAX_DESCENDANTS: usize = 64;

/// Processes that a note names.
const MAX_NAMED: usize = 8;

/// Result of a recording of one process.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) pid: u32,
    pub(super) profile: Option<ScratchFile>,
    pub(super) warnings: Vec<String>,
    pub(super) end: SamplingEnd,
    /// Part of the recording that the profile covers; `None` if it covers the whole.
    pub(super) age: Option<Duration>,
    /// Error of detaching, if the process is not as it was before.
    pub(super) detach_error: Option<anyhow::Error>,
}

impl Recorded {
    /// Returns the result for a process that left no profile, or none yet.
    pub(super) fn without_profile(pid: u32, end: SamplingEnd) -> Self {
        Self {
            pid,
            profile: None,
            warnings: Vec::new(),
            end,
            age: None,
            detach_error: None,
        }
    }

    /// Returns whether the process was sampled until the time was over or until an interrupt, and then detached from
    /// without an error.
    fn is_complete(&self) -> bool {
        matches!(self.end, SamplingEnd::Time | SamplingEnd::Interrupt)
            && self.detach_error.is_none()
    }

    /// Returns the text about a sampling that ended early: the reason, and which profile there is. `shown` is the error
    /// of showing the profile; if there is one, its text replaces the part about the profile. `None` if the sampling
    /// did not end early.
    fn early_end_text(&self, shown: Option<&anyhow::Error>) -> Option<String> {
        let reason = self.end.early_reason()?;
        let profile = match (shown, self.age) {
            (Some(error), _) => exit::error_chain(error),
            (None, Some(age)) => format!("the profile is that of its first {age:.1?}"),
            (None, None) if self.profile.is_some() => "the profile is that of its exit".to_owned(),
            (None, None) => "it left no profile".to_owned(),
        };
        Some(format!("{} {reason}; {profile}", self.pid))
    }
}

/// Result of a recording of one process, which may have failed.
#[derive(Debug)]
pub(super) struct ProcessResult {
    pub(super) pid: u32,
    /// Pid and name, before the recording.
    pub(super) name: String,
    pub(super) recorded: anyhow::Result<Recorded>,
    /// Notes that were not printed yet.
    pub(super) notes: Vec<String>,
}

/// Results of recordings that one report shows.
#[derive(Debug)]
pub(super) struct RecordedProcesses {
    /// The process that was asked for comes first.
    processes: Vec<ProcessResult>,
    /// Descendants that were not recorded, because they were too many.
    left_out: Vec<u32>,
}

impl RecordedProcesses {
    pub(super) fn new(processes: Vec<ProcessResult>, left_out: Vec<u32>) -> Self {
        Self {
            processes,
            left_out,
        }
    }

    /// Builds the results from a single recording. Reads the name of the process.
    pub(super) fn from_one_recording(pid: u32, recorded: anyhow::Result<Recorded>) -> Self {
        let only = ProcessResult {
            pid,
            name: describe_process(pid),
            recorded,
            notes: Vec::new(),
        };
        Self::new(vec![only], Vec::new())
    }

    /// Appends the results of other processes to these.
    pub(super) fn append(&mut self, mut others: Self) {
        self.processes.append(&mut others.processes);
        self.left_out.append(&mut others.left_out);
    }

    /// Shows the profiles together as one report. Fails if no process was recorded to the end, or if one could not be
    /// detached from; other failures are printed as notes.
    pub(super) fn show(mut self, args: &RecordArgs) -> Outcome {
        let failed = self.failed_index();
        let mut notes = self.failure_notes(failed);
        let dumps = self.readable_dumps(&mut notes);
        let dumps = dumps.inspect_err(|_| notes.iter().for_each(|note| output::note(note)))?;
        let shown = match &dumps {
            Some(dumps) => self.show_dumps(dumps, args, &notes),
            None => Ok(()),
        };
        if dumps.is_none() || shown.is_err() {
            notes.iter().for_each(|note| output::note(note));
        }
        let Some(failed) = failed else {
            return shown.map(|()| ExitCode::SUCCESS);
        };
        let recorded = self.processes.swap_remove(failed).recorded?;
        if let Some(text) = recorded.early_end_text(shown.as_ref().err()) {
            return Err(with_exit_code(UNREACHABLE, text));
        }
        shown?;
        recorded.detach_error.map_or(Ok(ExitCode::SUCCESS), Err)
    }

    /// Returns the index of the process whose failure is that of the command: the first that could not be detached
    /// from, or the first if none was recorded to the end. `None` if the command succeeds.
    fn failed_index(&self) -> Option<usize> {
        let recorded = || {
            self.processes
                .iter()
                .map(|process| process.recorded.as_ref().ok())
        };
        let has_complete = recorded().flatten().any(Recorded::is_complete);
        recorded()
            .position(|recorded| recorded.is_some_and(|recorded| recorded.detach_error.is_some()))
            .or_else(|| (!has_complete).then_some(0))
    }

    /// Returns notes on the processes that were not recorded to the end, except the process with the index `failed`,
    /// and on the descendants in `left_out`.
    fn failure_notes(&self, failed: Option<usize>) -> Vec<String> {
        let others = self.processes.iter().enumerate();
        let others = others.filter(|(index, _)| Some(*index) != failed);
        let mut notes: Vec<_> = others
            .filter_map(|(_, process)| failure_note(process.pid, &process.recorded))
            .collect();
        let unnamed = notes.len().saturating_sub(MAX_NAMED);
        notes.truncate(MAX_NAMED);
        if unnamed > 0 {
            notes.push(format!(
                "{unnamed} more processes were not recorded to the end"
            ));
        }
        if !self.left_out.is_empty() {
            let pids: Vec<_> = self.left_out.iter().map(u32::to_string).collect();
            let shown = pids.len().min(MAX_NAMED);
            let more = if shown < pids.len() { ", …" } else { "" };
            notes.push(format!(
                "{} descendants were left out, because at most {MAX_DESCENDANTS} are recorded: {}{more}",
                pids.len(),
                pids[..shown].join(", ")
            ));
        }
        notes
    }

    /// Returns the dumps of all processes. `None` if there is none. Several dumps are later read as one stream, in
    /// which a malformed dump would make the next one unreadable. Therefore, dumps that cannot be parsed are left out,
    /// each with a note in `notes`. Fails if a dump cannot be opened.
    fn readable_dumps(&self, notes: &mut Vec<String>) -> anyhow::Result<Option<RecordedDumps>> {
        let recorded = self
            .successful_recordings()
            .filter_map(|recorded| Some((recorded.pid, recorded.profile.as_ref()?)));
        let recorded: Vec<_> = recorded.collect();
        let mut dumps = RecordedDumps::default();
        for (pid, dump) in &recorded {
            if recorded.len() > 1 {
                let bytes = File::open(dump.path()).context("failed to read the dump again")?;
                let parsed = memprof_report::parse_profile(
                    &mut BufReader::new(bytes),
                    &Limits::default(),
                    true,
                );
                if let Err(error) = parsed {
                    notes.push(format!("{pid}: its dump is left out: {error}"));
                    continue;
                }
            }
            dumps.pids.push(*pid);
            dumps.files.push(dump.path());
        }
        Ok((!dumps.pids.is_empty()).then_some(dumps))
    }

    /// Prints notes, and writes the report in the requested format. Without a format, prints a table; then `--output`
    /// gets the dumps, and `--open` shows an HTML page.
    fn show_dumps(
        &self,
        dumps: &RecordedDumps,
        args: &RecordArgs,
        notes: &[String],
    ) -> anyhow::Result<()> {
        let form = &args.form;
        if args.output_is_dump()
            && let Some(output) = &form.output
        {
            export_dump(&mut open_dumps(&dumps.files)?, output)?;
        }
        self.print_warnings();
        let dump = LiveDump {
            files: &dumps.files,
            name: &dumps.name(),
            pids: &dumps.pids,
            notes,
        };
        let shown = match args.output_is_dump() {
            true => {
                let table = FormArgs {
                    lines: form.lines,
                    top: form.top,
                    ..FormArgs::default()
                };
                show_live_report(dump, &table, &args.view, Some(TABLE_ROWS))
            }
            false => show_live_report(dump, form, &args.view, Some(TABLE_ROWS)),
        };
        shown.map_err(|error| add_remedy_if_empty(error, dumps.pids[0]))?;
        if form.open && args.output_is_dump() {
            browser::open_or_print_path(&write_live_page(dump)?)?;
        }
        Ok(())
    }

    /// Prints the notes and warnings of the processes; with several processes, each note names its process. Also notes
    /// that a recording was interrupted.
    fn print_warnings(&self) {
        let notes = self.processes.iter().map(|process| {
            let warnings = process
                .recorded
                .as_ref()
                .ok()
                .map(|recorded| &recorded.warnings);
            let notes = process.notes.iter().chain(warnings.into_iter().flatten());
            (process.name.clone(), notes.cloned().collect())
        });
        for note in join_notes(&notes.collect::<Vec<_>>()) {
            output::note(&note);
        }
        if self
            .successful_recordings()
            .any(|recorded| recorded.end == SamplingEnd::Interrupt)
        {
            output::note("interrupted: this is the profile until then");
        }
    }

    /// Iterates over the results of the processes whose recording has not failed.
    fn successful_recordings(&self) -> impl Iterator<Item = &Recorded> {
        let processes = self.processes.iter();
        processes.filter_map(|process| process.recorded.as_ref().ok())
    }
}

/// Dumps of recorded processes, at least one. The files are those of the recordings, which must outlive this.
#[derive(Debug, Default)]
struct RecordedDumps {
    pids: Vec<u32>,
    /// The dump of each, in the order of `pids`.
    files: Vec<PathBuf>,
}

impl RecordedDumps {
    /// Returns a name for people: that of the first process, and the number of other processes.
    fn name(&self) -> String {
        let first = describe_process(self.pids[0]);
        match self.pids.len() {
            1 => first,
            count => format!("{first} and {}", other_processes_text(count - 1)),
        }
    }
}

/// Returns the text `1 other process` or `4 other processes`.
fn other_processes_text(count: usize) -> String {
    match count {
        1 => "1 other process".to_owned(),
        count => format!("{count} other processes"),
    }
}

/// Returns a note on a process that was not recorded to the end. `None` if it was.
fn failure_note(pid: u32, recorded: &anyhow::Result<Recorded>) -> Option<String> {
    let text = match recorded {
        Err(error) => exit::error_chain(error),
        Ok(recorded) => match (recorded.early_end_text(None), &recorded.detach_error) {
            (Some(text), _) => text,
            (None, Some(error)) => exit::error_chain(error),
            (None, None) => return None,
        },
    };
    // Some texts name the process already.
    Some(match text.starts_with(&pid.to_string()) {
        true => text,
        false => format!("{pid}: {text}"),
    })
}

/// Adds to the error about an empty profile (`NO_DATA`) the commands and settings that may help. Returns other errors
/// unchanged.
fn add_remedy_if_empty(error: anyhow::Error, pid: u32) -> anyhow::Error {
    match exit::code_number_of_error(&error) {
        NO_DATA => with_exit_code(
            NO_DATA,
            format!(
                "{}{}; a longer recording samples more (`memprof record {pid} --for 5m`)",
                exit::error_chain(&error)
                    .replace("`memprof ledger`", &format!("`memprof ledger {pid}`")),
                unsampled_text(pid),
            ),
        ),
        _ => error,
    }
}

/// Returns the text about objects of the process's language that are in no profile, after a semicolon; empty if there
/// are none, or the process has ended.
fn unsampled_text(pid: u32) -> String {
    let kind = ProgramKinds::default().kind_for_pid(pid);
    let text = kind.language.and_then(unsampled_objects_text);
    text.map_or_else(String::new, |text| {
        format!("; {}", text.replace("PID", &pid.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn result(pid: u32, recorded: anyhow::Result<Recorded>) -> ProcessResult {
        ProcessResult {
            pid,
            name: pid.to_string(),
            recorded,
            notes: Vec::new(),
        }
    }

    fn ended(pid: u32, end: SamplingEnd, detach_error: Option<anyhow::Error>) -> ProcessResult {
        let recorded = Recorded {
            detach_error,
            ..Recorded::without_profile(pid, end)
        };
        result(pid, Ok(recorded))
    }

    fn whole(pid: u32) -> ProcessResult {
        ended(pid, SamplingEnd::Time, None)
    }

    fn killed(pid: u32) -> ProcessResult {
        let reason = "has ended by signal 9".to_owned();
        ended(pid, SamplingEnd::Host(reason), None)
    }

    fn refused(pid: u32) -> ProcessResult {
        result(pid, Err(anyhow::anyhow!("it is linked statically")))
    }

    fn changed(pid: u32) -> ProcessResult {
        let error = anyhow::anyhow!("{pid} detaches when it goes on");
        ended(pid, SamplingEnd::Time, Some(error))
    }

    #[test]
    fn failures_are_notes_unless_no_process_was_recorded() {
        let check = |processes: Vec<_>, failed: Option<usize>, notes: &[&str]| {
            let recorded = RecordedProcesses::new(processes, Vec::new());
            assert_eq!(recorded.failed_index(), failed, "{recorded:?}");
            assert_eq!(recorded.failure_notes(failed), notes);
        };
        check(vec![whole(7)], None, &[]);
        check(vec![killed(7)], Some(0), &[]);
        let killed_note = "8 has ended by signal 9; it left no profile";
        let refused_note = "9: it is linked statically";
        check(
            vec![whole(7), killed(8), refused(9)],
            None,
            &[killed_note, refused_note],
        );
        check(
            vec![refused(7), killed(8), refused(9)],
            Some(0),
            &[killed_note, refused_note],
        );
        check(vec![refused(9), whole(7)], None, &[refused_note]);
        check(vec![killed(8), changed(7)], Some(1), &[killed_note]);
    }

    #[test]
    fn dumps_are_read_where_they_were_written() {
        let dumped = |pid, text: &str| {
            let mut file = ScratchFile::new().unwrap();
            file.append(&mut text.as_bytes()).unwrap();
            let mut dumped = whole(pid);
            dumped.recorded.as_mut().unwrap().profile = Some(file);
            dumped
        };
        let dump = |count| {
            let values = format!("  t*: {count}: 64 [0: 0]\n");
            format!("heap_v2/1\n{values}@ 0x1000\n{values}\nMAPPED_LIBRARIES:\n")
        };
        let texts = [dump(1), "no dump\n".to_owned(), dump(2)];
        let processes = texts
            .iter()
            .zip(7..)
            .map(|(text, pid)| dumped(pid, text))
            .collect();
        let recorded = RecordedProcesses::new(processes, Vec::new());
        let mut notes = Vec::new();
        let dumps = recorded.readable_dumps(&mut notes).unwrap().unwrap();
        assert_eq!((&*dumps.pids, notes.len()), (&[7, 9][..], 1));
        let written: Vec<_> = recorded
            .successful_recordings()
            .map(|recorded| recorded.profile.as_ref().unwrap().path())
            .collect();
        assert_eq!(dumps.files, [&*written[0], &*written[2]]);
        let mut read = String::new();
        open_dumps(&dumps.files)
            .unwrap()
            .read_to_string(&mut read)
            .unwrap();
        assert_eq!(read, format!("{}{}", texts[0], texts[2]));
    }

    #[test]
    fn notes_on_many_processes_are_few() {
        let processes = [whole(7)].into_iter().chain((100..120).map(refused));
        let recorded = RecordedProcesses::new(processes.collect(), (200..210).collect());
        let notes = recorded.failure_notes(None);
        assert_eq!(notes.len(), MAX_NAMED + 2);
        assert_eq!(
            notes[MAX_NAMED],
            "12 more processes were not recorded to the end"
        );
        assert_eq!(
            notes[MAX_NAMED + 1],
            "10 descendants were left out, because at most 64 are recorded: 200, 201, 202, 203, 204, 205, 206, 207, …"
        );
    }
}
