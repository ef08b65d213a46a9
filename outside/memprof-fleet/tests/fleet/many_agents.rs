//! A thousand agents behind a real NATS server, played by this program; some are known and do not answer.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, Message};
use futures::StreamExt;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::bus::{free_port, server};
use crate::place::{CART, Place, Process, Run};

const AGENTS: usize = 1000;
/// Of each agent.
const PROCESSES: usize = 3;
/// Agents that wrote a profile, and are gone.
const SILENT: [&str; 3] = ["gone-1", "gone-2", "gone-3"];
const ASKERS: usize = 20;
/// On a busy machine the answers of some come after the asker stopped to wait, and other tests take minutes.
const LOOKS: usize = 60;

/// Answers as an agent does: that it is there, a reply for each process, and the end.
async fn answer(client: &Client, host: &str, message: Message) {
    let Some(to) = message.reply else {
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
        client.publish(to.clone(), bytes).await.unwrap();
    }
}

/// Connects all of them; they answer for as long as the runtime is driven.
fn agents(runtime: &Runtime, url: &str) {
    runtime.block_on(async {
        for agent in 0..AGENTS {
            let client = async_nats::connect(url).await.unwrap();
            let mut asked = client.subscribe("memprof.v1.svc.cart.ps").await.unwrap();
            client.flush().await.unwrap();
            tokio::spawn(async move {
                let host = format!("node-{agent:04}");
                while let Some(message) = asked.next().await {
                    answer(&client, &host, message).await;
                }
            });
        }
    });
}

/// Asks: every agent is in the answer with all its processes, or is named as missing.
fn ask(place: &Place, args: &[&str]) {
    let has_all = |run: &Run| {
        let answer = run.json();
        let processes = answer["processes"].as_array().unwrap();
        let hosts: BTreeSet<_> = processes.iter().map(|one| one["host"].as_str()).collect();
        (processes.len(), hosts.len()) == (AGENTS * PROCESSES, AGENTS)
    };
    let run = (0..LOOKS).map(|_| place.run(args)).find(has_all);
    let run = run.expect("all agents answer");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let answer = run.json();
    let missing = answer["missing"].as_object().unwrap();
    let missing: Vec<_> = missing.keys().map(String::as_str).collect();
    assert_eq!(missing, SILENT);
    let told = format!("{AGENTS} agents answered");
    assert!(run.stderr.contains(&told), "{}", run.stderr);
}

#[test]
fn a_thousand_agents_answer_one_asker_and_twenty() {
    let place = Place::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    for host in SILENT {
        let process = Process { host, ..CART };
        place.spool(process, now, &[("leak", 1)]);
    }
    place.drain();
    let port = free_port();
    let _server = server(place.path("").as_path(), port, "");
    let url = format!("nats://127.0.0.1:{port}");
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    agents(&runtime, &url);
    let ps = ["fleet", "ps", "-t", "@cart", "--json", "--nats", &url];
    let (done, ended) = oneshot::channel::<()>();
    let (place, ps) = (&place, &ps);
    thread::scope(|scope| {
        let asking = scope.spawn(move || {
            for askers in [1, ASKERS] {
                let begun = Instant::now();
                thread::scope(|scope| {
                    for _ in 0..askers {
                        scope.spawn(|| ask(place, ps));
                    }
                });
                println!("{askers} askers: {:?}", begun.elapsed());
            }
            drop(done);
        });
        // The agents answer meanwhile.
        let ended = runtime.block_on(ended);
        asking.join().unwrap();
        assert!(ended.is_err(), "nobody sends anything");
    });
}
