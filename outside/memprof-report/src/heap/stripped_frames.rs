//! The marks of stacks as comments, for texts whose stacks have none because other tools take them for addresses:
//!
//! ```text
//! # marks: label=1 born=1795299940 of 1 4 9
//! ```
//!
//! The numbers behind `of` are those of the stacks, by their order in the text, from 1.

use std::collections::BTreeMap;

use crate::profile::Sample;
use crate::pseudo_frames::{StackMarks, last_pseudo_frame, strip_pseudo_frames};

/// Stacks that one comment names: lines stay short, whatever a profile holds.
const NAMED: usize = 64;

/// Marks that were taken off the stacks of a text.
#[derive(Debug, Default)]
pub(super) struct StrippedFrames {
    /// How many stacks were seen.
    stacks: u32,
    /// By the text of the marks, each behind a blank: the stacks that had them.
    marked: BTreeMap<Vec<u8>, Vec<u32>>,
}

impl StrippedFrames {
    /// The line of the next stack without its marks, which are remembered.
    pub(super) fn strip<'t>(&mut self, line: &'t [u8]) -> &'t [u8] {
        self.stacks += 1;
        let rest = strip_pseudo_frames(line);
        let marks = &line[rest.len()..];
        if !marks.is_empty() {
            match self.marked.get_mut(marks) {
                Some(stacks) => stacks.push(self.stacks),
                None => drop(self.marked.insert(marks.to_vec(), vec![self.stacks])),
            }
        }
        rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marked.is_empty()
    }

    /// The comments, without their newlines.
    pub(super) fn comments(&self) -> impl Iterator<Item = String> {
        let marked = self.marked.iter();
        let parts = marked.flat_map(|(marks, stacks)| {
            let parts = stacks.chunks(NAMED);
            parts.map(move |part| (marks, part))
        });
        parts.map(|(marks, stacks)| {
            let mut comment = "# marks:".to_owned();
            words(marks, &mut comment);
            comment += " of";
            for stack in stacks {
                comment += &format!(" {stack}");
            }
            comment
        })
    }
}

fn words(marks: &[u8], comment: &mut String) {
    if let Some((rest, mark)) = last_pseudo_frame(marks) {
        words(rest, comment);
        *comment += &format!(" {mark}");
    }
}

/// Puts back what a comment tells, behind its `# marks: `; what is not as above is left out.
pub(super) fn restore(comment: &str, samples: &mut [Sample]) {
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
    fn marks_are_told_with_the_stacks_that_had_them() {
        let check = |lines: &[&str], rests: &[&str], comments: &[&str]| {
            let mut taken = StrippedFrames::default();
            for (line, rest) in lines.iter().zip(rests) {
                assert_eq!(taken.strip(line.as_bytes()), rest.as_bytes());
            }
            assert_eq!(taken.comments().collect::<Vec<_>>(), comments);
            assert_eq!(taken.is_empty(), comments.is_empty());
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
        let mut taken = StrippedFrames::default();
        let line = format!("@ 0x1 {FIRST}");
        for _ in 0..=NAMED {
            assert_eq!(taken.strip(line.as_bytes()), b"@ 0x1");
        }
        let last = taken.comments().last();
        assert_eq!(last, Some(format!("# marks: label=1 of {}", NAMED + 1)));
    }

    #[test]
    fn hostile_comments_are_left_out() {
        let check = |comment: &str, expected: [[Option<u32>; 2]; 2]| {
            let mut samples =
                [0, 1].map(|stack| Sample::new(StackId(stack), SampleValues::default()));
            restore(comment, &mut samples);
            let found = samples.map(|sample| {
                let Sample {
                    label, alloc_time, ..
                } = sample;
                [
                    label.map(LabelId::number),
                    alloc_time.map(|AllocTime(second)| second),
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
