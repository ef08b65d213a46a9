//! Comments of Go's text (`/debug/pprof/heap?debug=1`), which name the functions of the record before them:
//!
//! ```text
//! heap profile: 50: 2785792 [50: 2785792] @ heap/1048576
//! 40: 2621440 [40: 2621440] @ 0x4b3c0f 0x4b3f2b 0x461121
//! #  0x4b3c0e  main.leak+0x2e  /tmp/main.go:13
//! #  0x4b3f2a  main.main+0x2a  /tmp/main.go:20
//!
//! # runtime.MemStats
//! ```
//!
//! Columns are separated by tabs. An address has a comment for itself and one for each function that was inlined
//! there, the innermost first. Go leaves out functions of its runtime at both ends. Source: `printStackRecord` of
//! `runtime/pprof`.

use super::DumpReader;
use super::numbers::parse_hexadecimal;
use super::symbols::SymbolFrame;
use crate::error::Result;
use crate::profile::{Address, Profile, SampleType, Sampling};

/// Comment after the records.
const MEM_STATS: &[u8] = b"runtime.MemStats";

impl DumpReader<'_> {
    /// Reads a comment, given without its `#`. Stores a comment that names a frame of the last stack, up to the limit
    /// of frames in a stack, and ignores other comments. Such a comment, or the heading of Go's memory statistics, also
    /// shows that Go wrote the dump.
    pub(super) fn read_go_comment(&mut self, comment: &[u8]) -> Result<()> {
        if let Some(frame) = parse_frame(comment) {
            self.has_go_comments = true;
            if self.go_frames.len() < self.limits.frames {
                self.go_frames.push(frame);
            }
        }
        self.has_go_comments |= comment.trim_ascii() == MEM_STATS;
        Ok(())
    }

    /// Names the addresses of the last stack by the comments that followed it, which are in the same order. Stops at a
    /// comment whose address is not in the stack. An address that has names already keeps them. The address after the
    /// last one with a comment is named `runtime.goexit`, a function for which Go writes no comment. Fails if the names
    /// exceed the memory budget.
    pub(super) fn finish_go_stack(&mut self) -> Result<()> {
        let frames = std::mem::take(&mut self.go_frames);
        let Some(sample) = self.profile.samples.last().filter(|_| !frames.is_empty()) else {
            return Ok(());
        };
        let stacks = &self.profile.stacks;
        let calls = stacks.frames(sample.stack).iter();
        let calls: Vec<_> = calls
            .map(|id| Address(stacks.address(*id).0.wrapping_sub(1)))
            .collect();
        let mut runs = calls.chunk_by(|a, b| a == b);
        for comments in frames.chunk_by(|a, b| a.0 == b.0) {
            // Old versions of Go write the return address, one more.
            let Address(address) = comments[0].0;
            let has_address =
                |run: &&[Address]| [run[0].0, run[0].0.wrapping_add(1)].contains(&address);
            // A recursive call has the same comments once for each time that its address is in the stack.
            let Some((call, times)) = runs.find(has_address).map(|run| (run[0], run.len())) else {
                return Ok(());
            };
            if comments.len() % times != 0 || self.symbols.contains(call) {
                continue;
            }
            let inlined = comments[..comments.len() / times].iter();
            let inlined: Vec<SymbolFrame> = inlined.map(|(_, frame)| frame.clone()).collect();
            self.add_symbol(call, inlined)?;
        }
        // A record with comments lacks one only for this function, which starts each goroutine.
        match runs.next() {
            Some(&[call]) if !self.symbols.contains(call) => {
                let name = "runtime.goexit".to_owned();
                self.add_symbol(call, vec![SymbolFrame { name, place: None }])
            }
            _ => Ok(()),
        }
    }
}

/// Scales the samples of a Poisson process with a mean interval of `rate` bytes, and truncates the estimates. Go does
/// the same in its pprof files (`scaleHeapSample`), so a text and a file of one process have the same totals. Stores
/// the numbers of sampled objects as the samples' counts, and marks the values as needing no more scaling.
pub(super) fn scale_samples(profile: &mut Profile, rate: u64) {
    for sample in &mut profile.samples {
        for (index, [objects, space]) in [
            [SampleType::AllocObjects, SampleType::AllocSpace],
            [SampleType::InuseObjects, SampleType::InuseSpace],
        ]
        .into_iter()
        .enumerate()
        {
            let (count, size) = (sample.values[objects], sample.values[space]);
            let mean = size as f64 / count as f64;
            let scale = match count == 0 || size == 0 {
                true => 0.0,
                false => 1.0 / (1.0 - libm::exp(-mean / rate as f64)),
            };
            sample.counts[index] = u32::try_from(count).unwrap_or(u32::MAX);
            sample.values[objects] = (count as f64 * scale) as i64;
            sample.values[space] = (size as f64 * scale) as i64;
        }
    }
    profile.sampling = Sampling::None;
}

