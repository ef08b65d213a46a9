//! Dumps that somebody asks for over the bus.

use std::sync::mpsc::Receiver;

use memprof_host::{DiscoveryScope, discover};

use super::Agent;
use crate::bus::{AgentEvent, AgentReply, DumpRequest, agent_id, process};
use crate::drain::drain;
use crate::policy::{is_in_share, rule};

impl Agent {
    /// Takes the dumps that are asked for, each process once for all who ask. Returns whether the agent is to
    /// end.
    pub(super) fn handle_dump_requests(
        &mut self,
        first: DumpRequest,
        events: &Receiver<AgentEvent>,
    ) -> bool {
        let mut asked = vec![first];
        let mut is_end = false;
        for event in events.try_iter() {
            match event {
                AgentEvent::Asked(more) => asked.push(more),
                AgentEvent::End => is_end = true,
            }
        }
        let mut told = vec![0; asked.len()];
        for (host, ()) in discover(DiscoveryScope::AllProcesses, |_| ()).hosts {
            let instance = self.machine.process_key(&host);
            let (name, pid) = (self.machine.name.clone(), host.pid.cast_signed());
            let wants = |asked: &DumpRequest| {
                let of = &asked.request;
                of.target.matches(&host.info.name, &name, pid) && is_in_share(&instance, of.share)
            };
            let wanted: Vec<_> = (0..asked.len()).filter(|at| wants(&asked[*at])).collect();
            let mut answer = process(&name, &host, String::new());
            if wanted.iter().any(|at| !asked[*at].request.dry_run) {
                let rule = rule(&self.config.service, &host.info.name).cloned();
                match self.dump(&host, &rule.unwrap_or_default()) {
                    Ok(bytes) => answer.inuse_bytes = Some(bytes),
                    Err(error) => answer.failed = Some(format!("{error:#}")),
                }
            }
            for at in wanted {
                let mut answer = answer.clone();
                if asked[at].request.dry_run {
                    (answer.inuse_bytes, answer.failed) = (None, None);
                }
                told[at] += 1;
                // Who does not wait any more gets none.
                asked[at]
                    .replies
                    .send(AgentReply::Process(answer))
                    .unwrap_or_default();
            }
        }
        let stored = self
            .flush_batch()
            .and_then(|()| drain(&self.spool, &self.store))
            .map(drop);
        self.report_change("the store".to_owned(), stored);
        for (asked, processes) in asked.into_iter().zip(told) {
            let host = self.machine.name.clone();
            let agent = agent_id().to_owned();
            asked
                .replies
                .send(AgentReply::Done {
                    host,
                    agent,
                    processes,
                })
                .unwrap_or_default();
        }
        is_end
    }
}
