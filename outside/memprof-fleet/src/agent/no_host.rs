//! The reason why an agent had nothing to profile.

use std::collections::BTreeSet;

use memprof_host::{DiscoveryScope, discover_hosts};

use super::Agent;

impl Agent {
    /// Returns the message for an agent that had no host to profile: either no host runs, or no rule selects one. In
    /// the second case, the text names the rules and the running services.
    pub(super) fn no_host_message(&self) -> String {
        let running = discover_hosts(DiscoveryScope::AllProcesses, |_| ()).hosts;
        let running: BTreeSet<_> = running.iter().map(|(host, ())| &*host.info.name).collect();
        if running.is_empty() {
            return "no process with the plugin is running that this user can profile: `memprof ps --all` shows why"
                .to_owned();
        }
        let list = |names: &mut dyn Iterator<Item = &str>| {
            let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
            match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(", "),
            }
        };
        format!(
            "no [[service]] rule selects a running process: the rules' names are {}, and running are {}; `share` may \
             leave some out",
            list(&mut self.config.service.iter().map(|rule| &*rule.name)),
            list(&mut running.into_iter())
        )
    }
}
