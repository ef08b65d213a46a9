//! The arguments of `stats` that select the format of the reply.

use memprof_core::PrintOptions;
use memprof_plugin_abi::{ErrorKind, Failure};

use crate::reply::to_failure;

/// Options of the printout, and the format of the reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StatsFormat {
    /// Option letters for jemalloc's printout. `None`: the default, which omits single arenas.
    pub(crate) options: Option<PrintOptions>,
    /// Whether the reply is plain text, instead of JSON that contains the text.
    pub(crate) is_plain: bool,
}

impl StatsFormat {
    /// Parses the arguments `opts` (jemalloc's option letters) and `format`, which are `None` if they are absent.
    /// `format=json` adds the option letter `J`. Without both, the printout has its default form.
    ///
    /// # Errors
    /// `InvalidArgument`: an unknown letter or format, or both text and JSON.
    pub(crate) fn parse(opts: Option<&str>, format: Option<&str>) -> Result<Self, Failure> {
        let given = opts
            .map(PrintOptions::parse)
            .transpose()
            .map_err(to_failure)?;
        let wants_json = given.as_ref().is_some_and(PrintOptions::is_json);
        let options = match format {
            Some("json") if !wants_json => {
                // Without `opts`, single arenas (`a`) are omitted, as in the default.
                let letters = format!("J{}", opts.unwrap_or("a"));
                Some(PrintOptions::parse(&letters).map_err(to_failure)?)
            }
            Some("text") if wants_json => {
                return Err(stats_argument_failure(
                    "format=\"text\" contradicts J in opts",
                ));
            }
            None | Some("json" | "text") => given,
            Some(other) => {
                return Err(stats_argument_failure(&format!("unknown format {other:?}")));
            }
        };
        Ok(Self {
            options,
            is_plain: format == Some("text"),
        })
    }

    /// Returns whether the printout of an allocator is JSON, because its options contain the letter `J`.
    pub(crate) fn is_json(&self) -> bool {
        self.options.as_ref().is_some_and(PrintOptions::is_json)
    }
}

/// Creates the failure for an invalid argument of `stats`, with the valid formats as the remedy.
fn stats_argument_failure(message: &str) -> Failure {
    Failure::new(ErrorKind::InvalidArgument, message).remedy("valid formats: text, json (opts=J)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_of_arguments() {
        let check = |opts, format, letters: Option<&str>, is_plain| {
            let options = letters.map(|letters| PrintOptions::parse(letters).unwrap());
            let expected = StatsFormat { options, is_plain };
            assert_eq!(StatsFormat::parse(opts, format).unwrap(), expected);
        };
        check(None, None, None, false);
        check(None, Some("text"), None, true);
        check(None, Some("json"), Some("Ja"), false);
        check(Some("g"), Some("json"), Some("Jg"), false);
        check(Some("gJ"), Some("json"), Some("gJ"), false);
        check(Some("gh"), Some("text"), Some("gh"), true);
        check(Some(""), None, Some(""), false);
    }
}
