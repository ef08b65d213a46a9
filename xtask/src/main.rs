//! The project's commands.

mod arrows;
mod bench;
mod ci;
mod demo;
mod dist;
mod many_stacks;
mod packages;
mod run;
mod torture;
mod unwind;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  build [--release]   build everything and lay it out in target/dist
  demo                find a leak in a running process, step by step
  test                install what the tests need, build, run every test
  bench [unwind|sampler|growth]
                      build for release, and print what the plugin costs its host; or its stack
                      walk, or its sampler, or how cost grows
  torture [SUITE] [--short]
                      hosts under every fault; an unknown SUITE names those there are
  arrows              modules that use each other in a circle; in memprof-core, also a folder that
                      uses one above it
  ci                  format, clippy, test, torture --short, docs, deny: what CI runs";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["build"] => dist::build_all(dist::Profile::Dev),
        ["build", "--release"] => dist::build_all(dist::Profile::Release),
        ["demo"] => demo::demo(),
        ["test"] => ci::test(),
        ["bench"] => bench::build_and_run(),
        ["bench", "unwind"] => unwind::bench::run(),
        ["bench", "sampler"] => bench::sampler::run(),
        ["bench", "growth"] => bench::growth::run_growth(),
        ["bench-here"] => bench::measure(),
        ["bench-here", "growth"] => bench::growth::measure(),
        ["torture", args @ ..] => torture::command(args),
        ["arrows"] => arrows::check(),
        ["ci"] => ci::run_ci(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
