//! The project's commands.

mod book;
mod cargo_tool;
mod ci;
mod demo;
mod deny;
mod features;
mod fuzz;
mod lint;
mod pictures;
mod test_run;

use std::process::{Command, ExitCode};

use xtask::dist::{self, Profile};
use xtask::run::{cargo_command, project_root, run};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  build [--release]   build everything and lay it out in target/dist
  demo                find a leak in a running process, step by step
  test                install what the tests need, build, run every test
  bench [PART] [--check] [--no-build]
                      build for release, and print what memprof costs and how cost grows; --check
                      fails where a limit is broken; --no-build measures what lies in target/dist;
                      an unknown PART names those there are
  bench scale [CASE] [--short] [--check]
                      how cost grows with the input, of each command at three sizes, beside its peer;
                      --short only counts reads, in half a minute; a broken limit of a case always fails
  bench truth [AREA] [--short]
                      questions with known answers: how many are answered right, with a note of
                      what is missing, or wrong
  torture [SUITE] [--short]
                      hosts under every fault; an unknown SUITE names those there are
  package [--check | --try]
                      the Debian and RPM packages, in target/package; --check also uses them in fresh
                      systems and builds them again, to compare; --try only uses those there are
  book                the book as HTML, in target/book
  lint                modules that use each other in a cycle, files above 400 lines, words that comments and
                      names do not use, files that documents name and that are not there; in
                      memprof-core, also a folder that uses one above it
  features            each feature of each crate alone, under clippy
  fuzz                each fuzz target over its seeds
  pictures            draw the pictures of README anew, from a run of Redis
  deny                licences and sources of the crates that are built in, by cargo-deny: before a release
  ci                  format, lint, build, test, demo, bench truth --short, fuzz and torture --short,
                      beside them clippy, features and docs: what CI runs, and how long each took";

/// Builds and runs torture, which is a crate of its own so that other commands need not wait for its build.
fn build_and_run_torture(args: &[&str]) -> anyhow::Result<()> {
    dist::build_all(Profile::Dev)?;
    dist::build_unwind_probe(Profile::Dev)?;
    dist::build_programs(["torture"])?;
    run(&mut torture_command(args))
}

/// Returns the command of torture, which must be built.
fn torture_command(args: &[&str]) -> Command {
    built_command("torture", args)
}

/// Returns the command of a program in `target/debug`, which runs in the project's root.
fn built_command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(dist::built_dir(Profile::Dev).join(program));
    command.args(args).current_dir(project_root());
    command
}

/// Builds bench for release, and runs it. If the arguments name the part `peers` or no part, also builds the crates
/// with which that part compares memprof.
fn run_bench(args: &[&str]) -> anyhow::Result<()> {
    let mut command = cargo_command(&["run", "--release", "--quiet", "--package=bench"]);
    if args.contains(&"peers") || args.iter().all(|arg| arg.starts_with("--")) {
        command.arg("--features=peers");
    }
    run(command.arg("--").args(args))
}

/// Builds the development program `truth` or `growth`, and runs it. It needs no optimization: it only queries the
/// memprof of `target/dist`.
fn build_and_run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    dist::build_programs([program])?;
    run(&mut built_command(program, args))
}

/// Builds and runs the fuzz targets over their seeds.
fn build_and_run_fuzz() -> anyhow::Result<()> {
    dist::build_programs(fuzz::target_names()?)?;
    fuzz::replay_seeds()
}

/// Measures how cost grows, by the cases of the program growth that the arguments select. Without arguments, or with
/// only `--check`, runs the part `scale` of bench before. Only this part gets `--check`.
fn run_scale(args: &[&str]) -> anyhow::Result<()> {
    let (check, args): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| **arg == "--check");
    if args.is_empty() {
        run_bench(&[&["scale"], check.as_slice()].concat())?;
    }
    build_and_run("growth", &args)
}

/// Runs the command that the arguments name. Exits with 2, and prints the usage, if they name none, and with 1 if the
/// command fails.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["build"] => dist::build_all(Profile::Dev),
        ["build", "--release"] => dist::build_all(Profile::Release),
        ["demo"] => demo::build_and_run_demo(),
        ["test"] => ci::build_and_test(),
        ["bench", "truth", args @ ..] => build_and_run("truth", args),
        ["bench", "scale", args @ ..] => run_scale(args),
        ["bench", args @ ..] => run_bench(args),
        ["torture", args @ ..] => build_and_run_torture(args),
        ["package", args @ ..] => {
            run(cargo_command(&["run", "--quiet", "--package=package", "--"]).args(args))
        }
        ["book"] => book::build_book(),
        ["lint"] => lint::check_workspace(),
        ["features"] => features::check_features(),
        ["fuzz"] => build_and_run_fuzz(),
        ["pictures"] => pictures::draw_pictures(),
        ["deny"] => deny::check_dependencies(),
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
