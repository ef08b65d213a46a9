//! `cargo xtask bench truth`: asks memprof about programs and files with known answers, and counts the answers that are
//! right, those that say what they do not know, and those that are wrong. None may be wrong.

mod answer;
mod case;
mod table;

use std::process::ExitCode;

use anyhow::{Result, bail};
use xtask::run::project_root;

use crate::case::Area;
use crate::table::Table;

const USAGE: &str = "usage: cargo xtask bench truth [--short] [AREA…]";

/// Prints the table of verdicts. Exits with 1 if an answer is wrong, and with 2 if a case cannot be judged.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match judge_areas(&args) {
        Ok(table) => {
            print!("{table}");
            match table.wrong_count() {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("truth: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Judges the cases of the areas that `args` name, or of all areas if they name none; `--short` leaves out the long
/// cases.
fn judge_areas(args: &[String]) -> Result<Table> {
    let directory = project_root().join("dev/bench/truth");
    let known = case::list_areas(&directory)?;
    let (mut wanted, mut short) = (Vec::new(), false);
    for arg in args {
        match arg.as_str() {
            "--short" => short = true,
            area if known.iter().any(|name| name == area) => wanted.push(area),
            other => bail!(
                "unknown argument {other:?}\n{USAGE}\nareas: {}",
                known.join(", ")
            ),
        }
    }
    let mut table = Table::default();
    for name in &known {
        if !wanted.is_empty() && !wanted.contains(&name.as_str()) {
            continue;
        }
        let area = Area::read(&directory, name)?;
        for case in area.cases.iter().filter(|case| !(short && case.long)) {
            let verdict = answer::judge(&area, case)?;
            table.add(name, case, &verdict);
        }
    }
    Ok(table)
}
