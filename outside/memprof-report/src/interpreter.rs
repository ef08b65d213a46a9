//! Advice for programs that run in an interpreter, whose functions the C stack does not show.

use std::collections::HashMap;

use crate::code_origin::{CodeOrigin, CodeOrigins, OriginRules, library_stem};
use crate::names::Frame;
use crate::profile::SampleType;
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Share of the total from which a note is given, in percent.
const MIN_SHARE_PERCENT: f64 = 20.0;

/// Name of HotSpot's library, without suffix and version.
const JVM: &str = "libjvm";

/// File names of interpreters, without versions, and the tools to use instead.
const INTERPRETERS: &[(&[&str], &str)] = &[
    (
        &["python", "libpython"],
        "Python's own functions are not in this profile; `tracemalloc` or memray name them; its objects of \
         up to 512 bytes are in it only if the program ran with PYTHONMALLOC=malloc",
    ),
    (
        &["node", "libnode"],
        "JavaScript's own functions have names where node runs with `--perf-basic-prof`; for its objects use \
         `--heapsnapshot-signal` or the inspector",
    ),
    (
        &["libjvm"],
        "Java's compiled methods have names after `jcmd PID Compiler.perfmap` (JDK 17 and newer), while the process \
         runs; `jcmd PID GC.class_histogram` counts Java's objects",
    ),
    (
        &["ruby", "libruby"],
        "Ruby's own functions are not in this profile; `ObjectSpace.trace_object_allocations` names them",
    ),
    (
        &["perl", "libperl"],
        "Perl's own functions are not in this profile; Devel::NYTProf or Devel::Size look at them",
    ),
    (
        &["php", "libphp"],
        "PHP's own functions are not in this profile; the extension memprof names them",
    ),
];

/// Limit of a profile with the functions of a Python program, of a memprof that did not sample small objects.
const SMALL_OBJECTS: &str = "Python's objects of up to 512 bytes are in this profile only if the program ran with \
                             PYTHONMALLOC=malloc; `memprof holders PID` shows what holds them";

/// Place of the name of a type where a function has its file.
const OBJECT_FILE: &str = "<object>";
/// Most types in the note.
const MAX_TYPES: usize = 5;

/// Returns a note on Python's objects of up to 512 bytes, whose stacks end in a frame with the object's type: their
/// share of the total, and the shares of the `MAX_TYPES` types with most. `None` if the objects have no value.
fn small_objects_note(named: &SymbolizedProfile, sample_type: SampleType) -> Option<String> {
    let names = &named.names;
    let mut by_type = HashMap::<&str, i128>::new();
    let mut total = 0_i128;
    for sample in &named.profile.samples {
        let value = i128::from(sample.values[sample_type]);
        total += value;
        let leaf = named.profile.stacks.frames(sample.stack).first();
        let leaf = leaf.filter(|id| names.is_managed_word(**id));
        if let Some(frame) = leaf.and_then(|id| names.frames(*id).first())
            && frame
                .file
                .is_some_and(|file| names.strings.get(file) == OBJECT_FILE)
        {
            *by_type
                .entry(names.strings.get(frame.function))
                .or_default() += value;
        }
    }
    let all: i128 = by_type.values().sum();
    let percent = |value: i128| format!("{:.0} %", 100.0 * value as f64 / total.max(1) as f64);
    let mut types: Vec<_> = by_type
        .into_iter()
        .filter(|(_, value)| *value > 0)
        .collect();
    types.sort_by_key(|(name, value)| (-value, *name));
    let types = types.iter().take(MAX_TYPES);
    let types: Vec<_> = types
        .map(|(name, value)| format!("{name} {}", percent(*value)))
        .collect();
    (all > 0).then(|| {
        format!(
            "{} are Python's objects of up to 512 bytes, by type: {}; `--flat` has their rows",
            percent(all),
            types.join(", ")
        )
    })
}

