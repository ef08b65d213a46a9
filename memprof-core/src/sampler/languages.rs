//! Interpreters of the process whose programs' functions samples name.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Mutex;

use memprof_languages::{
    CPythonSymbols, LanguageCounts, Symbol, UnsupportedCPython, for_each_name, prepare_cpython,
};
use memprof_messages::{LanguageStatus, LanguagesChoice};

use super::python_objects::{self, PythonObjects};
use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};
use crate::allocators::symbols::{ExportedSymbols, resolve_executable_link};
use crate::dumps::escape::escape_word;
use crate::lock::lock;

/// Interpreters that the last activation found.
static FOUND: Mutex<Vec<Interpreter>> = Mutex::new(Vec::new());

/// An interpreter in the process.
#[derive(Clone, Debug)]
struct Interpreter {
    /// `PY_VERSION_HEX`, without the patch level if that is unknown.
    version: u32,
    path: String,
    /// Its objects' allocator, if it exports the functions.
    objects: Option<PythonObjects>,
    /// Reason why its frames are not read.
    off_because: Option<String>,
}

/// Reason for `languages=off`.
const OFF: &str = "languages=off was chosen";
/// Reason while an allocator's sampler takes the samples.
const ALLOCATORS_SAMPLER: &str =
    "the allocator's sampler takes the stacks; `activate sampler=memprof` reads its frames";

/// Finds the interpreters that are loaded now, and makes samples contain the functions of the program that the first
/// one runs. The interpreter's small objects are sampled once sampling starts, or at its next periodic maintenance.
///
/// No functions are named if `choice` is `Off`, if memprof's sampler does not take the samples (`is_sampled` is false),
/// if there is no memory for names, or if the interpreter's version is not supported. The reason is logged.
pub(crate) fn prepare_languages(choice: LanguagesChoice, is_sampled: bool) {
    let mut found: Vec<Interpreter> = loaded_objects::list_loaded_objects()
        .iter()
        .filter_map(find_cpython)
        .collect();
    let [first, others @ ..] = found.as_mut_slice() else {
        *lock(&FOUND) = found;
        python_objects::set_no_interpreter();
        return;
    };
    for other in others {
        let reason = || format!("the frames of {} are read", first.path);
        other.off_because.get_or_insert_with(reason);
    }
    let reason = match choice {
        LanguagesChoice::Off => Some(OFF.to_owned()),
        LanguagesChoice::Auto if !is_sampled => Some(ALLOCATORS_SAMPLER.to_owned()),
        LanguagesChoice::Auto => memprof_sampler::map_name_table()
            .err()
            .map(|_| "there is no memory for the table of names".to_owned()),
    };
    first.off_because = first.off_because.take().or(reason);
    memprof_languages::set_merging_enabled(first.off_because.is_none());
    // `PY_VERSION_HEX`: major, minor, micro, then level and serial.
    let [_, minor, ..] = first.version.to_be_bytes();
    python_objects::set_sampled_objects(first.objects, minor, first.off_because.clone());
    if let Some(reason) = &first.off_because {
        log::info!("{} {}: {reason}", language_name(), first.path);
    }
    *lock(&FOUND) = found;
}

/// Finds the `CPython` in `object`, which must be the program or a `libpython`, by the symbols that the object exports,
/// and prepares the reading of its frames. `None` if `object` is neither, or lacks one of the symbols. If its frames
/// cannot be read, the result contains the reason.
fn find_cpython(object: &LoadedObject) -> Option<Interpreter> {
    let name = object.path.file_name()?.to_string_lossy();
    if object.path != Path::new(EXECUTABLE) && !name.starts_with("libpython") {
        return None;
    }
    let exported = ExportedSymbols::keep_loaded(object)?;
    let symbol = |name: &CStr| exported.find(name);
    let size = |name: &CStr| symbol(name).map(|(address, size)| Symbol { address, size });
    let symbols = CPythonSymbols {
        runtime: size(c"_PyRuntime")?,
        eval_frame: size(c"_PyEval_EvalFrameDefault")?,
        code_type: symbol(c"PyCode_Type")?.0,
        unicode_type: symbol(c"PyUnicode_Type")?.0,
        version: symbol(c"Py_Version").map(|(address, _)| address),
    };
    let (version, reason) = match prepare_cpython(&symbols) {
        Ok(version) => (version, None),
        Err(error @ UnsupportedCPython::Version(version)) => (version, Some(error.to_string())),
        Err(error) => (0, Some(error.to_string())),
    };
    Some(Interpreter {
        version,
        path: resolve_executable_link(&object.path).display().to_string(),
        objects: python_objects::find_object_allocator(&exported, object),
        off_because: reason,
    })
}

