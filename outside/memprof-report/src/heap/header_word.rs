//! The word after the `@` of a header `heap profile: … @ WORD/N`, which selects how its values are scaled:
//!
//! | word | written by | values |
//! |---|---|---|
//! | `heap_v2`, `heapz_v2`, `NAME_heap_v2` | a sampling tcmalloc | of a Poisson process, N bytes on average |
//! | `heap`, `heapz`, `NAME_heap` | the first tcmalloc | of samples uniformly distributed over N bytes |
//! | `heap` | Go's runtime with `debug=1` | of a Poisson process, N/2 bytes on average |
//! | `heapprofile` | gperftools' heap profiler | of every allocation |
//! | `growth`, `growthz`, `fragmentation`, `fragmentationz` | tcmalloc | of every allocation |
//!
//! Sources: `ReadHeapProfile` of google-pprof, `parseHeapHeader` of pprof's `legacy_profile.go`, and
//! `writeHeapInternal` of Go's `runtime/pprof`.

use super::numbers::parse_decimal;
use crate::profile::Sampling;

/// Interval that google-pprof assumes if the header has none.
pub(super) const DEFAULT_INTERVAL: u64 = 128 << 10;

/// Words of profiles that count every allocation.
const UNSAMPLED: [&[u8]; 5] = [
    b"heapprofile",
    b"growth",
    b"growthz",
    b"fragmentation",
    b"fragmentationz",
];

/// Meaning of a header's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderWord {
    /// Every allocation was counted.
    Unsampled,
    /// A Poisson process with this mean interval. `None` if the header has no interval.
    Poisson(Option<u64>),
    /// Samples uniformly distributed over this many bytes, by tcmalloc's first version. `None` if the header has no
    /// number.
    Uniform(Option<u64>),
    /// Like `Uniform`, or Go's text, which has the same word for another scale.
    UniformOrGo(Option<u64>),
    /// The header has no word.
    Missing,
}

impl HeaderWord {
    /// Parses the text after the `@` of a header, such as `heap_v2/524288`; it is empty in some headers. A text before
    /// `heap` is ignored, because each allocator has its own. `None` if the word is unknown, if a `/` has no word
    /// before it, or if the text after the `/` of a sampled word is no decimal number.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (word, number) = match memchr::memrchr(b'/', text) {
            None => (text, None),
            Some(slash) => (&text[..slash], Some(&text[slash + 1..])),
        };
        if UNSAMPLED.contains(&word) {
            return Some(Self::Unsampled);
        }
        let interval = match number {
            None => None,
            Some(number) => match parse_decimal(number)? {
                (interval, []) => Some(interval as u64),
                _ => return None,
            },
        };
        match word {
            [] => number.is_none().then_some(Self::Missing),
            b"heap" => Some(Self::UniformOrGo(interval)),
            _ if word.ends_with(b"heap") || word.ends_with(b"heapz") => {
                Some(Self::Uniform(interval))
            }
            _ if word.ends_with(b"_v2") && memchr::memmem::find(word, b"heap").is_some() => {
                Some(Self::Poisson(interval))
            }
            _ => None,
        }
    }

    /// Returns whether Go may have written the word: tcmalloc writes `heap`, too.
    pub(super) fn may_be_written_by_go(self) -> bool {
        matches!(self, Self::UniformOrGo(_))
    }

    /// Returns whether the header says that sampling was off: its interval is 0.
    pub(super) fn is_sampling_off(self) -> bool {
        matches!(
            self,
            Self::Poisson(Some(0)) | Self::Uniform(Some(0)) | Self::UniformOrGo(Some(0))
        )
    }

    /// Returns whether the values were sampled at an interval that the header does not give.
    pub(super) fn lacks_interval(self) -> bool {
        matches!(
            self,
            Self::Poisson(None) | Self::Uniform(None) | Self::UniformOrGo(None)
        )
    }

    /// Returns the sampling that the word means, with its mean interval in bytes. `is_go` says that Go wrote the dump:
    /// Go and tcmalloc both write `heap`, with different meanings. Without a number, the interval is
    /// [`DEFAULT_INTERVAL`]. A header without a word is of tcmalloc's first version if it repeats the values in use as
    /// those of all allocations (`is_repeated`), as google-pprof assumes.
    pub(super) fn sampling(self, is_go: bool, is_repeated: bool) -> Sampling {
        // Samples that are uniformly distributed over N bytes have a mean interval of N/2.
        let uniform =
            |number: Option<u64>| number.map_or(DEFAULT_INTERVAL, |number| (number / 2).max(1));
        match self {
            Self::Unsampled => Sampling::None,
            Self::Poisson(interval) => Sampling::Poisson(interval.unwrap_or(DEFAULT_INTERVAL)),
            // Go writes twice its `MemProfileRate`; at a rate of 1 it counts every allocation.
            Self::UniformOrGo(number) if is_go => match uniform(number) {
                1 => Sampling::None,
                rate => Sampling::Poisson(rate),
            },
            Self::Uniform(number) | Self::UniformOrGo(number) => Sampling::Uniform(uniform(number)),
            Self::Missing if is_repeated => Sampling::Uniform(DEFAULT_INTERVAL),
            Self::Missing => Sampling::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_INTERVAL, HeaderWord};
    use crate::profile::Sampling;

    #[test]
    fn word_selects_scale() {
        let check = |text: &str, expected: Sampling| {
            let word = HeaderWord::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(word.sampling(false, false), expected, "{text}");
        };
        check("heap_v2/524288", Sampling::Poisson(524_288));
        check("heapz_v2/524288", Sampling::Poisson(524_288));
        check("myserver_heap_v2/1048576", Sampling::Poisson(1 << 20));
        check("http://host:80/pprof/heap_v2/512", Sampling::Poisson(512));
        check("heap_v2", Sampling::Poisson(DEFAULT_INTERVAL));
        check("heap/1048576", Sampling::Uniform(1 << 19));
        check("heapz/1048576", Sampling::Uniform(1 << 19));
        check("server_heap/1", Sampling::Uniform(1));
        check("heapz", Sampling::Uniform(DEFAULT_INTERVAL));
        for unsampled in [
            "heapprofile",
            "heapprofile/7",
            "growth",
            "growthz",
            "fragmentationz",
        ] {
            check(unsampled, Sampling::None);
        }
    }

    #[test]
    fn heap_of_go_is_a_poisson_process_over_half_the_number() {
        let go =
            |text: &str| HeaderWord::parse(text.as_bytes()).map(|word| word.sampling(true, true));
        assert_eq!(go("heap/1048576"), Some(Sampling::Poisson(1 << 19)));
        assert_eq!(go("heap/2"), Some(Sampling::None));
        assert_eq!(go("heapz/1048576"), Some(Sampling::Uniform(1 << 19)));
    }

    #[test]
    fn unknown_word_is_refused() {
        for unknown in [
            "heap_v3/524288",
            "heap_v2x/1",
            "_v2/512",
            "contention/1",
            "cpu",
            "/512",
            "heap_v2/",
            "heap_v2/512k",
            "heap_v2/-1",
            "heap_v2/99999999999999999999",
            "HEAP_V2/512",
        ] {
            assert_eq!(HeaderWord::parse(unknown.as_bytes()), None, "{unknown}");
        }
    }
}
