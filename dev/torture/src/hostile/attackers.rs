//! Processes of a user without privileges, at which root looks.

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::forged::Forged;
use super::visit::{Attacker, Work, visit};
use super::witness::{Bound, ResourceUse, USUAL};
use crate::SuiteLength;
use crate::bombs::Random;

const fn work(words: &'static [&'static str]) -> Work {
    Work {
        words,
        takes_pid: true,
        bound: USUAL,
    }
}

const RECORD: Work = work(&["record", "--for", "300ms", "--pid"]);
const LEAKS: Work = work(&["leaks", "--max-pause", "10s", "--prove"]);
const HOLDERS: Work = work(&["holders", "--max-pause", "10s"]);
const LIST: Work = Work {
    takes_pid: false,
    ..work(&["ps", "--all"])
};
/// A Java VM has this long to load an agent, as applications make it wait.
const SLOW: Work = Work {
    bound: Bound {
        seconds: 75,
        ..USUAL
    },
    ..RECORD
};

const ALL: &[Work] = &[RECORD, LEAKS, HOLDERS, LIST];
/// What puts no code into a process that could not run it.
const LOOKS: &[Work] = &[LEAKS, HOLDERS];

const fn attacker(kind: &'static str, forged: Forged, works: &'static [Work]) -> Attacker {
    Attacker {
        kind,
        forged,
        other: "",
        works,
        is_short: true,
    }
}

/// One that memprof waits for.
const fn long(kind: &'static str, works: &'static [Work]) -> Attacker {
    Attacker {
        is_short: false,
        ..attacker(kind, Forged::Whole, works)
    }
}

const fn linked(other: &'static str) -> Attacker {
    Attacker {
        other,
        ..attacker("library-link", Forged::Whole, &[RECORD, HOLDERS])
    }
}

const fn large(forged: Forged) -> Attacker {
    attacker("library", forged, &[RECORD, HOLDERS])
}

const ATTACKERS: &[Attacker] = &[
    attacker("jvm-endless", Forged::Whole, ALL),
    attacker("jvm-elsewhere", Forged::Whole, &[RECORD]),
    long("jvm-full", &[RECORD]),
    long("jvm-drips", &[SLOW]),
    attacker("library-fifo", Forged::Whole, ALL),
    linked("/dev/zero"),
    linked("/proc/kmsg"),
    attacker("library-directory", Forged::Whole, &[RECORD]),
    attacker("library-short", Forged::Whole, &[RECORD]),
    large(Forged::Section(".symtab")),
    large(Forged::Section(".debug_info")),
    large(Forged::Section(".note.gnu.build-id")),
    large(Forged::Headers),
    large(Forged::DebugFile),
    large(Forged::Abbreviations),
    attacker("library", Forged::Name, ALL),
    attacker("names", Forged::Whole, ALL),
    attacker("mappings", Forged::Whole, ALL),
];
const HEAP: Attacker = attacker("heap", Forged::Whole, LOOKS);

pub(super) fn run(length: SuiteLength) -> Result<String> {
    ensure!(geteuid().is_root(), "the attackers' programs need root");
    let mut worst = ResourceUse::default();
    let mut visits = 0;
    let chosen = ATTACKERS
        .iter()
        .filter(|each| length == SuiteLength::Long || each.is_short);
    for attacker in chosen {
        let name = format!("{} {:?} {}", attacker.kind, attacker.forged, attacker.other);
        worst = worst.worst(visit(attacker, 0).context(name)?);
        visits += 1;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..length.pick(3, 200) {
        let seed = random.below(1 << 48);
        worst = worst.worst(visit(&HEAP, seed).with_context(|| format!("heap {seed}"))?);
        visits += 1;
    }
    Ok(format!(
        "{visits} attackers' processes: {worst} at most, nothing left"
    ))
}
