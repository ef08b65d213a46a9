//! Typed access to the arguments of messages.

use std::str::FromStr;
use std::time::Duration;

use memprof_messages::{AllocatorKind, UnknownName};
use memprof_plugin_abi::{Arguments, ErrorKind, Failure};

/// Removes the argument `key`, whose value names a variant of an enum, and returns the variant. `None` if the argument
/// is absent.
///
/// # Errors
/// `InvalidArgument`: the enum has no such name. The remedy lists the valid names.
pub(crate) fn take_enum<T: FromStr<Err = UnknownName>>(
    args: &mut Arguments,
    key: &'static str,
) -> Result<Option<T>, Failure> {
    let parse = |text: String| {
        text.parse().map_err(|UnknownName { name, known }| {
            let message = format!("unknown {key} {name:?}");
            Failure::new(ErrorKind::InvalidArgument, message)
                .remedy(format!("valid: {}", known.join(", ")))
        })
    };
    args.take(key).map(parse).transpose()
}

/// Removes the argument `allocator`, which is the kind of an allocator, and returns the kind. `None` if the argument is
/// absent.
///
/// # Errors
/// `InvalidArgument`: no allocator has this kind.
pub(crate) fn take_allocator(args: &mut Arguments) -> Result<Option<AllocatorKind>, Failure> {
    take_enum(args, "allocator")
}

/// Removes the argument `key`, which is a whole number, and returns the number. `None` if the argument is absent.
///
/// # Errors
/// `InvalidArgument`: the value is not a number from 0 to `u64::MAX`.
pub(crate) fn take_number(args: &mut Arguments, key: &'static str) -> Result<Option<u64>, Failure> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            let message = format!("{key}={text:?} is not a number");
            Failure::new(ErrorKind::InvalidArgument, message)
        })
    };
    args.take(key).map(parse).transpose()
}

/// Removes the argument `key`, and returns whether it is `on` (true) or `off` (false). `None` if it is absent.
///
/// # Errors
/// `InvalidArgument`: the value is neither `on` nor `off`.
pub(crate) fn take_switch(
    args: &mut Arguments,
    key: &'static str,
) -> Result<Option<bool>, Failure> {
    match args.take(key).as_deref() {
        None => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => {
            let message = format!("{key}={other:?} is neither on nor off");
            Err(Failure::new(ErrorKind::InvalidArgument, message))
        }
    }
}

/// Maximum time limit of an activation. A longer activation needs no limit.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Removes the argument `for`, a duration above 0 and up to 7 days, and returns the duration. `None` if the argument is
/// absent.
///
/// # Errors
/// `InvalidArgument`: the value is not such a duration.
pub(crate) fn take_duration(args: &mut Arguments) -> Result<Option<Duration>, Failure> {
    let text = args.take("for");
    text.map(|text| parse_duration(&text)).transpose()
}

/// Parses the value of `for`, such as `10m`.
///
/// # Errors
/// `InvalidArgument`: not a duration, 0, or more than 7 days.
fn parse_duration(text: &str) -> Result<Duration, Failure> {
    let invalid = |reason: &str| {
        let message = format!("for={text:?} {reason}");
        Failure::new(ErrorKind::InvalidArgument, message).remedy("for example for=10m, at most 7d")
    };
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err(invalid("must be above 0s")),
        Ok(duration) if duration > MAX_DURATION => Err(invalid("is too long")),
        Ok(duration) => Ok(duration),
        Err(_) => Err(invalid("is not a duration")),
    }
}
