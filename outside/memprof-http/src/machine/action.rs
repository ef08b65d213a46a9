//! Commands that jobs run on a process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time for which a recording samples, and for which a process is sampled before it is searched for leaks.
const RECORD_TIME: Duration = Duration::from_secs(30);
const PROVE_TIME: Duration = Duration::from_secs(10);

/// Time that a command may take besides the sampling.
const WORK_TIME: Duration = Duration::from_secs(600);

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Record,
    Leaks,
    Holders,
    Ledger,
    Attach,
    Detach,
}

impl Action {
    /// Returns the arguments with which memprof runs the command on the process `pid`. A command that has a page writes
    /// the page to standard output.
    pub(super) fn arguments(self, pid: u32) -> Vec<String> {
        let sampling = |time: Duration| format!("--for={}s", time.as_secs());
        let (command, options) = match self {
            Self::Record => ("record", vec![sampling(RECORD_TIME)]),
            Self::Leaks => ("leaks", vec!["--prove".to_owned(), sampling(PROVE_TIME)]),
            Self::Holders => ("holders", Vec::new()),
            Self::Ledger => ("ledger", Vec::new()),
            Self::Attach => ("attach", Vec::new()),
            Self::Detach => ("detach", Vec::new()),
        };
        let format = self.has_page().then(|| "--format=html".to_owned());
        let words = [command.to_owned(), pid.to_string()].into_iter();
        words.chain(options).chain(format).collect()
    }

    /// Returns whether the command writes its result as a page of HTML, rather than as text.
    pub(super) fn has_page(self) -> bool {
        match self {
            Self::Record | Self::Leaks | Self::Holders | Self::Ledger => true,
            Self::Attach | Self::Detach => false,
        }
    }

    /// Returns whether the command, if it is interrupted, undoes its changes to the process before it ends.
    pub(super) fn is_cancellable(self) -> bool {
        match self {
            Self::Record | Self::Leaks | Self::Holders | Self::Ledger => true,
            Self::Attach | Self::Detach => false,
        }
    }

    /// Returns whether the command, if it is killed, may leave the plugin in the process. The plugin then stays until
    /// its lease ends.
    pub(super) fn can_leave_plugin(self) -> bool {
        match self {
            Self::Record | Self::Leaks | Self::Attach | Self::Detach => true,
            Self::Holders | Self::Ledger => false,
        }
    }

    /// Returns the time for which the command samples, by which the page shows its progress. `None` if it does not
    /// sample.
    pub(super) fn sampling_time(self) -> Option<Duration> {
        match self {
            Self::Record => Some(RECORD_TIME),
            Self::Leaks => Some(PROVE_TIME),
            Self::Holders | Self::Ledger | Self::Attach | Self::Detach => None,
        }
    }

    /// Returns the time after which the command is cancelled: 10 minutes besides its sampling.
    pub(super) fn time_limit(self) -> Duration {
        self.sampling_time().unwrap_or_default() + WORK_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_stands_in_front_of_the_options() {
        let check = |action: Action, expected: &str| {
            assert_eq!(action.arguments(7).join(" "), expected);
        };
        check(Action::Record, "record 7 --for=30s --format=html");
        check(Action::Leaks, "leaks 7 --prove --for=10s --format=html");
        check(Action::Holders, "holders 7 --format=html");
        check(Action::Ledger, "ledger 7 --format=html");
        check(Action::Attach, "attach 7");
        check(Action::Detach, "detach 7");
    }

    #[test]
    fn actions_that_only_read_load_no_plugin() {
        assert!(Action::Leaks.can_leave_plugin());
        assert!(!Action::Holders.can_leave_plugin());
        assert!(!Action::Ledger.can_leave_plugin());
    }
}
