//! Pseudo frames as comments, for texts whose stacks have none because other tools would take them for addresses:
//!
//! ```text
//! # marks: label=1 born=1795299940 of 1 4 9
//! ```
//!
//! The numbers after `of` are those of the stacks, in the order of the text, from 1.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;

use super::code_history::CodeHistory;
use crate::managed::{is_managed_word_text, split_managed_words};
use crate::profile::Sample;
use crate::pseudo_frames::{StackMarks, last_pseudo_frame, strip_pseudo_frames};

/// Most stacks per comment, to limit the length of lines.
const MAX_STACKS_PER_COMMENT: usize = 64;

/// Pseudo frames that were removed from the stacks of a text.
#[derive(Debug, Default)]
pub(super) struct StrippedFrames {
    /// Number of stacks so far.
    stacks: u32,
    /// Stacks by the text of their pseudo frames, each with a blank before it.
    stacks_by_marks: BTreeMap<Vec<u8>, Vec<u32>>,
    /// Stacks by the places and the ids of their managed words, as
    /// [`restore_managed_words`](crate::managed_frames::restore_managed_words) reads them.
    stacks_by_managed: BTreeMap<String, Vec<u32>>,
}

impl StrippedFrames {
    /// Removes managed words, which stand for functions of an interpreted language, and pseudo frames, which stand for
    /// data, from the line of the next stack. Records the removed words under the stack's number, counted from 1.
    pub(super) fn strip<'t>(&mut self, line: &'t [u8]) -> Cow<'t, [u8]> {
        self.stacks += 1;
        let rest = strip_pseudo_frames(line);
        let marks = &line[rest.len()..];
        if !marks.is_empty() {
            match self.stacks_by_marks.get_mut(marks) {
                Some(stacks) => stacks.push(self.stacks),
                None => drop(
                    self.stacks_by_marks
                        .insert(marks.to_vec(), vec![self.stacks]),
                ),
            }
        }
        if !rest.split(|byte| *byte == b' ').any(is_managed_word_text) {
            return Cow::Borrowed(rest);
        }
        let (native, managed) = split_managed_words(rest);
        let stacks = self.stacks_by_managed.entry(managed).or_default();
        stacks.push(self.stacks);
        Cow::Owned(native)
    }

    /// Returns whether nothing was removed.
    pub(super) fn is_empty(&self) -> bool {
        self.stacks_by_marks.is_empty() && self.stacks_by_managed.is_empty()
    }

    /// Returns the comments that list the removed managed words, which stand for functions of an interpreted language,
    /// with the numbers of their stacks, from 1: `# managed: PLACE:ID,… of STACK…`, without newlines.
    pub(super) fn managed_word_comments(&self) -> impl Iterator<Item = String> {
        self.stacks_by_managed.iter().flat_map(|(managed, stacks)| {
            let parts = stacks.chunks(MAX_STACKS_PER_COMMENT);
            parts.map(move |part| {
                let stacks: Vec<String> = part.iter().map(u32::to_string).collect();
                format!("# managed: {managed} of {}", stacks.join(" "))
            })
        })
    }

    /// Returns the comments that list the removed pseudo frames with the numbers of their stacks, from 1: `# marks:
    /// MARK… of STACK…`, without newlines.
    pub(super) fn pseudo_frame_comments(&self) -> impl Iterator<Item = String> {
        let stacks_by_marks = self.stacks_by_marks.iter();
        let parts = stacks_by_marks.flat_map(|(marks, stacks)| {
            let parts = stacks.chunks(MAX_STACKS_PER_COMMENT);
            parts.map(move |part| (marks, part))
        });
        parts.map(|(marks, stacks)| {
            let mut comment = "# marks:".to_owned();
            append_pseudo_frames(marks, &mut comment);
            comment += " of";
            for stack in stacks {
                comment += &format!(" {stack}");
            }
            comment
        })
    }
}

/// Appends pseudo frames to a comment, in their order, as ` label=1 born=1795299940`. `marks` is their text at the end
/// of a stack's line.
fn append_pseudo_frames(marks: &[u8], comment: &mut String) {
    let from_last = iter::successors(last_pseudo_frame(marks), |(rest, _)| {
        last_pseudo_frame(rest)
    });
    let from_last: Vec<_> = from_last.collect();
    for (_, mark) in from_last.iter().rev() {
        *comment += &format!(" {mark}");
    }
}

