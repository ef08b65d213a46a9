//! Tests the router over a host with fixed replies.

use std::io::Write;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_http::{
    AccessRule, DumpResponse, HostClient, HostUnavailable, Hosts, PluginReply, RouterSettings,
    router,
};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{
    MEMPROF_ALLOCATOR, MEMPROF_BUSY, MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_IO,
    MEMPROF_UNSUPPORTED,
};
use rustix::io::Errno;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A host with the same reply to every message.
#[derive(Debug)]
struct Fake(Result<PluginReply, HostUnavailable>);

impl HostClient for Fake {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        Ok(HostInfo {
            pid: 7,
            name: "fake".to_owned(),
            command: "fake --x".to_owned(),
            version: String::new(),
            started: 0,
        })
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        Ok(None)
    }

    fn send_message(&self, _: &str, _: &str) -> Result<PluginReply, HostUnavailable> {
        self.0.clone()
    }

    fn request_dump(&self, _: &str, _: &str) -> Result<DumpResponse, HostUnavailable> {
        self.0.clone().map(DumpResponse::Refused)
    }
}

fn failing_host(status: i32, message: &str) -> Fake {
    let mut failure = Failure::new(status, message).remedy("wait");
    failure.retry_after_ms = (status == MEMPROF_BUSY).then_some(500);
    host_with_failure(&failure)
}

fn host_with_failure(failure: &Failure) -> Fake {
    Fake(Ok(PluginReply {
        status: failure.status(),
        body: failure.to_json().into_bytes(),
    }))
}

fn request(
    host: impl HostClient + 'static,
    method: &str,
    path: &str,
) -> (StatusCode, HeaderMap, Vec<u8>) {
    request_with_body(Arc::new(host), method, path, "")
}

fn request_with_body(
    host: Arc<dyn HostClient>,
    method: &str,
    path: &str,
    body: &'static str,
) -> (StatusCode, HeaderMap, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut settings = RouterSettings::default();
        settings.access.admits = AccessRule::Everyone;
        let router = router(Hosts::with_single(host), settings);
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header("host", "localhost")
            .body(Body::from(body))
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
fn error_kind_determines_status() {
    let check = |host: Fake, expected: u16, kind: &str, retry_after: Option<&str>| {
        let (status, headers, body) = request(host, "POST", "/api/v1/dump");
        assert_eq!(status, expected, "{kind}");
        let error = serde_json::from_slice::<Value>(&body).unwrap()["error"].take();
        assert_eq!(error["kind"], kind);
        let seconds = headers
            .get("retry-after")
            .map(|value| value.to_str().unwrap());
        assert_eq!(seconds, retry_after, "{kind}");
    };
    check(
        failing_host(MEMPROF_BUSY, "a dump is running"),
        429,
        "busy",
        Some("1"),
    );
    check(
        failing_host(MEMPROF_UNSUPPORTED, "no"),
        409,
        "unsupported",
        None,
    );
    check(
        failing_host(MEMPROF_ALLOCATOR, "no"),
        500,
        "allocator",
        None,
    );
    check(failing_host(MEMPROF_IO, "no"), 500, "io", None);
    check(failing_host(MEMPROF_INTERNAL, "no"), 500, "internal", None);
    check(
        Fake(Err(HostUnavailable("it ended".to_owned()))),
        503,
        "host_gone",
        Some("2"),
    );
    let nonsense = PluginReply {
        status: 0,
        body: b"nonsense".to_vec(),
    };
    check(Fake(Ok(nonsense)), 500, "internal", None);
}

#[test]
fn compat_endpoints_report_errors_in_their_form() {
    let check = |host: Fake, method: &str, path: &str, expected: u16, text: &str| {
        let (status, _, body) = request(host, method, path);
        assert_eq!(status, expected, "{path}");
        assert_eq!(String::from_utf8_lossy(&body), text, "{path}");
    };
    let full = || {
        let message = "failed to open /d: No space left on device (ENOSPC)";
        let mut failure = Failure::new(MEMPROF_IO, message).remedy("wait");
        failure.errno = Some(Errno::NOSPC.raw_os_error());
        host_with_failure(&failure)
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
        failing_host(MEMPROF_BUSY, "a dump is running"),
        "POST",
        "/service/jemalloc/prof/dump",
        200,
        "mallctl() returned error: Resource temporarily unavailable\na dump is running; wait\n",
    );
    check(
        full(),
        "GET",
        "/flags/je_prof_dump?setvalue=2",
        403,
        "[E1]Fail to set `je_prof_dump' to 2\n\
         failed to open /d: No space left on device (ENOSPC); wait\n",
    );
    check(
        full(),
        "POST",
        "/service/jemalloc/pprof/dump",
        500,
        "mallctl() returned error: No space left on device\n\
         failed to open /d: No space left on device (ENOSPC); wait\n",
    );
    let off = || failing_host(MEMPROF_UNSUPPORTED, "opt.prof is false");
    let userver_off = "'jemalloc' profiling is not available because the service was not started with a 'MALLOC_CONF' \
        environment variable that contain 'prof:true'\nopt.prof is false; wait\n";
    for (method, command) in [("POST", "enable"), ("GET", "heap")] {
        let path = format!("/service/jemalloc/pprof/{command}");
        check(off(), method, &path, 503, userver_off);
    }
    check(
        off(),
        "GET",
        "/hotspots/heap",
        403,
        "Error: heap profiler is not enabled.\nopt.prof is false; wait\n",
    );
    check(
        full(),
        "POST",
        "/debug/prof/mem",
        500,
        "{\"error\":\"failed to open /d: No space left on device (ENOSPC); wait\"}",
    );
}

/// A host that notes each message and its arguments, and replies with an empty object.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(String, String)>>);

impl HostClient for Recorder {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        Err(HostUnavailable("not requested".to_owned()))
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        Ok(None)
    }

    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        let mut messages = self.0.lock().unwrap();
        messages.push((name.to_owned(), args.to_owned()));
        Ok(PluginReply {
            status: 0,
            body: b"{}".to_vec(),
        })
    }

    fn request_dump(&self, _: &str, _: &str) -> Result<DumpResponse, HostUnavailable> {
        Err(HostUnavailable("not requested".to_owned()))
    }
}

