//! Runs all steps from a dump to a report.

mod base_notes;
mod empty_profile;
mod input_profile;
mod loaded_profile;
mod merged_profile;
mod notes;

use std::io::{BufRead, Write};

use self::base_notes::{other_program_warning, other_start_warning};
use self::empty_profile::{ONLY_MEMPROF, all_zero_reason, empty_reason, is_all_zero};
use self::input_profile::read_input;
use self::loaded_profile::check_same_unit;
pub use self::merged_profile::join_notes;
use self::notes::{lost_samples_note, missing_stacks_note, unattributed_note};

use crate::early_ends::early_ends_note;
use crate::error::{Error, Result};
use crate::filter::drop_memprof_stacks;
use crate::interpreter::interpreter_advice;
use crate::module_names::ModuleNames;
use crate::names::replace_unprintable;
use crate::options::{Format, Options};
use crate::profile::{Profile, SampleType};
use crate::program_link::program_link_of_dump;
use crate::render::{self, format_amount};
use crate::symbolize::{Progress, Sources};
use crate::symbolized_profile::SymbolizedProfile;
use crate::unseen_calls::unseen_calls_notes;

/// A profile to read, or the dumps of several processes, one after the other, which give one profile.
pub struct Input<'a> {
    /// Name in the report: the file's name.
    pub name: &'a str,
    /// A dump as it was written, or compressed with gzip.
    pub bytes: &'a mut dyn BufRead,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Reads a profile, and its base for a comparison, and writes the report. `sources` say, for each dump in an input,
/// where its binaries are found; the last ones serve all further dumps. Without `sources`, functions are shown as
/// offsets. `progress` is called with the numbers of symbolized files and of all files.
///
/// Returns warnings and notes for the reader of the report, one line each.
///
/// # Errors
/// The options contradict each other or the input, an input cannot be read or is empty, or `out` fails.
pub fn write_report(
    input: Input<'_>,
    base: Option<Input<'_>>,
    sources: &[Sources],
    options: &Options,
    progress: Progress<'_>,
    out: &mut dyn Write,
) -> Result<Vec<String>> {
    options.check_combination(&input, base.as_ref())?;
    let name = replace_unprintable(input.name).into_owned();
    let input_error = |name: &str, error| Error::Input {
        name: name.to_owned(),
        source: Box::new(error),
    };
    let load = |input: Input<'_>, name: &str| {
        let loaded = read_input(input, sources, options, progress);
        loaded.map_err(|error| input_error(name, error))
    };
    let profile = load(input, &name)?;
    let base_name = base
        .as_ref()
        .map(|base| replace_unprintable(base.name).into_owned());
    let base = base.map(|base| load(base, base_name.as_deref().unwrap_or_default()));
    let base = base.transpose()?;
    let options = &Options {
        sample_type: profile.sample_type,
        ..options.clone()
    };
    if let Some(base) = &base {
        check_same_unit(&profile, base).map_err(|error| input_error(&name, error))?;
    }
    let mut modules = ModuleNames::new(
        [Some(&profile), base.as_ref()]
            .into_iter()
            .flatten()
            .map(|loaded| (&loaded.profile, &loaded.names)),
    );
    for link in sources.iter().filter_map(|sources| sources.link.as_ref()) {
        modules.rename_by_link(link);
    }
    let machine = sources.first().and_then(|sources| sources.machine.as_ref());
    for loaded in [Some(&profile), base.as_ref()].into_iter().flatten() {
        let link = program_link_of_dump(&loaded.profile, machine);
        link.iter().for_each(|link| modules.rename_by_link(link));
    }
    let mut profile = profile.into_symbolized(&modules, options);
    let mut base = base.map(|base| base.into_symbolized(&modules, options));
    let empty_error = |profile: &Profile, reason: Option<&str>| {
        let reason = reason.map_or_else(|| empty_reason(profile, options), str::to_owned);
        input_error(&name, Error::Empty { reason })
    };
    // With a base, an empty profile is a result: the memory is gone.
    if base.is_none() && profile.profile.samples.is_empty() {
        return Err(empty_error(&profile.profile, None));
    }
    if base.is_none()
        && let Some(reason) = all_zero_reason(&profile.profile, options)
    {
        return Err(empty_error(&profile.profile, Some(reason)));
    }
    if let Some(base) = &base {
        let warnings = [other_program_warning, other_start_warning];
        let warnings = warnings.map(|warning| warning(&profile.profile, &base.profile));
        profile
            .profile
            .warnings
            .extend(warnings.into_iter().flatten());
    }
    if options.normalize
        && let Some(base) = &mut base
    {
        scale_base_to_total(&mut base.profile, &profile.profile, options.sample_type)?;
    }
    profile
        .profile
        .warnings
        .extend(lost_samples_note(&profile.profile));
    // Unseen calls make every row doubtful, so their notes come first.
    let unseen = unseen_calls_notes(&profile.profile);
    profile.profile.warnings.splice(0..0, unseen);
    let early_ends = early_ends_note(&profile.profile);
    profile.profile.warnings.extend(early_ends);
    let unattributed = unattributed_note(&profile.profile);
    profile.profile.warnings.extend(unattributed);
    let stackless = missing_stacks_note(&profile.profile, options.sample_type);
    profile.profile.warnings.extend(stackless);
    if !options.format.is_for_tools() && !options.origin_rules.flat {
        for named in [Some(&mut profile), base.as_mut()].into_iter().flatten() {
            drop_memprof_stacks_with_note(named, options.sample_type);
        }
        if base.is_none() && is_all_zero(&profile.profile, options.sample_type) {
            return Err(empty_error(&profile.profile, Some(ONLY_MEMPROF)));
        }
        let advice = interpreter_advice(&profile, options.sample_type, &options.origin_rules);
        profile.profile.warnings.extend(advice);
    }
    let left_out = render::negative_values_note(&profile, base.as_ref(), options);
    profile.profile.warnings.extend(left_out);
    let notes = options.notes.iter().cloned();
    profile.profile.warnings.splice(0..0, notes);
    let render_input = render::RenderInput {
        name,
        profile: &profile,
        base_name,
        base: base.as_ref(),
    };
    render::render(&render_input, options, out)?;
    out.flush()?;
    Ok(render_input
        .notes()
        .into_iter()
        .map(str::to_owned)
        .collect())
}