/// Restores removed pseudo frames from a comment, given its text after `# marks: `: sets the allocation times, labels
/// and code generations of the `samples` that it lists by number. Ignores malformed parts.
pub(super) fn restore_pseudo_frames(
    comment: &str,
    samples: &mut [Sample],
    history: &mut CodeHistory,
) {
    let Some((words, stacks)) = comment.split_once(" of ") else {
        return;
    };
    let mut marks = StackMarks::default();
    for mark in words.split(' ').filter_map(|word| word.parse().ok()) {
        marks.add(mark);
    }
    let numbers = stacks.split(' ').filter_map(|number| number.parse().ok());
    for index in numbers.filter_map(|number: usize| number.checked_sub(1)) {
        if let Some(sample) = samples.get_mut(index) {
            sample.alloc_time = marks.alloc_time.or(sample.alloc_time);
            sample.label = marks.label.or(sample.label);
            history.set_generation(index, marks.code_generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc_time::AllocTime;
    use crate::label::LabelId;
    use crate::profile::SampleValues;
    use crate::stacks::StackId;

    const FIRST: &str = "0x4d50010000000003";
    const SECOND: &str = "0x4d50010000000005";
    const ALLOC_TIME: &str = "0x4d50020000000007";

    #[test]
    fn comments_list_stacks_of_each_set_of_pseudo_frames() {
        let check = |lines: &[&str], rests: &[&str], comments: &[&str]| {
            let mut stripped = StrippedFrames::default();
            for (line, rest) in lines.iter().zip(rests) {
                assert_eq!(&*stripped.strip(line.as_bytes()), rest.as_bytes());
            }
            assert_eq!(
                stripped.pseudo_frame_comments().collect::<Vec<_>>(),
                comments
            );
            assert_eq!(stripped.is_empty(), comments.is_empty());
        };
        check(&["@ 0x1 0x2", "@"], &["@ 0x1 0x2", "@"], &[]);
        check(
            &[
                &format!("@ 0x1 {FIRST} {ALLOC_TIME}"),
                &format!("@ 0x1 {SECOND}"),
                "@ 0x1",
                &format!("@ 0x2 {FIRST} {ALLOC_TIME}"),
            ],
            &["@ 0x1", "@ 0x1", "@ 0x1", "@ 0x2"],
            &["# marks: label=1 born=3 of 1 4", "# marks: label=2 of 2"],
        );
        let mut stripped = StrippedFrames::default();
        let line = format!("@ 0x1 0x4d50040000000007 0x2 {FIRST}");
        assert_eq!(&*stripped.strip(line.as_bytes()), b"@ 0x1 0x2");
        let comments: Vec<_> = stripped.managed_word_comments().collect();
        assert_eq!(comments, ["# managed: 1:3 of 1"]);
        let mut stripped = StrippedFrames::default();
        let line = format!("@ 0x1 {FIRST}");
        for _ in 0..=MAX_STACKS_PER_COMMENT {
            assert_eq!(&*stripped.strip(line.as_bytes()), b"@ 0x1");
        }
        let last = stripped.pseudo_frame_comments().last();
        assert_eq!(
            last,
            Some(format!(
                "# marks: label=1 of {}",
                MAX_STACKS_PER_COMMENT + 1
            ))
        );
    }

    #[test]
    fn line_of_pseudo_frames_needs_no_deep_call_stack() {
        const COUNT: usize = 100_000;
        let line = format!("@ 0x1{}", format!(" {FIRST}").repeat(COUNT));
        let mut stripped = StrippedFrames::default();
        assert_eq!(&*stripped.strip(line.as_bytes()), b"@ 0x1");
        let comment = format!("# marks:{} of 1", " label=1".repeat(COUNT));
        assert!(stripped.pseudo_frame_comments().eq([comment]));
    }

    #[test]
    fn blanks_at_the_end_are_ignored() {
        let mut stripped = StrippedFrames::default();
        let line = format!("@ 0x1 {FIRST}  {ALLOC_TIME} \t");
        assert_eq!(stripped.strip(line.as_bytes()).trim_ascii_end(), b"@ 0x1");
        assert!(
            stripped
                .pseudo_frame_comments()
                .eq(["# marks: label=1 born=3 of 1"])
        );
    }

    #[test]
    fn malformed_comment_is_ignored() {
        let check = |comment: &str, expected: [[Option<u32>; 2]; 2]| {
            let mut samples =
                [0, 1].map(|stack| Sample::new(StackId(stack), SampleValues::default()));
            restore_pseudo_frames(comment, &mut samples, &mut CodeHistory::default());
            let found = samples.map(|sample| {
                let Sample {
                    label, alloc_time, ..
                } = sample;
                [
                    label.map(LabelId::number),
                    alloc_time.map(AllocTime::seconds),
                ]
            });
            assert_eq!(found, expected, "{comment}");
        };
        let none = [None; 2];
        check("label=7 of 1", [[Some(7), None], none]);
        check("label=7 born=3 of 1 2", [[Some(7), Some(3)]; 2]);
        check("label=1 label=0 of 2", [none, [Some(0), None]]);
        check(
            "born=3 of 0 3 18446744073709551616 -1 x 2",
            [none, [None, Some(3)]],
        );
        check("label=4294967295 born=-1 of 1", [none; 2]);
        check("label=7", [none; 2]);
        check("0x4d50010000000003 x=1 of 1", [none; 2]);
        check(" of ", [none; 2]);
    }
}
