//! Stacks that are hard to walk: nothing dies, and both walks tell the same.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use crate::probe::{self, WalkMode};
use xtask::dist::dist;
use xtask::run::{output, root};

/// Samples a lot.
const LG_SAMPLE: u32 = 11;

/// The cases of hazards.c in which every stack must be the same.
const SAME: &[&str] = &[
    "coroutines_mapped",
    "coroutines_heap",
    "threads",
    "threads_created",
    "thread_exit",
    "small_stacks",
    "forks",
    "signals",
    "alternate_stack",
    "timer",
    "jit",
    "reload",
    "switching",
];
/// Those in which it only must survive: jemalloc's own walk would not, or nobody forgets the rules
/// of unloaded code.
const ALIVE: &[&str] = &["wild_frame_pointers", "reload_unattended"];

/// How often each case runs.
const ROUNDS: (u32, u32) = (1, 20);

/// What the walk may call beside itself: copies and comparisons of bytes, and gimli, which has no
/// allocator either. The panics are of checks that cannot fail, one of gimli's among them, and what goes on after one
/// is with them.
const CALLED: &[&str] = &[
    "_Unwind_Resume",
    "bcmp",
    "memcpy",
    "memmove",
    "memset",
    "rust_eh_personality",
    "core::",
    "gimli::",
    "memprof_unwind::",
    "<memprof_unwind::",
    "<gimli::",
    "anon.",
];

/// Fails where the library of the walk needs anything else.
fn check_what_is_called() -> Result<()> {
    let library = root().join("target/debug/libmemprof_unwind.rlib");
    let mut nm = Command::new("nm");
    let symbols = output(nm.args(["--undefined-only", "--demangle"]).arg(&library))?;
    let needed = symbols
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("U "));
    let strange: Vec<&str> = needed
        .filter(|name| !CALLED.iter().any(|known| name.starts_with(known)))
        .collect();
    ensure!(strange.is_empty(), "the walk calls {strange:?}");
    Ok(())
}

pub(super) fn run(length: SuiteLength) -> Result<String> {
    check_what_is_called()?;
    let rounds = length.pick(ROUNDS.0, ROUNDS.1);
    let (mut cases, mut stacks, mut cut) = (0, 0, 0);
    for program in ["hazards", "hazards_without_hdr"] {
        for _ in 0..rounds {
            for case in SAME {
                let report = try_case(program, case, WalkMode::Compared)?;
                ensure!(
                    report.compared > 0 && report.agreed == report.compared,
                    "{program} {case}: {}: {report:?}",
                    report.agreement()
                );
                cases += 1;
                stacks += report.compared;
            }
            for case in ALIVE {
                let mode = match *case {
                    "wild_frame_pointers" => WalkMode::Allocator,
                    _ => WalkMode::Compared,
                };
                cut += try_case(program, case, mode)?.cut;
                cases += 1;
            }
        }
    }
    ensure!(cut > 0, "no walk met a wild frame pointer");
    Ok(format!(
        "{cases} runs, 0 crashes; {stacks} stacks compared, 0 differ; {cut} walks cut at wild frame pointers"
    ))
}

fn try_case(program: &str, case: &str, mode: WalkMode) -> Result<probe::Report> {
    let mut command = Command::new(dist().join("torture").join(program));
    command
        .arg(case)
        .env("UNWIND_LIBRARIES", dist().join("torture"));
    // The kernel cuts a name to 15 bytes.
    let name = program.get(..15).unwrap_or(program);
    probe::run(command, name, mode, LG_SAMPLE).with_context(|| format!("{program} {case}"))
}