#[test]
fn arguments_reach_the_host_from_query_and_body() {
    let check = |method: &str, path: &str, body: &'static str, message: &str, args: &str| {
        let host = Arc::new(Recorder::default());
        let client = Arc::clone(&host);
        let (status, _, reply) = request_with_body(client, method, path, body);
        let reply = String::from_utf8_lossy(&reply);
        assert_eq!(status, 200, "{path} {body}: {reply}");
        let sent = host.0.lock().unwrap();
        assert_eq!(
            *sent,
            [(message.to_owned(), args.to_owned())],
            "{path} {body}"
        );
    };
    let activate = "/api/v1/activate";
    check("POST", activate, "", "activate", "");
    check("POST", activate, "{\"for\":\"10m\"}", "activate", "for=10m");
    check("POST", activate, "for=10m", "activate", "for=10m");
    let with_query = "/api/v1/activate?for=10m";
    check("POST", with_query, "", "activate", "for=10m");
    check(
        "POST",
        with_query,
        "owner=%6de",
        "activate",
        "for=10m owner=me",
    );
    check("POST", "/api/v1/dump?keep=off", "", "dump", "keep=off");
    check("GET", "/api/v1/stats", "", "stats", "log=off");
    check("GET", "/api/v1/stats?log=on", "", "stats", "log=on");
    let enable = "/service/jemalloc/pprof/enable";
    check("POST", enable, "", "activate", "");
    check(
        "POST",
        "//service/jemalloc//prof/disable/",
        "",
        "deactivate",
        "",
    );
    check(
        "GET",
        "/flags/je_prof_active/?setvalue=Yes",
        "",
        "activate",
        "",
    );
    check(
        "GET",
        "/flags/je_prof_active?setvalue=F",
        "",
        "deactivate",
        "",
    );
    let gdump = "/debug/prof/mem/gdump";
    check("POST", gdump, "activate=%74rue&x=1", "gdump", "state=on");
    check("POST", gdump, "x=1&activate=false", "gdump", "state=off");
}

#[test]
fn refused_requests_reach_no_host_and_have_a_reason() {
    let check = |method: &str, path: &str, body: &'static str, expected: u16, reason: &str| {
        let host = Arc::new(Recorder::default());
        let client = Arc::clone(&host);
        let (status, headers, reply) = request_with_body(client, method, path, body);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert_eq!(status, expected, "{path} {body}: {reply}");
        assert!(reply.contains(reason), "{path} {body}: {reply}");
        assert_eq!(*host.0.lock().unwrap(), [], "{path} {body}");
        (headers, reply)
    };
    let activate = "/api/v1/activate?for=10m";
    check("POST", activate, "for=1m", 400, "is there twice");
    check("POST", activate, "{", 400, "not a JSON object");
    check(
        "POST",
        "/api/v1/activate?FOR=1m",
        "",
        400,
        "unknown argument",
    );
    let (headers, _) = check(
        "PUT",
        activate,
        "",
        405,
        "does not take the request's method",
    );
    assert_eq!(headers["allow"], "POST");
    check(
        "POST",
        "/debug/prof/mem/gdump",
        "true",
        400,
        "activate=true",
    );
    check(
        "GET",
        "/hotspots/heap?display_type=bogus",
        "",
        400,
        "[E22]Invalid display_type=bogus",
    );
    let refused_by_flag = "[E1]Fail to set `je_prof_dump' to /etc/x";
    check(
        "GET",
        "/flags/je_prof_dump?setvalue=/etc/x",
        "",
        403,
        refused_by_flag,
    );
    let userver = "/service/jemalloc/pprof";
    let (_, list) = check(
        "GET",
        &format!("{userver}/purge"),
        "",
        404,
        "'cmdline', 'symbol'",
    );
    assert!(list.starts_with("Unsupported command. "), "{list}");
    check("GET", &format!("{userver}/enable"), "", 405, "GET");
    check("POST", &format!("{userver}/heap"), "", 405, "POST");
    let symbol = format!("{userver}/symbol");
    check("POST", &symbol, "0x0+none", 400, "an invalid address\n");
    let seconds = "/debug/pprof/heap?seconds=0";
    let (headers, reply) = check("GET", seconds, "", 400, "must be a positive integer\n");
    assert_eq!(headers["x-go-pprof"], "1");
    assert!(!reply.contains('{'), "{reply}");
    let (headers, _) = check("GET", "/debug/pprof", "", 301, "");
    assert_eq!(headers["location"], "pprof/");
}