/// Parses `TAB 0x4b3c0e TAB main.leak+0x2e TAB /tmp/main.go:13`; Go aligns columns by several tabs. `None` for other
/// comments, and for a frame without a function.
fn parse_frame(comment: &[u8]) -> Option<(Address, SymbolFrame)> {
    let comment = comment.strip_prefix(b"\t")?;
    let text = String::from_utf8_lossy(comment);
    let mut columns = text.split('\t').filter(|column| !column.is_empty());
    let address = columns.next()?.strip_prefix("0x")?;
    let (address, []) = parse_hexadecimal(address.as_bytes())? else {
        return None;
    };
    let function = columns.next()?;
    let function = match function.rsplit_once("+0x") {
        Some((name, _)) => name,
        None => function,
    };
    let place = columns.next().and_then(|place| place.rsplit_once(':'));
    let place = place.and_then(|(file, line)| Some((file.to_owned(), line.trim().parse().ok()?)));
    (!function.is_empty()).then(|| {
        let frame = SymbolFrame {
            name: function.to_owned(),
            place,
        };
        (Address(address), frame)
    })
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;
    use crate::profile::{Profile, SampleType};
    use crate::stacks::AddressId;

    fn read(text: &str) -> Profile {
        super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false)
            .unwrap_or_else(|error| panic!("{error}: {text}"))
            .swap_remove(0)
    }

    /// Names of each distinct address, innermost first; `-` for one without.
    fn names(profile: &Profile) -> Vec<String> {
        let names = profile.names.as_ref().expect("it has comments");
        let addresses = 0..profile.stacks.addresses().len() as u32;
        let frames = addresses.map(|id| names.frames(AddressId(id)));
        let text = frames.map(|frames| {
            let frames = frames.iter().map(|frame| {
                let file = frame.file.map_or("", |file| names.strings.get(file));
                format!(
                    "{} {file}:{}",
                    names.strings.get(frame.function),
                    frame.line
                )
            });
            frames.collect::<Vec<_>>().join("<")
        });
        text.collect()
    }

    const STATS: &str = "\n# runtime.MemStats\n# Alloc = 22909672\n";

    #[test]
    fn text_of_go_has_the_values_and_names_of_its_pprof() {
        let text = format!(
            "heap profile: 3: 3072 [4: 4096] @ heap/1048576\n2: 2048 [3: 3072] @ 0x4b3c0f 0x4b3f2b 0x461121\n\
             #\t0x4b3c0e\tmain.leak+0x2e\t\t/tmp/main.go:13\n#\t0x4b3f2a\tmain.main+0x2a\t/tmp/my dir/main.go:20\n\n\
             1: 1024 [1: 1024] @ 0x4b3c0f 0x4b3d31\n#\t0x4b3c0e\tmain.leak+0x2e\t\t/tmp/main.go:13\n\
             #\t0x4b3d30\tmain.inner+0x1\t/tmp/main.go:1\n#\t0x4b3d30\tmain.outer+0x50\t/tmp/main.go:2\n{STATS}"
        );
        let mut profile = read(&text);
        assert_eq!(
            names(&profile),
            [
                "main.leak /tmp/main.go:13",
                "main.main /tmp/my dir/main.go:20",
                "runtime.goexit :0",
                "main.inner /tmp/main.go:1<main.outer /tmp/main.go:2"
            ]
        );
        assert_eq!((profile.interval, profile.has_alloc), (Some(524_288), true));
        assert_eq!(profile.warnings, Vec::<String>::new());
        crate::unsample(&mut profile).expect("it fits");
        // 1024 / (1 - exp(-1024 / 524288)) is 524800.17, which Go truncates in each record.
        let totals = profile.totals().expect("they fit");
        assert_eq!(totals[SampleType::InuseSpace], 3 * 524_800);
        assert_eq!(totals[SampleType::AllocSpace], 4 * 524_800);
    }

    #[test]
    fn comments_of_old_go_name_return_addresses() {
        let text = "heap profile: 1: 8 [1: 8] @ heap/2\n1: 8 [1: 8] @ 0x11 0x21 0x31\n\
                    #\t0x11\tmain.f+0x2\t/f.go:1\n#\t0x21\tmain.main+0x2\t/f.go:2\n";
        let expected = ["main.f /f.go:1", "main.main /f.go:2", "runtime.goexit :0"];
        assert_eq!(names(&read(text)), expected);
    }

    #[test]
    fn recursive_call_is_one_function() {
        let line = "#\t0x10\tmain.f+0x1\t/f.go:1\n";
        let text = format!(
            "heap profile: 1: 8 [1: 8] @ heap/2\n1: 8 [1: 8] @ 0x11 0x11 0x11 0x21\n{line}{line}{line}\
             #\t0x20\tmain.main+0x1\t/f.go:2\n{STATS}"
        );
        let profile = read(&text);
        assert_eq!(names(&profile), ["main.f /f.go:1", "main.main /f.go:2"]);
        assert_eq!(profile.interval, None);
    }

    #[test]
    fn runtime_functions_without_comments_have_no_name() {
        let text = format!(
            "heap profile: 1: 8 [1: 8] @ heap/2\n1: 8 [1: 8] @ 0x11 0x21 0x31\n#\t0x20\tmain.f+0x1\t/f.go:1\n\
             #\t0x99\tmain.of_no_frame+0x1\t/f.go:1\n#\tno address\n# label: x\n#\n{STATS}"
        );
        assert_eq!(names(&read(&text)), ["", "main.f /f.go:1", ""]);
        let whole = text.replace("#\t0x99\tmain.of_no_frame+0x1\t/f.go:1\n", "");
        let goexit = "runtime.goexit :0";
        assert_eq!(names(&read(&whole)), ["", "main.f /f.go:1", goexit]);
    }

    #[test]
    fn cut_text_is_refused() {
        let text = "heap profile: 2: 16 [2: 16] @ heap/2\n1: 8 [1: 8] @ 0x11\n";
        let error = super::super::parse_dumps(&mut text.as_bytes(), &Limits::default(), false);
        let error = error.expect_err("a record is missing").to_string();
        assert!(error.contains("truncated"), "{error}");
    }
}
