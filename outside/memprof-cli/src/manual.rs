//! `memprof man`: prints or writes manual pages.

use std::path::Path;

use anyhow::Context;
use clap::{Arg, Command};
use clap_mangen::Man;

use crate::exit::Outcome;
use crate::{help, output};

/// Writes the manual pages of all commands to `directory`, which is created if necessary. If `directory` is `None`,
/// prints the page of memprof itself.
pub(crate) fn print_or_write_pages(directory: Option<&Path>) -> Outcome {
    let Some(directory) = directory else {
        let mut command = help::build_command();
        command.build();
        let page = render_page(&command, &Man::new(command.clone()))?;
        output::print(&String::from_utf8_lossy(&page));
        return Ok(0.into());
    };
    let failed = || format!("failed to write the pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    let mut command = help::build_command();
    command.build();
    write_pages(command, directory)?;
    Ok(0.into())
}

/// Writes the page of a command and those of its subcommands, except hidden ones, to files in `directory`.
fn write_pages(command: Command, directory: &Path) -> anyhow::Result<()> {
    let listed = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    for subcommand in listed.cloned() {
        write_pages(subcommand, directory)?;
    }
    let page = Man::new(command.clone());
    output::publish_file(&directory.join(page.get_filename()), |out| {
        Ok(out.write_all(&render_page(&command, &page)?)?)
    })
}

/// Returns the page of `command` in roff. `clap_mangen` names the text after the options `EXTRA`; man-pages(7) has the
/// heading `NOTES`.
fn render_page(command: &Command, page: &Man) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let text = add_option_values(&text, command);
    Ok(text.replace("\n.SH EXTRA\n", "\n.SH NOTES\n").into_bytes())
}

/// Adds the options' values to the synopsis of a page: `[--for DURATION]` in place of `[--for]`, and `--lang LANG` in
/// place of `<--lang>`. `clap_mangen` leaves them out.
fn add_option_values(page: &str, command: &Command) -> String {
    const START: &str = "\n.SH SYNOPSIS\n";
    let Some((before, rest)) = page.split_once(START) else {
        return page.to_owned();
    };
    let (synopsis, after) = rest.split_at(rest.find("\n.SH ").unwrap_or(rest.len()));
    let mut synopsis = synopsis.to_owned();
    for (name, value) in command.get_opts().filter_map(option_name_and_value) {
        let name = format!("\\fB{}\\fR", name.replace('-', "\\-"));
        let value = value.replace('-', "\\-");
        let valued = format!("{name} \\fI{value}\\fR");
        // The brackets of a mandatory option would look like those of a value.
        let mandatory = format!("<{name}>");
        let found = match synopsis.contains(&mandatory) {
            true => mandatory,
            false => name,
        };
        synopsis = synopsis.replacen(&found, &valued, 1);
    }
    format!("{before}{START}{synopsis}{after}")
}

/// Returns an option as the synopsis has it, such as `--for`, and the name of its value. `None` if it takes no value,
/// may do without one, or has no name.
fn option_name_and_value(option: &Arg) -> Option<(String, String)> {
    let takes_value = option
        .get_num_args()
        .is_some_and(|count| count.min_values() > 0);
    let name = match (option.get_long(), option.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => format!("-{}", short?),
    };
    let names = option.get_value_names().filter(|_| takes_value)?;
    Some((name, names.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synopsis_names_the_values() {
        let mut command = help::build_command();
        command.build();
        let synopsis = |names: &[&str]| {
            let command = names.iter().fold(&command, |command, name| {
                command.find_subcommand(name).unwrap()
            });
            let page = render_page(command, &Man::new(command.clone())).unwrap();
            let page = String::from_utf8(page).unwrap();
            let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
            rest.lines().next().unwrap().to_owned()
        };
        let check = synopsis(&["plugin", "check"]);
        let expected = "[\\fB\\-\\-for\\fR \\fIDURATION\\fR] [\\fB\\-h\\fR|\\fB\\-\\-help\\fR]";
        assert!(check.contains(expected), "{check}");
        let new = synopsis(&["plugin", "new"]);
        let expected = "\\fB\\-\\-lang\\fR \\fILANG\\fR <\\fINAME\\fR>";
        assert!(new.contains(expected), "{new}");
        let report = synopsis(&["report"]);
        let expected = "|\\fB\\-\\-target\\fR \\fITARGET\\fR]";
        assert!(report.contains(expected), "{report}");
        assert!(report.contains("[\\fB\\-\\-flat\\fR]"), "{report}");
    }
}
