//! How sure a row is: the truth lies where its error says.

use memprof_report::{Blame, Folded, Granularity, Input, Options, SampleType, read, table};

use crate::support::report_on;

const INTERVAL: u32 = 4096;

/// What a program holds: objects, their size, the address that allocated them.
const HELD: [(u32, u32, &str); 4] = [
    (6000, 64, "0x1200"),
    (1500, 512, "0x1300"),
    (300, 3000, "0x1400"),
    (60, 20_000, "0x1500"),
];

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

/// A dump of the program by a sampler that takes each object with the probability that its size gives it.
fn dump(random: &mut Random) -> String {
    let mut text = format!("heap_v2/{INTERVAL}\n");
    let mut stacks = String::new();
    let mut totals = [0; 2];
    for (objects, size, address) in HELD {
        let chance = -(-f64::from(size) / f64::from(INTERVAL)).exp_m1();
        let taken = (0..objects).filter(|_| random.fraction() < chance).count() as u32;
        stacks += &format!(
            "@ {address} 0x1f00\n  t*: {taken}: {} [0: 0]\n",
            taken * size
        );
        totals = [totals[0] + taken, totals[1] + taken * size];
    }
    text += &format!("  t*: {}: {} [0: 0]\n{stacks}", totals[0], totals[1]);
    text + "\nMAPPED_LIBRARIES:\n00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n"
}

/// The share, in percent, of rows whose true value lies within two errors, over 1,000 profiles.
fn covered(sample_type: SampleType, truth: impl Fn(usize) -> f64) -> [f64; 5] {
    const PROFILES: usize = 1000;
    let mut random = Random(1);
    let mut inside = [0; 5];
    for _ in 0..PROFILES {
        let text = dump(&mut random);
        let input = Input {
            name: "simulated",
            bytes: &mut text.as_bytes(),
        };
        let named = read(input, None, &Options::default(), &|_, _| {}).expect("it is a good dump");
        let blame = Blame::default();
        let folded = Folded::new(&named, None, sample_type, Granularity::Functions, &blame);
        let mut rows = table(&folded, true);
        rows.sort_by_key(|row| folded.functions.get(row.function).to_owned());
        assert_eq!(rows.len(), inside.len());
        for (index, (row, inside)) in rows.iter().zip(&mut inside).enumerate() {
            let off = row.cum.value() as f64 - truth(index);
            // Half a unit is what rounding to whole numbers may do.
            *inside += usize::from(off.abs() <= 2.0 * row.cum.evidence.error() + 0.5);
        }
    }
    inside.map(|inside| 100.0 * inside as f64 / PROFILES as f64)
}

#[test]
fn the_truth_lies_within_two_errors_in_19_of_20_profiles() {
    let bytes = |(objects, size, _): (u32, u32, &str)| f64::from(objects * size);
    let objects = |(objects, _, _): (u32, u32, &str)| f64::from(objects);
    let of = |index: usize, value: &dyn Fn((u32, u32, &'static str)) -> f64| match HELD.get(index) {
        Some(held) => value(*held),
        None => HELD.iter().map(|held| value(*held)).sum(),
    };
    for (sample_type, shares) in [
        (
            SampleType::InuseSpace,
            covered(SampleType::InuseSpace, |row| of(row, &bytes)),
        ),
        (
            SampleType::InuseObjects,
            covered(SampleType::InuseObjects, |row| of(row, &objects)),
        ),
    ] {
        // The last size is nearly always taken: so few are missed that their number is no bell curve.
        for (index, share) in shares
            .into_iter()
            .enumerate()
            .filter(|(index, _)| *index != 3)
        {
            assert!(
                (93.0..=97.0).contains(&share),
                "{sample_type:?} {index}: {shares:?}"
            );
        }
    }
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