/// Removes memprof's own stacks, and adds a note on their size to the warnings unless it is 0.
fn drop_memprof_stacks_with_note(named: &mut SymbolizedProfile, sample_type: SampleType) {
    let dropped = drop_memprof_stacks(&mut named.profile, &named.names, &named.depths);
    if dropped[sample_type] != 0 {
        let amount = match sample_type.unit() {
            "bytes" => format_amount(dropped[sample_type], sample_type),
            _ => format!("{} objects", dropped[sample_type]),
        };
        let note = format!("{amount} of memprof's own left out; --flat shows it");
        named.profile.warnings.push(note);
    }
}

/// Parses a profile, undoes the sampling, symbolizes and filters it. Without `sources`, a function that the file does
/// not name is named by offset.
///
/// # Errors
/// The profile cannot be read, or lacks the sample type, ages or label that the options name; only binaries with
/// another build id exist.
pub fn read_profile(
    input: Input<'_>,
    sources: Option<&Sources>,
    options: &Options,
    progress: Progress<'_>,
) -> Result<SymbolizedProfile> {
    let sources = sources.map_or(&[][..], std::slice::from_ref);
    let loaded = read_input(input, sources, options, progress)?;
    let modules = ModuleNames::new([(&loaded.profile, &loaded.names)]);
    Ok(loaded.into_symbolized(&modules, options))
}

impl Options {
    /// Fails if options contradict each other, lack one another, or do not fit a report with a `base`, or without one.
    fn check_combination(&self, input: &Input<'_>, base: Option<&Input<'_>>) -> Result<()> {
        let problem = match (self.format, base) {
            (_, Some(_)) if self.ages || self.older.is_some() => {
                "--ages and --older look at one profile: leave --base out".into()
            }
            (format, _) if self.ages && !matches!(format, Format::Text | Format::Json) => {
                "--ages is for --format text and json".into()
            }
            (_, Some(_)) if self.by.is_some() || self.label.is_some() => {
                "--by and --label look at one profile: leave --base out".into()
            }
            (format, _) if self.by.is_some() && !matches!(format, Format::Text | Format::Json) => {
                "--by is for --format text and json".into()
            }
            (Format::Peek, _) if self.filter.focus.is_none() => {
                "peek needs --focus: the function to look at".into()
            }
            (Format::Jeprof, Some(base)) => jeprof_base_problem(input.name, base.name),
            (
                Format::Collapsed
                | Format::Flamegraph
                | Format::Html
                | Format::Pprof
                | Format::Jeprof,
                _,
            ) if self.top.is_some() => {
                "--top is for text, tree, peek, dot, svg and json; this format holds every stack"
                    .into()
            }
            (_, None) if self.normalize => "there is nothing to normalize without --base".into(),
            _ => return Ok(()),
        };
        Err(Error::Usage(problem))
    }
}

/// Text of the error for jeprof's format with a base; `new` and `base` are the names of both files. jeprof's
/// `ReadHeapProfile` silently skips lines with a negative count, so its totals would lack what shrank. jeprof itself
/// can subtract two files.
fn jeprof_base_problem(new: &str, base: &str) -> String {
    format!(
        "jeprof's file cannot hold what shrank; let jeprof compare two of them:\n\
         \x20 memprof report {base} --format jeprof -o base.jeprof\n\
         \x20 memprof report {new} --format jeprof -o new.jeprof\n\
         \x20 jeprof --text --base=base.jeprof new.jeprof\n\
         or write --format pprof, which holds it, for go tool pprof"
    )
}

/// Scales the values of `base` so that its total of `sample_type` is that of `profile`. Fails if the base's total is 0,
/// a total is negative, or a sum overflows.
fn scale_base_to_total(
    base: &mut Profile,
    profile: &Profile,
    sample_type: SampleType,
) -> Result<()> {
    let overflow = || Error::Overflow {
        problem: "the normalized base passes 63 bits".into(),
    };
    let total = |profile: &Profile| profile.totals().map(|totals| totals[sample_type] as f64);
    let (new, old) = total(profile).zip(total(base)).ok_or_else(overflow)?;
    if old <= 0.0 || new < 0.0 {
        return Err(Error::Usage(
            "the base cannot be normalized: its total is 0, or one of the totals is negative"
                .into(),
        ));
    }
    for value in base
        .samples
        .iter_mut()
        .flat_map(|sample| &mut sample.values.0)
    {
        *value = (*value as f64 * new / old).round() as i64;
    }
    base.totals().map(|_| ()).ok_or_else(overflow)
}
