//! The router over a host that answers as it is told to.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use memprof_host::protocol::HostInfo;
use memprof_http::{Admits, Answer, Fetched, Gone, Hosts, Settings, Target, router};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INTERNAL, MEMPROF_IO, MEMPROF_UNSUPPORTED,
};
use rustix::io::Errno;
use serde_json::Value;
use tower::ServiceExt;

/// A host that answers every message alike.
#[derive(Debug)]
struct Fake(Result<Answer, Gone>);

impl Target for Fake {
    fn host(&self) -> Result<HostInfo, Gone> {
        Ok(HostInfo {
            pid: 7,
            name: "fake".to_owned(),
            command: "fake --x".to_owned(),
            version: String::new(),
            started: 0,
        })
    }

    fn message(&self, _: &str, _: &str) -> Result<Answer, Gone> {
        self.0.clone()
    }

    fn fetch(&self, _: &str) -> Result<Fetched, Gone> {
        self.0.clone().map(Fetched::Refused)
    }
}

fn refusing(status: i32, message: &str) -> Fake {
    let mut failure = Failure::new(status, message).remedy("wait");
    failure.retry_after_ms = (status == MEMPROF_BUSY).then_some(500);
    refused(&failure)
}

fn refused(failure: &Failure) -> Fake {
    Fake(Ok(Answer {
        status: failure.status(),
        body: failure.to_json().into_bytes(),
    }))
}

fn ask(host: Fake, method: &str, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut settings = Settings::default();
        settings.access.admits = Admits::Everyone;
        let router = router(Hosts::one(Arc::new(host)), settings);
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap();
        let reply = router.oneshot(request).await.unwrap();
        let (head, body) = reply.into_parts();
        (
            head.status,
            head.headers,
            to_bytes(body, usize::MAX).await.unwrap().to_vec(),
        )
    })
}

#[test]
fn refusals_by_kind() {
    let check = |host: Fake, expected: u16, kind: &str, retry_after: Option<&str>| {
        let (status, headers, body) = ask(host, "POST", "/api/v1/dump");
        assert_eq!(status, expected, "{kind}");
        let error = serde_json::from_slice::<Value>(&body).unwrap()["error"].take();
        assert_eq!(error["kind"], kind);
        let seconds = headers
            .get("retry-after")
            .map(|value| value.to_str().unwrap());
        assert_eq!(seconds, retry_after, "{kind}");
    };
    check(
        refusing(MEMPROF_BUSY, "a dump is running"),
        429,
        "busy",
        Some("1"),
    );
    check(
        refusing(MEMPROF_UNSUPPORTED, "no"),
        501,
        "unsupported",
        None,
    );
    check(refusing(MEMPROF_ALLOCATOR, "no"), 500, "allocator", None);
    check(refusing(MEMPROF_IO, "no"), 500, "io", None);
    check(refusing(MEMPROF_INTERNAL, "no"), 500, "internal", None);
    check(
        Fake(Err(Gone("it ended".to_owned()))),
        503,
        "host_gone",
        Some("2"),
    );
    let nonsense = Answer {
        status: 0,
        body: b"nonsense".to_vec(),
    };
    check(Fake(Ok(nonsense)), 500, "internal", None);
}

#[test]
fn the_other_systems_say_it_in_their_words() {
    let check = |host: Fake, method: &str, path: &str, expected: u16, text: &str| {
        let (status, _, body) = ask(host, method, path);
        assert_eq!(status, expected, "{path}");
        assert_eq!(String::from_utf8_lossy(&body), text, "{path}");
    };
    let full = || {
        let message = "failed to open /d: No space left on device (ENOSPC)";
        let mut failure = Failure::new(MEMPROF_IO, message).remedy("wait");
        failure.errno = Some(Errno::NOSPC.raw_os_error());
        refused(&failure)
    };
    check(
        full(),
        "POST",
        "/service/jemalloc/prof/dump",
        200,
        "mallctl() returned error: No space left on device\n\
         failed to open /d: No space left on device (ENOSPC); wait\n",
    );
    check(
        refusing(MEMPROF_BUSY, "a dump is running"),
        "POST",
        "/service/jemalloc/prof/dump",
        200,
        "mallctl() returned error: Resource temporarily unavailable\na dump is running; wait\n",
    );
    check(
        full(),
        "GET",
        "/flags/je_prof_dump?setvalue=x",
        403,
        "[E1]Fail to set `je_prof_dump' to x\n\
         failed to open /d: No space left on device (ENOSPC); wait\n",
    );
    check(
        full(),
        "POST",
        "/debug/prof/mem",
        500,
        "{\"error\":\"failed to open /d: No space left on device (ENOSPC); wait\"}",
    );
}
