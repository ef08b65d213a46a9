//! A plugin with a thread of its own, work that blocks, and a reply that is a file.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memprof_plugin_abi::{
    Arguments, ErrorKind, Failure, Host, Message, Plugin, Reply, TEXT, export_plugin,
};

struct Worker {
    ticks: Arc<AtomicU64>,
    /// Held by the one message that runs a program; a second one is answered at once.
    running: Mutex<()>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Plugin for Worker {
    const ID: &'static str = "worker";
    const VERSION: &'static str = "0.1.0";
    const MESSAGES: &'static [Message] = &[
        Message::new("ticks", "", "Says how often the thread has worked."),
        Message::new("run", "program=PATH", "Runs a program, and waits for it."),
        Message::new("report", "", "Returns a large report, as a file."),
    ];

    fn create(_: Host, _config: &str) -> Result<Self, Failure> {
        let ticks = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ticks);
        let (stop, stopped) = mpsc::channel();
        // The thread waits for its end, so that `drop` need not wait for it.
        let work = move || {
            while stopped.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout)
            {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("worker".into()).spawn(work);
        let thread = thread.map_err(|error| Failure::io("start a thread", &error))?;
        Ok(Self {
            ticks,
            running: Mutex::new(()),
            thread: Some((stop, thread)),
        })
    }

    fn handle_message(
        &self,
        name: &str,
        mut args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        match name {
            "ticks" => {
                args.finish()?;
                reply.text(&self.ticks.load(Ordering::Relaxed).to_string())
            }
            "run" => {
                let program = args.require("program")?;
                args.finish()?;
                let Ok(_running) = self.running.try_lock() else {
                    return Err(Failure::new(ErrorKind::Busy, "a program is running"));
                };
                let status = Command::new(&program).status();
                let status =
                    status.map_err(|error| Failure::io(&format!("run {program}"), &error))?;
                reply.text(&status.to_string())
            }
            _ => {
                args.finish()?;
                let failed = |error| Failure::io("write the report", &error);
                let path = std::env::temp_dir().join(format!("report.{}", std::process::id()));
                let mut file = File::create_new(&path).map_err(failed)?;
                // The host passes a file on only if it is open for reading alone.
                let readable = File::open(&path).map_err(failed)?;
                std::fs::remove_file(&path).map_err(failed)?;
                let line = [b'x'; 1 << 20];
                for _ in 0..20 {
                    file.write_all(&line).map_err(failed)?;
                }
                reply.file(&readable, 20 << 20, TEXT)
            }
        }
    }
}

impl Drop for Worker {
    // After `drop`, the host is gone for this plugin: no thread may be left.
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // A panic of the thread was logged.
            let _ended = thread.join();
        }
    }
}

export_plugin!(Worker);
