//! Hostile processes of a user without privileges, which root inspects with memprof.

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;
use testkit::Random;

use super::attacker_process::{Attacker, RootCommand, check_commands};
use super::forgery::Forgery;
use super::witness::{ResourceLimit, ResourceUse, USUAL_LIMIT};
use crate::SuiteLength;

/// Command whose last argument is the attacker's pid, with the usual limits.
const fn root_command(args: &'static [&'static str]) -> RootCommand {
    RootCommand {
        args,
        takes_pid: true,
        limit: USUAL_LIMIT,
    }
}

const RECORD: RootCommand = root_command(&["record", "--for", "300ms", "--pid"]);
const LEAKS: RootCommand = root_command(&["leaks", "--max-pause", "10s", "--prove"]);
const HOLDERS: RootCommand = root_command(&["holders", "--max-pause", "10s"]);
const LEDGER: RootCommand = root_command(&["ledger"]);
const DOCTOR: RootCommand = root_command(&["doctor"]);
const STATUS: RootCommand = root_command(&["status", "-t"]);
const LIST_ALL: RootCommand = RootCommand {
    takes_pid: false,
    ..root_command(&["ps", "--all"])
};
/// `record` with the time that memprof gives a Java VM to load an agent, which busy applications delay.
const RECORD_SLOW_JVM: RootCommand = RootCommand {
    limit: ResourceLimit {
        seconds: 75,
        ..USUAL_LIMIT
    },
    ..RECORD
};

const ALL_COMMANDS: &[RootCommand] = &[RECORD, LEAKS, HOLDERS, LEDGER, DOCTOR, LIST_ALL];
/// Commands that connect to a host; `record` attaches to one that does not answer.
const HOST_COMMANDS: &[RootCommand] = &[STATUS, LIST_ALL, RECORD];
/// Commands that inject no code, for a process with a damaged heap, which could not run it.
const INSPECTION_COMMANDS: &[RootCommand] = &[LEAKS, HOLDERS];

/// Attacker without an argument, which is also part of short runs.
const fn attacker(
    kind: &'static str,
    forgery: Forgery,
    commands: &'static [RootCommand],
) -> Attacker {
    Attacker {
        kind,
        forgery,
        argument: "",
        commands,
        is_fast: true,
    }
}

/// Attacker that delays memprof until a timeout; only long runs have it.
const fn slow_attacker(kind: &'static str, commands: &'static [RootCommand]) -> Attacker {
    Attacker {
        is_fast: false,
        ..attacker(kind, Forgery::Whole, commands)
    }
}

/// Attacker whose library's path becomes a symbolic link to `argument`.
const fn link_attacker(argument: &'static str) -> Attacker {
    Attacker {
        argument,
        ..attacker("library-link", Forgery::Whole, &[RECORD, HOLDERS])
    }
}

/// Attacker that maps a forged library, whose file stays at its path.
const fn library_attacker(forgery: Forgery) -> Attacker {
    attacker("library", forgery, &[RECORD, HOLDERS])
}

const ATTACKERS: &[Attacker] = &[
    attacker("jvm-endless", Forgery::Whole, ALL_COMMANDS),
    attacker("jvm-elsewhere", Forgery::Whole, &[RECORD]),
    slow_attacker("jvm-full", &[RECORD]),
    slow_attacker("jvm-drips", &[RECORD_SLOW_JVM]),
    attacker("library-fifo", Forgery::Whole, ALL_COMMANDS),
    link_attacker("/dev/zero"),
    link_attacker("/proc/kmsg"),
    attacker("library-directory", Forgery::Whole, &[RECORD]),
    attacker("library-short", Forgery::Whole, &[RECORD]),
    library_attacker(Forgery::Section(".symtab")),
    library_attacker(Forgery::Section(".debug_info")),
    library_attacker(Forgery::Section(".note.gnu.build-id")),
    library_attacker(Forgery::Headers),
    library_attacker(Forgery::DebugFile),
    library_attacker(Forgery::Abbreviations),
    library_attacker(Forgery::Lines),
    library_attacker(Forgery::Functions),
    library_attacker(Forgery::InlinedFunctions),
    attacker("library", Forgery::Name, ALL_COMMANDS),
    library_attacker(Forgery::Reserved(".debug_info")),
    attacker("library-swaps", Forgery::Whole, ALL_COMMANDS),
    attacker("perf-map", Forgery::Whole, &[RECORD]),
    attacker("perf-map-fifo", Forgery::Whole, &[RECORD]),
    attacker("endless-libraries", Forgery::Whole, ALL_COMMANDS),
    attacker("sparse-mapping", Forgery::Whole, ALL_COMMANDS),
    attacker("mapping-names", Forgery::Whole, ALL_COMMANDS),
    attacker("arguments", Forgery::Whole, ALL_COMMANDS),
    attacker("threads", Forgery::Whole, ALL_COMMANDS),
    attacker("host-drips", Forgery::Whole, HOST_COMMANDS),
    attacker("host-endless", Forgery::Whole, HOST_COMMANDS),
    attacker("host-nested", Forgery::Whole, HOST_COMMANDS),
    attacker("host-huge", Forgery::Whole, HOST_COMMANDS),
    attacker("names", Forgery::Whole, ALL_COMMANDS),
    attacker("mappings", Forgery::Whole, ALL_COMMANDS),
];
const HEAP_ATTACKER: Attacker = attacker("heap", Forgery::Whole, INSPECTION_COMMANDS);

/// Runs memprof's commands on the attackers' processes, without the slow ones in a short run, and on processes with
/// random heaps. Needs root. Returns the largest use of time and memory as text. Fails if a command exceeds its limit,
/// or changes the process or leaves a file.
pub(super) fn run_attackers(length: SuiteLength) -> Result<String> {
    ensure!(geteuid().is_root(), "the attackers' programs need root");
    let mut worst = ResourceUse::default();
    let mut visits = 0;
    let chosen = ATTACKERS
        .iter()
        .filter(|each| length == SuiteLength::Long || each.is_fast);
    for attacker in chosen {
        let name = format!(
            "{} {:?} {}",
            attacker.kind, attacker.forgery, attacker.argument
        );
        worst = worst.max(check_commands(attacker, 0).context(name)?);
        visits += 1;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..length.pick(3, 200) {
        let seed = random.next_below(1 << 48);
        worst = worst
            .max(check_commands(&HEAP_ATTACKER, seed).with_context(|| format!("heap {seed}"))?);
        visits += 1;
    }
    Ok(format!(
        "{visits} attackers' processes: {worst} at most, nothing left"
    ))
}
