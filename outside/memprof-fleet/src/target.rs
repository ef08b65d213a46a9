//! Selection of processes: `@SERVICE`, `HOST`, `HOST/PID`, or all.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Processes that the option `--target` selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Target {
    All,
    Service(String),
    Host(String),
    Process(String, String),
}

impl FromStr for Target {
    type Err = Infallible;

    /// Parses `@SERVICE`, `HOST/PID` or `HOST`. An empty text selects the whole fleet.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text.strip_prefix('@'), text.rsplit_once('/')) {
            _ if text.is_empty() => Self::All,
            (Some(service), _) => Self::Service(service.to_owned()),
            (None, Some((host, pid))) => Self::Process(host.to_owned(), pid.to_owned()),
            (None, None) => Self::Host(text.to_owned()),
        })
    }
}

impl fmt::Display for Target {
    /// Formats the target as `from_str` parses it, except the whole fleet, which is `the fleet`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("the fleet"),
            Self::Service(service) => write!(f, "@{service}"),
            Self::Host(host) => f.write_str(host),
            Self::Process(host, pid) => write!(f, "{host}/{pid}"),
        }
    }
}

impl Target {
    /// Returns whether the target selects a process, given by its service, machine and pid.
    pub(crate) fn matches(&self, service: &str, host: &str, pid: i32) -> bool {
        match self {
            Self::All => true,
            Self::Service(selected) => selected == service,
            Self::Host(selected) => selected == host,
            Self::Process(selected, selected_pid) => {
                selected == host && *selected_pid == pid.to_string()
            }
        }
    }

    /// Returns the name of the selected service. `None` if another target is selected.
    pub(crate) fn service(&self) -> Option<&str> {
        match self {
            Self::Service(service) => Some(service),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_matches_selected_processes_only() {
        let check = |text: &str, expected: [bool; 3]| {
            let Ok(target) = text.parse::<Target>();
            let processes = [("cart", "a", 7), ("cart", "b", 7), ("shop", "a", 8)];
            let matched = processes.map(|(service, host, pid)| target.matches(service, host, pid));
            assert_eq!(matched, expected, "{text}");
        };
        check("", [true; 3]);
        check("@cart", [true, true, false]);
        check("a", [true, false, true]);
        check("a/7", [true, false, false]);
        check("cart", [false; 3]);
    }
}
