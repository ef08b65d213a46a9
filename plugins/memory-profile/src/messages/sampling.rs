//! Messages that start and stop sampling: `activate`, `deactivate`, `reset`.

use std::sync::Arc;

use memprof_core::{ActivateOptions, Profiler, SampleInterval};
use memprof_messages::ActivationResult;
use memprof_plugin_abi::{Arguments, ErrorKind, Failure, Reply};

use crate::arguments::{take_allocator, take_duration, take_enum, take_number};
use crate::reply::{reply_success, to_failure};
use crate::text::activation_text;

/// Handles `activate`: starts sampling, and replies with the new state.
pub(super) fn handle_activate(
    profiler: &Arc<Profiler>,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let options = take_activate_options(&mut args)?;
    args.finish()?;
    let activation = profiler.activate(options).map_err(to_failure)?;
    reply_with_activation(reply, activation)
}

/// Handles `deactivate`: stops sampling in the allocators of the kind `allocator`, or in all without that argument.
/// Replies with the new state.
pub(super) fn handle_deactivate(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let allocator = take_allocator(&mut args)?;
    args.finish()?;
    reply_with_activation(reply, profiler.deactivate(allocator).map_err(to_failure)?)
}

/// Handles `reset`: drops all samples of the allocators of the kind `allocator`, or of all without that argument. Sets
/// the sample interval if one is given. Replies with the new state.
pub(super) fn handle_reset(
    profiler: &Profiler,
    mut args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let allocator = take_allocator(&mut args)?;
    let interval = take_sample_interval(&mut args)?;
    args.finish()?;
    let activation = profiler.reset(allocator, interval).map_err(to_failure)?;
    reply_with_activation(reply, activation)
}

/// Replies with the new state, and logs it.
fn reply_with_activation(
    reply: &mut Reply<'_>,
    activation: ActivationResult,
) -> Result<(), Failure> {
    let text = activation_text(&activation);
    log::info!("{text}");
    reply_success(reply, &text, activation)
}

/// Takes all arguments of `activate` from `args`. `ages=off` and `labels=off` count as absent.
///
/// # Errors
/// `InvalidArgument`: a value is malformed or out of range.
fn take_activate_options(args: &mut Arguments) -> Result<ActivateOptions, Failure> {
    let allocator = take_allocator(args)?;
    let interval = take_sample_interval(args)?;
    let duration = take_duration(args)?;
    let unwinder = take_enum(args, "unwinder")?;
    let sampler = take_enum(args, "sampler")?;
    let ages = args.take("ages").filter(|word| word != "off");
    let ages = ages.map(|word| word.parse());
    let labels = args.take("labels").filter(|word| word != "off");
    let labels = labels.map(|word| word.parse());
    Ok(ActivateOptions {
        allocator,
        interval,
        duration,
        unwinder,
        sampler,
        languages: take_enum(args, "languages")?.unwrap_or_default(),
        ages: ages.transpose().map_err(to_failure)?,
        labels: labels.transpose().map_err(to_failure)?,
    })
}

/// Takes the sample interval: `sample_interval` in bytes, or `lg_sample`, which is its log2, as in jemalloc's options.
/// `None` if both are absent.
///
/// # Errors
/// `InvalidArgument`: both are given, or the value is malformed or out of range.
fn take_sample_interval(args: &mut Arguments) -> Result<Option<SampleInterval>, Failure> {
    let lg_sample = take_number(args, "lg_sample")?;
    let interval = match (args.take("sample_interval"), lg_sample) {
        (Some(_), Some(_)) => {
            let message = "sample_interval and lg_sample are the same; give one of them";
            return Err(Failure::new(ErrorKind::InvalidArgument, message));
        }
        (Some(size), None) => SampleInterval::parse(&size).map(Some),
        (None, lg_sample) => lg_sample.map(SampleInterval::from_lg).transpose(),
    };
    interval.map_err(to_failure)
}
