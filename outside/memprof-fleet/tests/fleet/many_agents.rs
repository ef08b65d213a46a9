//! A thousand agents behind a real NATS server, simulated by the test; some expected ones do not reply.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, Message};
use futures::StreamExt;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::bus::{free_port, server};
use crate::test_dir::{CART, Process, Run, TestDir};

const AGENTS: usize = 1000;
/// Processes of each agent.
const PROCESSES: usize = 3;
/// Machines that wrote a profile, and have no agent.
const SILENT: [&str; 3] = ["gone-1", "gone-2", "gone-3"];
/// Number of concurrent requests.
const REQUESTERS: usize = 20;
/// Most attempts: on a busy machine some replies come too late, and other tests take minutes.
const MAX_ATTEMPTS: usize = 60;
/// Held by the one requester that tries again, so that a busy machine gets less to do, not more.
static TRY_AGAIN: Mutex<()> = Mutex::new(());

/// Replies as an agent does: it announces itself, lists its processes, and ends.
async fn reply_as_agent(client: &Client, host: &str, message: Message) {
    let Some(inbox) = message.reply else {
        return;
    };
    let mut replies = vec![json!({ "kind": "here", "host": host })];
    replies.extend((0..PROCESSES).map(|pid| {
        json!({
            "kind": "process", "host": host, "pid": 100 + pid, "service": "cart", "profiling": "active",
            "rss_bytes": 1 << 20, "inuse_bytes": null, "failed": null,
        })
    }));
    replies.push(json!({ "kind": "done", "host": host, "processes": PROCESSES }));
    for reply in replies {
        let bytes = reply.to_string().into();
        client.publish(inbox.clone(), bytes).await.unwrap();
    }
}

/// Connects all agents; they reply as long as the runtime runs.
fn start_agents(runtime: &Runtime, url: &str) {
    runtime.block_on(async {
        for agent in 0..AGENTS {
            let client = async_nats::connect(url).await.unwrap();
            let mut requests = client.subscribe("memprof.v1.svc.cart.ps").await.unwrap();
            client.flush().await.unwrap();
            tokio::spawn(async move {
                let host = format!("node-{agent:04}");
                while let Some(message) = requests.next().await {
                    reply_as_agent(&client, &host, message).await;
                }
            });
        }
    });
}

/// Sends a request, and checks that every agent replies with all its processes. Only the agents of [`SILENT`] must be
/// named as missing. Repeats the request, one test at a time, if replies were lost.
fn check_request(dir: &TestDir, args: &[&str]) {
    let has_all = |run: &Run| {
        let reply = run.json();
        let processes = reply["processes"].as_array().unwrap();
        let hosts: BTreeSet<_> = processes
            .iter()
            .map(|process| process["host"].as_str())
            .collect();
        (processes.len(), hosts.len()) == (AGENTS * PROCESSES, AGENTS)
    };
    let run = Some(dir.run(args)).filter(has_all).or_else(|| {
        let _turn = TRY_AGAIN.lock().unwrap_or_else(PoisonError::into_inner);
        (1..MAX_ATTEMPTS).map(|_| dir.run(args)).find(has_all)
    });
    let run = run.expect("all agents reply");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let reply = run.json();
    let missing = reply["missing"].as_object().unwrap();
    let missing: Vec<_> = missing.keys().map(String::as_str).collect();
    assert_eq!(missing, SILENT);
    let note = format!("{AGENTS} agents answered");
    assert!(run.stderr.contains(&note), "{}", run.stderr);
}

#[test]
fn thousand_agents_reply_to_concurrent_requests() {
    let dir = TestDir::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    for host in SILENT {
        let process = Process { host, ..CART };
        dir.spool(process, now, &[("leak", 1)]);
    }
    dir.drain();
    let port = free_port();
    let _server = server(dir.path("").as_path(), port, "");
    let url = format!("nats://127.0.0.1:{port}");
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    start_agents(&runtime, &url);
    let ps = ["fleet", "ps", "-t", "@cart", "--json", "--nats", &url];
    let (done, ended) = oneshot::channel::<()>();
    let (dir, ps) = (&dir, &ps);
    thread::scope(|scope| {
        let requesting = scope.spawn(move || {
            for requesters in [1, REQUESTERS] {
                let start = Instant::now();
                thread::scope(|scope| {
                    for _ in 0..requesters {
                        scope.spawn(|| check_request(dir, ps));
                    }
                });
                println!("{requesters} requests: {:?}", start.elapsed());
            }
            drop(done);
        });
        // The agents reply until all requests are done.
        let ended = runtime.block_on(ended);
        requesting.join().unwrap();
        assert!(ended.is_err(), "the sender is only dropped");
    });
}
