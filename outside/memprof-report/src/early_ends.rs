//! Note on samples whose stacks lack their outermost frames: the missing callers have too small cumulative values.

use crate::profile::{EarlyEnds, Profile};

/// Reasons and objects that the note names.
const MAX_SHOWN: usize = 3;

/// Names of reasons in memprof's dumps, and their texts.
const REASON_TEXTS: [(&str, &str); 5] = [
    ("too-many-frames", "more than 128 frames"),
    ("unreadable-stack", "unreadable stack"),
    (
        "unreadable-frame-information",
        "call frame information that memprof cannot follow",
    ),
    (
        "unknown-code",
        "code of no file, without a frame pointer; java -XX:+PreserveFramePointer keeps one",
    ),
    (
        "no-frame-information",
        "code without call frame information and frame pointer",
    ),
];

/// Returns a note on stacks that end early: their share of the samples, the reasons and the files. `None` if all stacks
/// are whole.
pub(crate) fn early_ends_note(profile: &Profile) -> Option<String> {
    let origin = &profile.origin;
    format_early_ends_note(&origin.early_ends, origin.samples.unwrap_or(0))
}

/// Formats a note on stacks that end early, by reason and file. `samples` is the number of all samples, also of those
/// whose stacks are whole. `None` if no stack ends early.
fn format_early_ends_note(ends: &[EarlyEnds], samples: u64) -> Option<String> {
    let early = ends
        .iter()
        .fold(0_u64, |sum, each| sum.saturating_add(each.samples));
    if early == 0 {
        return None;
    }
    let share = 100.0 * early as f64 / samples.max(early) as f64;
    let shown: Vec<_> = ends.iter().take(MAX_SHOWN).map(early_end_text).collect();
    let more = match ends.len().saturating_sub(MAX_SHOWN) {
        0 => "",
        _ => ", …",
    };
    Some(format!(
        "the stacks of {share:.1} % of the samples end early ({early} of {samples}), so their outer callers are missing: \
         {}{more}",
        shown.join(", ")
    ))
}

/// Formats the number of stacks that end early for one reason in one file: `12 in libx.so.1 (code without call frame
/// information and frame pointer)`; without `in libx.so.1` if the code is in no file. A reason that is not in
/// [`REASON_TEXTS`] is shown as the dump names it.
fn early_end_text(ends: &EarlyEnds) -> String {
    let EarlyEnds {
        samples,
        reason,
        object,
    } = ends;
    let known = REASON_TEXTS.iter().find(|(name, _)| name == reason);
    let reason = known.map_or(reason.as_str(), |(_, text)| text);
    match object {
        Some(path) => {
            let file = path.rsplit('/').next().unwrap_or(path);
            format!("{samples} in {file} ({reason})")
        }
        None => format!("{samples} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_share_reasons_and_files() {
        let ends = |samples, reason: &str, object: Option<&str>| EarlyEnds {
            samples,
            reason: reason.to_owned(),
            object: object.map(str::to_owned),
        };
        assert_eq!(format_early_ends_note(&[], 100), None);
        let all = [
            ends(10, "no-frame-information", Some("/usr/lib/libcrypto.so.3")),
            ends(2, "too-many-frames", None),
        ];
        let expected = "the stacks of 12.0 % of the samples end early (12 of 100), so their outer callers are missing: 10 \
                        in libcrypto.so.3 (code without call frame information and frame pointer), 2 (more than 128 \
                        frames)";
        assert_eq!(format_early_ends_note(&all, 100).as_deref(), Some(expected));
        let later = [ends(1, "a-later-reason", Some("x"))];
        assert!(
            format_early_ends_note(&later, 0)
                .unwrap()
                .ends_with("1 in x (a-later-reason)")
        );
    }
}
