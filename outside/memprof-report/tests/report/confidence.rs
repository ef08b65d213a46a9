//! How sure a row is: the truth lies where its error says.

use std::ops::RangeInclusive;

use memprof_report::{Folded, Granularity, Input, Options, OriginRules, SampleType, read, table};

use crate::support::report_on;

const INTERVAL: u32 = 512 << 10;

/// What a program holds at an address: objects, and their size.
#[derive(Clone, Copy)]
struct Held {
    objects: u32,
    size: u32,
    address: &'static str,
}

const fn held(objects: u32, size: u32, address: &'static str) -> Held {
    Held {
        objects,
        size,
        address,
    }
}

/// Of each size between 50 and 150 samples.
const HELD: [Held; 5] = [
    held(400_000, 64, "0x1200"),
    held(80_000, 512, "0x1300"),
    held(20_000, 3000, "0x1400"),
    held(8_000, 8000, "0x1500"),
    held(4_000, 20_000, "0x1600"),
];
/// Three samples.
const FEW: [Held; 1] = [held(24_600, 64, "0x1200")];

/// Numbers that a seed decides (Knuth's MMIX).
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

/// How many of these objects a sampler takes that takes each with the probability that its size gives it: by the
/// lengths of the gaps between those taken, which follow the geometric distribution.
fn taken(random: &mut Random, held: Held) -> u32 {
    let missed = -f64::from(held.size) / f64::from(INTERVAL);
    let (mut at, mut taken) = (0.0, 0);
    loop {
        at += 1.0 + ((1.0 - random.fraction()).ln() / missed).floor();
        if at > f64::from(held.objects) {
            return taken;
        }
        taken += 1;
    }
}

/// A dump of the program, if it has a sample of each.
fn dump(random: &mut Random, program: &[Held]) -> Option<String> {
    let mut stacks = String::new();
    let mut totals = [0; 2];
    for held in program {
        let taken = Some(taken(random, *held)).filter(|taken| *taken > 0)?;
        let bytes = taken * held.size;
        let address = held.address;
        stacks += &format!("@ {address} 0x1f00\n  t*: {taken}: {bytes} [0: 0]\n");
        totals = [totals[0] + taken, totals[1] + bytes];
    }
    let [objects, bytes] = totals;
    Some(format!(
        "heap_v2/{INTERVAL}\n  t*: {objects}: {bytes} [0: 0]\n{stacks}\nMAPPED_LIBRARIES:\n\
         00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n"
    ))
}

/// The share, in percent, of rows whose true value lies within two errors, over 1,000 profiles in which they are: by
/// address, and that of the function which calls all.
fn covered(program: &[Held], sample_type: SampleType, value: fn(&Held) -> u32) -> Vec<f64> {
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
        let named = read(input, None, &Options::default(), &|_, _| {}).expect("it is a good dump");
        let blame = OriginRules::default();
        let folded = Folded::new(&named, None, sample_type, Granularity::Functions, &blame);
        let mut rows = table(&folded, true);
        rows.sort_by_key(|row| folded.functions.get(row.function).to_owned());
        assert_eq!(rows.len(), truths.len());
        for ((row, truth), inside) in rows.iter().zip(&truths).zip(&mut inside) {
            let off = row.cum.value() as f64 - f64::from(*truth);
            // Half a unit is what rounding to whole numbers may do.
            *inside += usize::from(off.abs() <= 2.0 * row.cum.confidence.error() + 0.5);
        }
    }
    let share = |inside| 100.0 * f64::from(inside as u32) / PROFILES as f64;
    inside.into_iter().map(share).collect()
}

/// Of bytes and of objects.
fn check(program: &[Held], expected: RangeInclusive<f64>) {
    let bytes: fn(&Held) -> u32 = |held| held.objects * held.size;
    let objects: fn(&Held) -> u32 = |held| held.objects;
    for (sample_type, value) in [
        (SampleType::InuseSpace, bytes),
        (SampleType::InuseObjects, objects),
    ] {
        let shares = covered(program, sample_type, value);
        let are_expected = shares.iter().all(|share| expected.contains(share));
        assert!(are_expected, "{sample_type:?}: {shares:?}");
    }
}

#[test]
fn the_truth_lies_within_two_errors_in_19_of_20_profiles() {
    check(&HELD, 93.0..=97.0);
}

/// One of six profiles with such a row has one sample of it, whose two errors do not reach the truth.
#[test]
fn of_three_samples_the_truth_lies_within_two_errors_in_5_of_6_profiles() {
    check(&FEW, 81.0..=87.0);
}

#[test]
fn stacks_that_hold_nothing_any_more_are_not_counted() {
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
