//! Errors of estimates: the true value is within the reported error.

use std::ops::RangeInclusive;

use memprof_report::{
    Folded, Granularity, Input, Options, OriginRules, SampleType, function_rows, read_profile,
};

use crate::support::report_on;

const INTERVAL: u32 = 512 << 10;

/// Objects of a program at one address, with their size.
#[derive(Clone, Copy)]
struct Objects {
    objects: u32,
    size: u32,
    address: &'static str,
}

const fn objects(objects: u32, size: u32, address: &'static str) -> Objects {
    Objects {
        objects,
        size,
        address,
    }
}

/// Sizes of which between 50 and 150 samples are taken.
const HELD: [Objects; 5] = [
    objects(400_000, 64, "0x1200"),
    objects(80_000, 512, "0x1300"),
    objects(20_000, 3000, "0x1400"),
    objects(8_000, 8000, "0x1500"),
    objects(4_000, 20_000, "0x1600"),
];
/// An address with three samples.
const FEW: [Objects; 1] = [objects(24_600, 64, "0x1200")];

/// Random numbers from a seed (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn fraction(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Number of samples of these objects, if each is taken with the probability that its size gives it: computed from
/// the gaps between samples, which follow the geometric distribution.
fn sample_count(random: &mut Random, objects: Objects) -> u32 {
    let missed = -f64::from(objects.size) / f64::from(INTERVAL);
    let (mut at, mut sample_count) = (0.0, 0);
    loop {
        at += 1.0 + ((1.0 - random.fraction()).ln() / missed).floor();
        if at > f64::from(objects.objects) {
            return sample_count;
        }
        sample_count += 1;
    }
}

/// A dump of the program. `None` if an address has no sample.
fn dump(random: &mut Random, program: &[Objects]) -> Option<String> {
    let mut stacks = String::new();
    let mut totals = [0; 2];
    for objects in program {
        let sample_count =
            Some(sample_count(random, *objects)).filter(|sample_count| *sample_count > 0)?;
        let bytes = sample_count * objects.size;
        let address = objects.address;
        stacks += &format!("@ {address} 0x1f00\n  t*: {sample_count}: {bytes} [0: 0]\n");
        totals = [totals[0] + sample_count, totals[1] + bytes];
    }
    let [objects, bytes] = totals;
    Some(format!(
        "heap_v2/{INTERVAL}\n  t*: {objects}: {bytes} [0: 0]\n{stacks}\nMAPPED_LIBRARIES:\n\
         00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n"
    ))
}

/// Share, in percent, of rows whose true value is within two errors, over 1,000 profiles that have the row: by
/// address, and of the function that calls all.
fn coverage(program: &[Objects], sample_type: SampleType, value: fn(&Objects) -> u32) -> Vec<f64> {
    const PROFILES: usize = 1000;
    let all = program.iter().map(value).sum();
    let truths: Vec<u32> = program.iter().map(value).chain([all]).collect();
    let mut random = Random(1);
    let mut inside = vec![0; truths.len()];
    let dumps = std::iter::repeat_with(|| dump(&mut random, program));
    for text in dumps.flatten().take(PROFILES) {
        let input = Input {
            name: "simulated",
            bytes: &mut text.as_bytes(),
        };
        let named =
            read_profile(input, None, &Options::default(), &|_, _| {}).expect("it is a good dump");
        let origin_rules = OriginRules::default();
        let folded = Folded::new(
            &named,
            None,
            sample_type,
            Granularity::Functions,
            &origin_rules,
        );
        let mut rows = function_rows(&folded, true);
        rows.sort_by_key(|row| folded.functions.get(row.function).to_owned());
        assert_eq!(rows.len(), truths.len());
        for ((row, truth), inside) in rows.iter().zip(&truths).zip(&mut inside) {
            let off = row.cum.value() as f64 - f64::from(*truth);
            // Rounding to whole numbers adds an error of half a unit.
            *inside += usize::from(off.abs() <= 2.0 * row.cum.confidence.error() + 0.5);
        }
    }
    let share = |inside| 100.0 * f64::from(inside as u32) / PROFILES as f64;
    inside.into_iter().map(share).collect()
}

/// Checks the shares for bytes and for objects.
fn check(program: &[Objects], expected: RangeInclusive<f64>) {
    let bytes: fn(&Objects) -> u32 = |objects| objects.objects * objects.size;
    let objects: fn(&Objects) -> u32 = |objects| objects.objects;
    for (sample_type, value) in [
        (SampleType::InuseSpace, bytes),
        (SampleType::InuseObjects, objects),
    ] {
        let shares = coverage(program, sample_type, value);
        let are_expected = shares.iter().all(|share| expected.contains(share));
        assert!(are_expected, "{sample_type:?}: {shares:?}");
    }
}

#[test]
fn true_value_is_within_two_errors_in_19_of_20_profiles() {
    check(&HELD, 93.0..=97.0);
}

/// In one of six profiles, such a row has one sample, whose two errors do not reach the true value.
#[test]
fn true_value_of_three_samples_is_within_two_errors_in_5_of_6_profiles() {
    check(&FEW, 81.0..=87.0);
}

#[test]
fn stacks_without_live_objects_are_not_counted() {
    let dump = "heap_v2/1\n  t*: 3: 4096 [5: 8192]\n\
                @ 0x1200\n  t*: 1: 1024 [1: 1024]\n  t1: 1: 1024 [1: 1024]\n\
                @ 0x1300\n  t*: 0: 0 [2: 4096]\n  t1: 0: 0 [2: 4096]\n\
                @ 0x1400\n  t*: 2: 3072 [2: 3072]\n  t1: 2: 3072 [2: 3072]\n\n\
                MAPPED_LIBRARIES:\n00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n";
    let check = |sample_type, expected: &str| {
        let options = Options {
            sample_type,
            ..Options::default()
        };
        let (text, _) =
            report_on(dump.as_bytes(), None, None, &options).expect("it is a good dump");
        let text = String::from_utf8_lossy(&text);
        let heading = text.lines().next().unwrap_or_default();
        assert!(heading.ends_with(expected), "{heading}");
    };
    check(SampleType::InuseSpace, "3 samples in 2 stacks");
    check(SampleType::AllocSpace, "5 samples in 3 stacks");
}