/// Returns advice for an interpreted program.
///
/// If the profile has the program's functions, the advice is a note on Python's small objects: their types, or that
/// they may be missing. Otherwise it gives the share of the memory that ends in an interpreter, for Java the share of
/// stacks without a named method, and a tool that shows the functions. `None` if no mapped file is a known interpreter,
/// if the share is below `MIN_SHARE_PERCENT`, or if the small objects have no value.
pub(crate) fn interpreter_advice(
    named: &SymbolizedProfile,
    sample_type: SampleType,
    origin_rules: &OriginRules,
) -> Option<String> {
    let profile = &named.profile;
    if named.names.has_managed_words() {
        return match named.names.has_objects_line {
            true => small_objects_note(named, sample_type),
            false => Some(SMALL_OBJECTS.to_owned()),
        };
    }
    let (file, advice) = profile.mappings.iter().find_map(|mapping| {
        let file = mapping.file_name();
        Some((file, advice_for_file(file)?))
    })?;
    // HotSpot's functions are a library's. What Java code called has a frame of a method, if that has a name.
    if library_stem(file) == JVM {
        let share = percent_of_samples(named, sample_type, |frames| {
            !frames.iter().any(|id| is_named_java_method(named, *id))
        });
        return (share >= MIN_SHARE_PERCENT).then(|| advice_text(share, file, advice));
    }
    let origins = CodeOrigins::new(named, origin_rules);
    let by_address: Vec<CodeOrigin> = (0..profile.stacks.addresses().len())
        .map(|index| origins.origins(AddressId(index as u32)).max())
        .map(Option::unwrap_or_default)
        .collect();
    let share = percent_of_samples(named, sample_type, |frames| {
        let most = frames.iter().map(|id| by_address[id.0 as usize]).max();
        most == Some(CodeOrigin::Interpreter)
    });
    (share >= MIN_SHARE_PERCENT).then(|| advice_text(share, file, advice))
}

/// Formats advice after the reason for it: the share of the total that ends in an interpreter, in percent, and the
/// interpreter's file.
fn advice_text(share: f64, file: &str, advice: &str) -> String {
    format!("{share:.0} % ends in {file}: {advice}")
}

/// Returns the share in the total, in percent, of the samples for whose frames `is_counted` is true. It gets the frames
/// without the allocator's. A negative value counts as a positive one.
fn percent_of_samples(
    named: &SymbolizedProfile,
    sample_type: SampleType,
    is_counted: impl Fn(&[AddressId]) -> bool,
) -> f64 {
    let (mut total, mut counted) = (0_i128, 0_i128);
    for sample in &named.profile.samples {
        let value = i128::from(sample.values[sample_type].unsigned_abs());
        total += value;
        counted += value * i128::from(is_counted(named.program_frames(sample.stack)));
    }
    100.0 * counted as f64 / total.max(1) as f64
}

/// Part of HotSpot that runs all methods that are not compiled, as its perf map names it.
const HOTSPOT_INTERPRETER: &str = "Interpreter";

/// Returns whether an address is in a method that HotSpot compiled, and has that method's name. An offset in a region
/// of memory is no name.
fn is_named_java_method(named: &SymbolizedProfile, id: AddressId) -> bool {
    let names = &named.names;
    let mapping = named.profile.mapping_of_frame(id);
    let in_memory = mapping.is_some_and(|index| !named.profile.mappings[index].is_file());
    let is_method =
        |frame: &Frame| frame.named && names.strings.get(frame.function) != HOTSPOT_INTERPRETER;
    in_memory && names.frames(id).iter().any(is_method)
}

/// Returns advice on how to see the functions of the program that an interpreter runs. `None` if `file` is no known
/// interpreter.
fn advice_for_file(file: &str) -> Option<&'static str> {
    let stem = library_stem(file);
    INTERPRETERS
        .iter()
        .find(|(files, _)| files.contains(&stem))
        .map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::advice_for_file;

    #[test]
    fn interpreter_has_advice() {
        let python = advice_for_file("python3.11").unwrap();
        assert!(python.contains("tracemalloc") && python.contains("PYTHONMALLOC=malloc"));
        assert!(
            advice_for_file("libnode.so.108")
                .is_some_and(|advice| advice.contains("--heapsnapshot"))
        );
        assert!(advice_for_file("libjvm.so").is_some_and(|advice| advice.contains("perfmap")));
        assert_eq!(advice_for_file("redis-server"), None);
        assert_eq!(advice_for_file("node_exporter"), None);
    }
}
