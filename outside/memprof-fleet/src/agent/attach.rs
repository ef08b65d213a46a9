//! Attachments of an agent: started in each round, ended with the agent.

use memprof_host::{DiscoveryScope, discover_hosts};
use memprof_output::{note, one_line, print_stderr};

use super::Agent;

impl Agent {
    /// Starts to attach to unmodified programs that the policy names, and reports the attempts that have ended. Does
    /// nothing if the policy names no programs.
    pub(super) fn attach_to_programs(&mut self) {
        if self
            .config
            .service
            .iter()
            .all(|rule| rule.attach.is_empty())
        {
            return;
        }
        let hosts = discover_hosts(DiscoveryScope::AllProcesses, |_| ()).hosts;
        let hosts = hosts.into_iter().map(|(host, ())| host.pid).collect();
        let attempts = self
            .attachments
            .start_attempts(&self.config.service, &hosts, &self.machine);
        let attempts = match attempts {
            Ok(attempts) => attempts,
            Err(error) => return self.report_outcome_change("attaching".to_owned(), Err(error)),
        };
        self.report_attempts(attempts);
    }

    /// Prints the results of attempts to attach, each with the name of its process. A repeated error is printed only at
    /// doubling intervals.
    pub(super) fn report_attempts(&mut self, attempts: Vec<(String, anyhow::Result<()>)>) {
        for (name, attempt) in attempts {
            if attempt.is_ok() {
                print_stderr(&format!("memprof: {}: attached", one_line(&name)));
            }
            self.report_outcome_change(name, attempt);
        }
    }

    /// Detaches the plugin from all processes to which this agent has attached it, and prints the results. Blocks until
    /// all are detached.
    pub(super) fn detach_all(&mut self) {
        for (name, detached) in self.attachments.detach_all(&self.machine) {
            match detached {
                Ok(()) => print_stderr(&format!("memprof: {}: detached", one_line(&name))),
                Err(error) => note(&format!("{name}: {error:#}")),
            }
        }
    }
}
