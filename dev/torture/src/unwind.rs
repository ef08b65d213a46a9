//! Suite `unwind`: stacks that are hard to walk. No program crashes, and both walkers find the same frames.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use crate::probe::{self, WalkMode};
use xtask::dist::dist_dir;
use xtask::run::{output, project_root};

/// Binary logarithm of the sample interval, for many samples.
const LG_SAMPLE: u32 = 11;

/// Cases of hazards.c in which both walkers must find the same frames.
const EQUAL_CASES: &[&str] = &[
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
/// Cases that the program only must survive: jemalloc's walk would crash, or the rules of unloaded code are not
/// cleared.
const SURVIVED_CASES: &[&str] = &[WILD_FRAME_POINTERS, "reload_unattended"];
const WILD_FRAME_POINTERS: &str = "wild_frame_pointers";

/// Runs of each case in the short and in the long suite.
const ROUNDS: (u32, u32) = (1, 20);

/// Symbols that the walker may need: copies and comparisons of bytes, and gimli, which does not allocate either. The
/// panics belong to checks that cannot fail, one of them gimli's; unwinding after a panic comes with them.
const ALLOWED_SYMBOLS: &[&str] = &[
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

/// Fails if the library of the stack walk needs a symbol that begins with none of [`ALLOWED_SYMBOLS`]: the walk runs
/// inside malloc, so it must not call functions that may allocate or lock.
fn check_undefined_symbols() -> Result<()> {
    let library = project_root().join("target/debug/libmemprof_unwind.rlib");
    let mut nm = Command::new("nm");
    let symbols = output(nm.args(["--undefined-only", "--demangle"]).arg(&library))?;
    let needed = symbols
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("U "));
    let unexpected: Vec<&str> = needed
        .filter(|name| !ALLOWED_SYMBOLS.iter().any(|known| name.starts_with(known)))
        .collect();
    ensure!(unexpected.is_empty(), "the walk calls {unexpected:?}");
    Ok(())
}

/// Runs the suite `unwind`, and returns its figures in one line. Fails if a program crashes, if the two walkers find
/// different frames in a case that both must walk, or if no walk met a wild frame pointer.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    check_undefined_symbols()?;
    let rounds = length.pick(ROUNDS.0, ROUNDS.1);
    let (mut cases, mut stacks, mut cut) = (0, 0, 0);
    for program in ["hazards", "hazards_without_hdr"] {
        for _ in 0..rounds {
            for case in EQUAL_CASES {
                let report = run_hazard(program, case, WalkMode::Compared)?;
                ensure!(
                    report.compared > 0 && report.agreed == report.compared,
                    "{program} {case}: {}: {report:?}",
                    report.agreement()
                );
                cases += 1;
                stacks += report.compared;
            }
            for case in SURVIVED_CASES {
                let is_wild = *case == WILD_FRAME_POINTERS;
                let mode = match is_wild {
                    true => WalkMode::Allocator,
                    false => WalkMode::Compared,
                };
                let report = run_hazard(program, case, mode)?;
                // Walks through unloaded code are cut too.
                cut += if is_wild { report.cut } else { 0 };
                cases += 1;
            }
        }
    }
    ensure!(cut > 0, "no walk met a wild frame pointer");
    Ok(format!(
        "{cases} runs, 0 crashes; {stacks} stacks compared, 0 differ; {cut} walks cut at wild frame pointers"
    ))
}

/// Runs a case of hazards.c with the preloaded probe, which walks each sampled stack as `mode` says, and returns the
/// probe's report. Fails if the program crashes.
fn run_hazard(program: &str, case: &str, mode: WalkMode) -> Result<probe::Report> {
    let mut command = Command::new(dist_dir().join("torture").join(program));
    command
        .arg(case)
        .env("UNWIND_LIBRARIES", dist_dir().join("torture"));
    // The kernel truncates a process name to 15 bytes.
    let name = program.get(..15).unwrap_or(program);
    probe::run(command, name, mode, LG_SAMPLE).with_context(|| format!("{program} {case}"))
}