/// Returns the name of the language in messages and dumps. There is only Python so far.
fn language_name() -> &'static str {
    "python"
}

impl Interpreter {
    /// Formats the version as `3.11.2`, or as `3.8` if only that part is known.
    fn version_text(&self) -> String {
        // The release level of a complete version is never 0.
        let [major, minor, micro, level] = self.version.to_be_bytes();
        match (self.version, level) {
            (0, _) => "of an unknown version".to_owned(),
            (_, 0) => format!("{major}.{minor}"),
            _ => format!("{major}.{minor}.{micro}"),
        }
    }

    /// Returns the reason why the interpreter's frames are not read: the one found at the last activation, or that
    /// reading was given up. `None` if they are read.
    fn unread_frames_reason(&self) -> Option<String> {
        let given_up = || {
            memprof_languages::is_frame_reading_given_up()
                .then(|| "its frames could not be read back, in 64 stacks of 64".to_owned())
        };
        self.off_because.clone().or_else(given_up)
    }
}

/// Returns the interpreters that the last activation found. Only the first has counts, because only its frames are
/// read.
pub(crate) fn language_status() -> Vec<LanguageStatus> {
    let found = lock(&FOUND);
    let (counts, names) = memprof_languages::walk_and_name_counts();
    let status = |(index, interpreter): (usize, &Interpreter)| {
        let is_read = index == 0;
        let LanguageCounts {
            samples,
            with_frames,
            ended_early,
            ..
        } = if is_read {
            counts
        } else {
            LanguageCounts::default()
        };
        LanguageStatus {
            language: language_name().to_owned(),
            version: interpreter.version_text(),
            runtime: interpreter.path.clone(),
            samples,
            with_frames,
            ended_early,
            names: if is_read { names } else { 0 },
            objects_off_because: match is_read {
                true => python_objects::unsampled_objects_reason(),
                false => interpreter.unread_frames_reason(),
            },
            off_because: interpreter.unread_frames_reason(),
        }
    };
    found.iter().enumerate().map(status).collect()
}

/// Returns the comment lines of a dump: each interpreter, with the reason if its frames are not read; whether the
/// interpreter's objects of up to 512 bytes are in the profile; and the function for each word that stands for one in
/// stacks.
///
/// ```text
/// # language: python 3.11.2 /usr/bin/python3.11
/// # language: python 3.16.0 /usr/bin/python3.16 off: its layout is unknown (known: 3.8 to 3.14)
/// # objects: python
/// # objects: python off: its allocator is not known
/// # frame: 0x4d50040000000007 python Leak.handle /srv/app.py 9
/// ```
pub(crate) fn language_comment_lines() -> Vec<String> {
    let mut lines: Vec<String> = language_status()
        .iter()
        .map(|status| {
            let [version, runtime] = [&status.version, &status.runtime];
            let words = [version, runtime].map(|word| escape_word(word.bytes()));
            let off = status.off_because.iter();
            let off: String = off.map(|reason| format!(" off: {reason}")).collect();
            format!("# language: {} {}{off}", status.language, words.join(" "))
        })
        .collect();
    if let Some(status) = language_status().first() {
        let off = status.objects_off_because.iter();
        let off: String = off.map(|reason| format!(" off: {reason}")).collect();
        lines.push(format!("# objects: {}{off}", status.language));
    }
    for_each_name(|name| {
        lines.push(format!(
            "# frame: {:#x} {} {} {} {}",
            name.word,
            language_name(),
            escape_word(name.function()),
            escape_word(name.file()),
            name.line
        ));
    });
    lines
}
