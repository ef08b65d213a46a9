//! brpc's `/flags`: gflags for jemalloc's controls.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use memprof_messages::Profiling;
use serde::Deserialize;

use super::{BrpcError, TEXT, brpc_error};
use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::request_arguments::QueryParameters;
use crate::request_host::RequestHost;

const HEAD: &str = "Name | Value | Description | Defined At\n\
                    ---------------------------------------\n";

/// Name and description of each flag.
const FLAGS: [(&str, &str); 3] = [
    ("je_prof_active", "true or false: jemalloc samples or not"),
    (
        "je_prof_dump",
        "any integer takes a heap profile, which is kept",
    ),
    (
        "je_prof_reset",
        "lg_prof_sample: drops the samples and sets the interval",
    ),
];

/// Serves a table of all flags. If the query has the parameter `setvalue`, replies with brpc's error instead: a flag to
/// set must be named in the path.
pub(super) async fn serve_flags(
    RequestHost(host): RequestHost,
    query: QueryParameters,
) -> Result<Response> {
    if query.last_value("setvalue").is_some() {
        let text = "Require gflag name";
        return Ok(brpc_error(BrpcError::NoSuchMethod, text, None));
    }
    serve_flag_table(&host, |_| true).await
}

#[derive(Deserialize)]
pub(super) struct Flag {
    flag: String,
}

/// Serves the flags whose names match the list of names and patterns in the path. With the parameter `setvalue`, sets
/// the flag in the path instead: replies with brpc's error 404 if there is no such flag, or 403 if it cannot be set.
pub(super) async fn serve_or_set_flag(
    RequestHost(host): RequestHost,
    Path(Flag { flag }): Path<Flag>,
    query: QueryParameters,
) -> Result<Response> {
    let Some(value) = query.last_value("setvalue") else {
        return serve_flag_table(&host, |name| matches_any_pattern(name, &flag)).await;
    };
    if !FLAGS.iter().any(|(name, _)| *name == flag) {
        return Ok(brpc_error(BrpcError::NoSuchMethod, "No such gflag", None));
    }
    match set_flag(&host, &flag, value).await {
        Ok(()) => Ok(([TEXT], format!("Set `{flag}' to {value}")).into_response()),
        Err(problem) if problem.is_host_error() || problem.is_client_error() => {
            let value = match value {
                "" => "empty string",
                value => value,
            };
            let text = format!("Fail to set `{flag}' to {value}");
            Ok(brpc_error(BrpcError::NotPermitted, &text, Some(&problem)))
        }
        Err(problem) => Err(problem),
    }
}

/// Returns whether the name of a flag matches one of the patterns in `list`, which are separated by `,` or `;`.
fn matches_any_pattern(name: &str, list: &str) -> bool {
    list.split([',', ';'])
        .any(|pattern| matches_pattern(name.as_bytes(), pattern.as_bytes()))
}

/// Returns whether a pattern matches the whole name. `*` stands for any bytes, also none, and `$` for any one byte.
fn matches_pattern(name: &[u8], pattern: &[u8]) -> bool {
    // `is_match[n]`: whether the pattern so far matches the first `n` bytes of the name.
    let mut is_match = vec![false; name.len() + 1];
    is_match[0] = true;
    for &wanted in pattern {
        // Whether the pattern without `wanted` matches one byte less of the name.
        let mut before = false;
        for length in 0..is_match.len() {
            let is_byte = length > 0 && (wanted == b'$' || wanted == name[length - 1]);
            let now = match wanted {
                b'*' => is_match[length] || (length > 0 && is_match[length - 1]),
                _ => before && is_byte,
            };
            before = std::mem::replace(&mut is_match[length], now);
        }
    }
    is_match[name.len()]
}

/// Sends the message for which the flag stands: `activate` or `deactivate` for `je_prof_active`, `dump` for
/// `je_prof_dump`, and for any other flag `reset`, with the value as log2 of the sample interval in bytes. Fails if the
/// value is invalid, or with the plugin's error.
async fn set_flag(host: &Gateway, flag: &str, value: &str) -> Result<()> {
    match (flag, value) {
        ("je_prof_active", _) => match parse_gflags_bool(value) {
            Some(true) => host.send_expecting_success("activate", &[]).await,
            Some(false) => host.send_expecting_success("deactivate", &[]).await,
            None => Err(Problem::invalid(format!(
                "{value:?} is neither true nor false"
            ))),
        },
        // The flag is an integer, whose value is ignored.
        ("je_prof_dump", _) if value.parse::<i32>().is_err() => {
            Err(Problem::invalid(format!("{value:?} is no integer")))
        }
        ("je_prof_dump", _) => host.take_dump().await.map(drop),
        _ => {
            host.send_expecting_success("reset", &[("lg_sample", value)])
                .await
        }
    }
}

/// Parses a boolean in all spellings of gflags, in upper or lower case. `None` for any other text.
fn parse_gflags_bool(value: &str) -> Option<bool> {
    let spells = |words: [&str; 5]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match (
        spells(["1", "t", "true", "y", "yes"]),
        spells(["0", "f", "false", "n", "no"]),
    ) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Serves a table of the flags whose names `is_wanted` accepts, with their values. The sample interval is that of the
/// first allocator.
async fn serve_flag_table(host: &Gateway, is_wanted: impl Fn(&str) -> bool) -> Result<Response> {
    let status = host.request_status().await?;
    let first = status.allocators.first().and_then(|each| each.jemalloc);
    let lg_sample = first.and_then(|jemalloc| jemalloc.lg_sample);
    let value = |name: &str| match name {
        "je_prof_active" => (status.profiling == Profiling::Active).to_string(),
        "je_prof_reset" => lg_sample.map(|lg| lg.to_string()).unwrap_or_default(),
        _ => " ".to_owned(),
    };
    let rows = FLAGS
        .iter()
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, description)| {
            // (R): the flag can be set at run time.
            format!(
                "{name} (R) | {} | {description} | memory_profile\n",
                value(name)
            )
        });
    Ok(([TEXT], HEAD.to_owned() + &rows.collect::<String>()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_have_all_spellings_of_gflags() {
        let check =
            |value: &str, expected| assert_eq!(parse_gflags_bool(value), expected, "{value}");
        check("true", Some(true));
        check("TRUE", Some(true));
        check("t", Some(true));
        check("Yes", Some(true));
        check("1", Some(true));
        check("F", Some(false));
        check("no", Some(false));
        check("0", Some(false));
        check("2", None);
        check("on", None);
        check("", None);
    }

    #[test]
    fn lists_select_flags() {
        let check = |list: &str, expected: &[&str]| {
            let names = FLAGS.iter().map(|(name, _)| *name);
            let selected: Vec<_> = names
                .filter(|name| matches_any_pattern(name, list))
                .collect();
            assert_eq!(selected, expected, "{list}");
        };
        check("je_prof_dump", &["je_prof_dump"]);
        check(
            "je_prof_dump,je_prof_active",
            &["je_prof_active", "je_prof_dump"],
        );
        check("other;je_prof_reset", &["je_prof_reset"]);
        check("*", &["je_prof_active", "je_prof_dump", "je_prof_reset"]);
        check("*_a*e", &["je_prof_active"]);
        check("je_prof_$$$$", &["je_prof_dump"]);
        check("enable_dir_service,enable_threads_service", &[]);
        check("je_prof", &[]);
        check("", &[]);
    }
}
