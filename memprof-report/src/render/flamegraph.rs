//! A flamegraph by inferno. With a base, the width is the profile and the colour the change.

use std::io::Write;

use inferno::flamegraph::{Options as Flamegraph, from_lines};

use super::Subject;
use crate::error::{Error, Result};
use crate::report::Options;

pub(super) fn write(subject: &Subject<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let folded = subject.fold(options);
    let lines: Vec<String> = folded
        .stacks
        .iter()
        .filter(|stack| stack.new > 0 || (stack.new == 0 && stack.base > 0))
        .map(|stack| {
            let functions: Vec<String> = stack
                .functions
                .iter()
                .map(|&function| folded.functions.get(function).replace(';', ":"))
                .collect();
            let stack_text = functions.join(";");
            match subject.base {
                Some(_) => format!("{stack_text} {} {}", stack.base, stack.new),
                None => format!("{stack_text} {}", stack.new),
            }
        })
        .collect();
    if folded.stacks.iter().all(|stack| stack.new <= 0) {
        return Err(Error::Empty {
            reason: "there is nothing to draw".into(),
        });
    }
    let mut flamegraph = Flamegraph::default();
    flamegraph.title = match &subject.base_name {
        Some(base) => format!("{}, compared with {base}", subject.name),
        None => subject.name.clone(),
    };
    flamegraph.subtitle = Some(subject.heading(options));
    flamegraph.count_name = match options.sample_type.unit() {
        "bytes" => "bytes".into(),
        _ => "objects".into(),
    };
    flamegraph.deterministic = true;
    from_lines(&mut flamegraph, lines.iter().map(String::as_str), out)?;
    Ok(())
}
