//! The call graph as an SVG, drawn by graphviz's `dot`.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use super::{RenderInput, dot};
use crate::error::{Error, Result};
use crate::options::Options;

/// Writes the call graph as an SVG, which graphviz draws. Fails if graphviz is missing or fails.
pub(super) fn write_svg(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let mut graph = Vec::new();
    dot::write_dot(input, options, &mut graph)?;
    out.write_all(&run_dot(&graph)?)?;
    Ok(())
}

/// Runs graphviz's `dot` on a graph, waits for it, and returns its output. Fails if `dot` is not installed, or fails;
/// the error then has the text that `dot` wrote to stderr.
fn run_dot(graph: &[u8]) -> Result<Vec<u8>> {
    let program_error = |problem: String| Error::Program {
        program: "dot",
        problem,
    };
    let mut dot = Command::new("dot")
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => program_error(
                "not found: --format svg needs graphviz (apt-get install graphviz); \
                 --format dot and --format flamegraph do not"
                    .into(),
            ),
            _ => program_error(error.to_string()),
        })?;
    let (stdin, stderr) = (dot.stdin.take(), dot.stderr.take());
    // Threads serve two pipes: dot may wait for one while this process waits for another.
    let (output, threads) = thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(graph)));
        let reader = scope.spawn(move || {
            let mut text = String::new();
            stderr
                .map_or(Ok(0), |mut stderr| stderr.read_to_string(&mut text))
                .map(|_| text)
        });
        (dot.wait_with_output(), (writer.join(), reader.join()))
    });
    let output = output.map_err(|error| program_error(error.to_string()))?;
    match threads {
        (Ok(Ok(())), Ok(Ok(_))) if output.status.success() => Ok(output.stdout),
        (_, Ok(Ok(text))) => Err(program_error(format!("{}: {}", output.status, text.trim()))),
        _ => Err(program_error(format!("{}", output.status))),
    }
}
