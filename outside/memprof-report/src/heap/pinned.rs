//! Reads profiles of pinned slabs (`# kind: pinned`): the free bytes of slabs that live objects keep from being
//! released, as the allocator counts them, shared out by samples. The objects of a line are its samples; one line
//! has the bytes that are not attributable.

use super::DumpReader;
use crate::profile::{SampleType, Sampling, UNATTRIBUTED};

impl DumpReader<'_> {
    /// Converts a profile of pinned slabs, slabs that few live objects keep from being released. It was read as a
    /// profile of growth, which has the same format. Its amounts are exact, and only shared out by samples. The line of
    /// the memory without a stack gets a count of 0. A profile that is sampled is not of pinned slabs: `is_pinned` is
    /// cleared.
    pub(super) fn convert_if_pinned_slabs(&mut self) {
        let profile = &mut self.profile;
        if !profile.is_pinned || profile.sampling != Sampling::None {
            profile.is_pinned = false;
            return;
        }
        profile.sampling = Sampling::Shared;
        let stacks = &profile.stacks;
        for sample in &mut profile.samples {
            let frames = stacks.frames(sample.stack).iter();
            if frames.map(|id| stacks.address(*id)).eq([UNATTRIBUTED]) {
                // This line has no samples; its count of 1 is for readers that require one.
                sample.values[SampleType::InuseObjects] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;
    use crate::profile::{Profile, SampleType, UNATTRIBUTED};

    fn read(text: &str) -> Profile {
        let mut profile =
            super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false)
                .unwrap()
                .swap_remove(0);
        crate::unsample(&mut profile).unwrap();
        profile
    }

    const STACKS: &str = "    30:     4000 [    30:     4000] @ 0x10 0x20\n\
                          \x20    1:      500 [     1:      500] @ 0x100\n\nMAPPED_LIBRARIES:\n";

    #[test]
    fn pinned_values_are_shares() {
        let text = format!(
            "heap profile:     31:     4500 [    31:     4500] @ growth\n{STACKS}# kind: pinned\n# stacks: 2\n\
             # estimated-inuse-bytes: 4500\n"
        );
        let profile = read(&text);
        assert!(profile.is_pinned);
        assert_eq!(profile.warnings, Vec::<String>::new());
        let shares: Vec<_> = profile
            .samples
            .iter()
            .map(|sample| {
                let leaf = profile.stacks.frames(sample.stack)[0];
                let address = profile.stacks.address(leaf).0;
                (
                    address,
                    sample.counts[1],
                    sample.values[SampleType::InuseSpace],
                )
            })
            .collect();
        assert_eq!(shares, [(0x10, 30, 4000), (UNATTRIBUTED.0, 0, 500)]);
    }

    #[test]
    fn other_profiles_are_not_read_as_pinned() {
        for (header, comment) in [("growth", "heap"), ("heap_v2/512", "pinned")] {
            let text = format!(
                "heap profile: 30: 4500 [30: 4500] @ {header}\n{STACKS}# kind: {comment}\n"
            );
            let profile = read(&text);
            assert!(!profile.is_pinned, "{text}");
            assert_ne!(profile.samples[1].values[SampleType::InuseObjects], 0);
        }
    }
}
