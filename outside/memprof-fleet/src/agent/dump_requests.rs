//! Requests for dumps over the bus.

use std::sync::mpsc::Receiver;

use memprof_host::{DiscoveryScope, discover_hosts};

use super::Agent;
use crate::bus::{AgentEvent, AgentReply, DumpRequest, agent_id, describe_agent_process};
use crate::drain::drain_spool;
use crate::policy::{is_in_share, rule_for};

impl Agent {
    /// Handles `first` and all requests that wait in `events`. Dumps each requested process once, unless only dry runs
    /// request it, and moves the profiles to the store. Replies to each request. Returns true if one of the events ends
    /// the agent.
    pub(super) fn handle_dump_requests(
        &mut self,
        first: DumpRequest,
        events: &Receiver<AgentEvent>,
    ) -> bool {
        let mut requests = vec![first];
        let mut must_end = false;
        for event in events.try_iter() {
            match event {
                AgentEvent::DumpRequested(request) => requests.push(request),
                AgentEvent::End => must_end = true,
            }
        }
        let mut counts = vec![0; requests.len()];
        for (host, ()) in discover_hosts(DiscoveryScope::AllProcesses, |_| ()).hosts {
            let instance = self.machine.process_key(&host);
            let (name, pid) = (self.machine.name.clone(), host.pid.cast_signed());
            let selects = |dump: &DumpRequest| {
                let request = &dump.request;
                request.target.matches(&host.info.name, &name, pid)
                    && is_in_share(&instance, request.share)
            };
            let selected: Vec<_> = (0..requests.len())
                .filter(|index| selects(&requests[*index]))
                .collect();
            let mut reply = describe_agent_process(&name, &host, String::new());
            if selected
                .iter()
                .any(|index| !requests[*index].request.dry_run)
            {
                // A request may select a process that no rule names; the default rule applies then.
                let rule = rule_for(&self.config.service, &host.info.name).cloned();
                match self.dump_to_spool(&host, &rule.unwrap_or_default()) {
                    Ok(bytes) => reply.inuse_bytes = Some(bytes),
                    Err(error) => reply.failed = Some(format!("{error:#}")),
                }
            }
            for index in selected {
                let mut reply = reply.clone();
                if requests[index].request.dry_run {
                    // A dry run does not show the dump that another request caused.
                    (reply.inuse_bytes, reply.failed) = (None, None);
                }
                counts[index] += 1;
                // Sending fails if the requesting program has gone.
                requests[index]
                    .replies
                    .send(AgentReply::Process(reply))
                    .unwrap_or_default();
            }
        }
        let stored = self
            .flush_batch()
            .and_then(|()| drain_spool(&self.spool, &self.store))
            .map(drop);
        self.report_outcome_change("the store".to_owned(), stored);
        for (request, processes) in requests.into_iter().zip(counts) {
            let host = self.machine.name.clone();
            let agent = agent_id().to_owned();
            request
                .replies
                .send(AgentReply::Done {
                    host,
                    agent,
                    processes,
                })
                .unwrap_or_default();
        }
        must_end
    }
}
