//! Notes on calls of `malloc` and `free` that the sampler did not see: the profile then shows freed memory as in use,
//! or lacks memory.

use crate::profile::{Profile, SampleType, UnseenFrees};
use crate::render::format_amount;

/// Remedy for calls that memprof's sampler does not see.
const REMEDY: &str = "`memprof attach PID --entries` lets it see every call";

/// Returns a note on frees that the sampler did not see, and then one on allocations; neither if it saw them all.
pub(crate) fn unseen_calls_notes(profile: &Profile) -> impl Iterator<Item = String> + use<> {
    let frees = profile.origin.unseen_frees.and_then(unseen_frees_note);
    let bytes = profile
        .origin
        .unseen_allocation_bytes
        .filter(|bytes| *bytes > 0);
    let allocations = bytes.map(|bytes| {
        format!(
            "about {} in use are not in it, though they were allocated while memprof sampled: by calls that it does not \
             see, of the dynamic loader (thread-local storage), of a library in its first moments, or by an address of \
             malloc that the program keeps; {REMEDY}",
            format_bytes(bytes)
        )
    });
    frees.into_iter().chain(allocations)
}

/// Returns the note on unseen frees. `None` if both counts are 0.
fn unseen_frees_note(frees: UnseenFrees) -> Option<String> {
    let sign = match frees {
        UnseenFrees {
            samples: 0,
            bytes: 0,
        } => return None,
        UnseenFrees { samples, bytes: 0 } => format!(
            "{samples} sampled blocks were given out again though memprof saw no free of them: values in use may hold \
             freed memory"
        ),
        UnseenFrees { bytes, .. } => format!(
            "about {} of what it shows in use was freed: it shows more than the allocator itself holds, so none of its \
             rows proves a leak",
            format_bytes(bytes)
        ),
    };
    Some(format!(
        "{sign}; the program frees by addresses that it keeps in its data, which memprof does not see; {REMEDY}"
    ))
}

/// Formats a number of bytes with its unit.
fn format_bytes(bytes: u64) -> String {
    format_amount(
        i64::try_from(bytes).unwrap_or(i64::MAX),
        SampleType::InuseSpace,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_of_unseen_frees_is_noted() {
        let check = |samples, bytes, expected: Option<&str>| {
            let note = unseen_frees_note(UnseenFrees { samples, bytes });
            match expected {
                None => assert_eq!(note, None),
                Some(expected) => assert!(note.as_ref().unwrap().starts_with(expected), "{note:?}"),
            }
        };
        check(0, 0, None);
        check(3, 0, Some("3 sampled blocks were given out again"));
        check(
            0,
            5 << 30,
            Some("about 5.00GiB of what it shows in use was freed"),
        );
        check(
            3,
            5 << 30,
            Some("about 5.00GiB of what it shows in use was freed"),
        );
    }
}