/// A plugin of version 0.1, which keeps every dump.
#[derive(Debug)]
struct PluginV01 {
    dump: &'static str,
}

impl PluginV01 {
    const DUMP: &str = "heap_v2/512\n  t*: 1: 512 [0: 0]\n@ 0x400010\n  t*: 1: 512 [0: 0]\n\n\
        MAPPED_LIBRARIES:\n00400000-00401000 r-xp 00000000 00:00 0 /bin/older\n";
    const EMPTY_DUMP: &str = "heap_v2/512\n  t*: 0: 0 [0: 0]\n\n\
        MAPPED_LIBRARIES:\n00400000-00401000 r-xp 00000000 00:00 0 /bin/older\n";
    const ID: &str = "20261121T111244Z.7.1.0000beef";
}

impl HostClient for PluginV01 {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        failing_host(MEMPROF_IO, "no").host_info()
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        Ok(None)
    }

    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        assert_eq!((name, args), ("dump", ""));
        let mut dump = json!({
            "status": "ok", "text": "", "id": Self::ID, "kind": "heap", "path": "/d/1.heap", "bytes": self.dump.len(), "stacks": 1,
            "sample_interval": 512, "estimated_inuse_bytes": 512, "allocator": "jemalloc 5.3.0",
        });
        dump["duration_ms"] = 1.into();
        dump["dumps"] = json!([]);
        dump["warnings"] = json!([]);
        Ok(PluginReply {
            status: 0,
            body: dump.to_string().into_bytes(),
        })
    }

    fn request_dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable> {
        if name == "dump" {
            let message = "dump has no argument \"keep\"";
            let failure = Failure::new(MEMPROF_INVALID_ARGUMENT, message);
            return Ok(DumpResponse::Refused(PluginReply {
                status: failure.status(),
                body: failure.to_json().into_bytes(),
            }));
        }
        assert_eq!((name, args), ("fetch", &*format!("id={}", Self::ID)));
        let mut file = tempfile::tempfile()?;
        file.write_all(self.dump.as_bytes())?;
        Ok(DumpResponse::File {
            content_type: "application/x-jemalloc-heap-profile".to_owned(),
            file: PassedFile::new(file, self.dump.len() as u64)?,
        })
    }
}

#[test]
fn pprof_endpoint_works_with_plugin_that_keeps_every_dump() {
    let host = PluginV01 {
        dump: PluginV01::DUMP,
    };
    let (status, _, body) = request(host, "GET", "/pprof/heap");
    let body = String::from_utf8(body).unwrap();
    assert_eq!(status, 200, "{body}");
    assert!(body.starts_with("heap profile: "), "{body}");
}

#[test]
fn empty_profile_is_explained_once() {
    for path in [
        "/debug/pprof/heap",
        "/api/v1/dumps/20261121T111244Z.7.1.0000beef",
    ] {
        let host = PluginV01 {
            dump: PluginV01::EMPTY_DUMP,
        };
        let (status, _, body) = request(host, "GET", path);
        let body = String::from_utf8(body).unwrap();
        assert_eq!(status, 409, "{body}");
        assert_eq!(body.matches("the profile is empty").count(), 1, "{body}");
    }
}

/// A host in a container, where its pid is another one.
#[derive(Debug)]
struct ContainedHost(Fake);

impl HostClient for ContainedHost {
    fn host_info(&self) -> Result<HostInfo, HostUnavailable> {
        self.0.host_info()
    }

    fn visible_pid(&self) -> Result<Option<u32>, HostUnavailable> {
        Ok(Some(70))
    }

    fn send_message(&self, name: &str, args: &str) -> Result<PluginReply, HostUnavailable> {
        self.0.send_message(name, args)
    }

    fn request_dump(&self, name: &str, args: &str) -> Result<DumpResponse, HostUnavailable> {
        self.0.request_dump(name, args)
    }
}

#[test]
fn contained_host_has_the_pid_of_this_namespace() {
    let get = |path: &str| {
        let host = ContainedHost(Fake(Ok(PluginReply {
            status: 0,
            body: b"{}".to_vec(),
        })));
        let (status, _, body) = request(host, "GET", path);
        (status.as_u16(), serde_json::from_slice::<Value>(&body))
    };
    let (_, hosts) = get("/api/v1/hosts");
    assert_eq!(hosts.unwrap()["hosts"][0]["pid"], 70);
    let (_, targets) = get("/targets");
    assert_eq!(targets.unwrap()[0]["labels"]["pid"], "70");
    assert_eq!(get("/host/70/api/v1/status").0, 200);
    assert_eq!(get("/host/7/api/v1/status").0, 404);
}
