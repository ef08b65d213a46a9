//! The arguments of `gdump`.

use std::time::Duration;

use memprof_core::GdumpLimits;
use memprof_plugin_abi::{Arguments, ErrorKind, Failure};

use crate::arguments::{take_duration, take_number, take_switch};

const DEFAULT_FILES: u32 = 16;
const MAX_FILES: u64 = 1000;
const DEFAULT_DURATION: Duration = Duration::from_secs(10 * 60);

/// Parses the arguments of `gdump`. Returns the limits for `state=on`, with defaults for absent ones, and `None` for
/// `state=off`.
///
/// # Errors
/// `InvalidArgument`: `state` is missing, limits are given with `state=off`, a value is malformed or out of
/// range, or an argument is unknown.
pub(crate) fn parse_gdump_limits(mut args: Arguments) -> Result<Option<GdumpLimits>, Failure> {
    let is_on = take_switch(&mut args, "state")?
        .ok_or_else(|| gdump_argument_failure("argument \"state\" is missing".to_owned()))?;
    let files = take_number(&mut args, "files")?;
    let duration = take_duration(&mut args)?;
    args.finish()?;
    if !is_on {
        return match (files, duration) {
            (None, None) => Ok(None),
            _ => Err(gdump_argument_failure(
                "files and for belong to state=on".to_owned(),
            )),
        };
    }
    let files = files.unwrap_or(DEFAULT_FILES.into());
    if !(1..=MAX_FILES).contains(&files) {
        return Err(gdump_argument_failure(format!(
            "files={files} is out of range 1..={MAX_FILES}"
        )));
    }
    Ok(Some(GdumpLimits {
        files: files as u32,
        duration: duration.unwrap_or(DEFAULT_DURATION),
    }))
}

/// Creates the failure for invalid arguments of `gdump`, with an example as the remedy.
fn gdump_argument_failure(message: String) -> Failure {
    Failure::new(ErrorKind::InvalidArgument, message)
        .remedy("for example state=on files=16 for=10m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_arguments() {
        let check = |args: &str, expected: Option<(u32, u64)>| {
            let limits = parse_gdump_limits(Arguments::parse(args).unwrap()).unwrap();
            let limits = limits.map(|limits| (limits.files, limits.duration.as_secs()));
            assert_eq!(limits, expected, "{args}");
        };
        check("state=off", None);
        check("state=on", Some((16, 600)));
        check("state=on files=3 for=5s", Some((3, 5)));
    }
}
