//! The boundary between a plugin that panics and a host that violates the contract.
#![expect(unsafe_code, reason = "plays the host's side of the ABI")]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::ptr;
use std::sync::Mutex;

use memprof_plugin_abi::raw::{
    MEMPROF_ABI_MISMATCH, MEMPROF_ABI_VERSION, MEMPROF_EXTENSION_REPLY_FD, MEMPROF_INTERNAL,
    MEMPROF_INVALID_ARGUMENT, MEMPROF_IO, MEMPROF_OK, MEMPROF_PANIC, MEMPROF_UNKNOWN_MESSAGE,
    memprof_host_t, memprof_log_level_t, memprof_reply_fd_t, memprof_reply_t, memprof_str_t,
};
use memprof_plugin_abi::{
    Arguments, COPY_LIMIT, Failure, Host, Message, Plugin, Reply, Status, export_plugin,
};

struct Probe;

impl Plugin for Probe {
    const ID: &'static str = "probe";
    const VERSION: &'static str = "1.2.3";
    const MESSAGES: &'static [Message] = &[
        Message::new("echo", "text=TEXT", "Echoes."),
        Message::new("panic", "", "Panics."),
        Message::new("file", "path=PATH size=N", "Replies with a file."),
    ];

    fn create(host: Host, config: &str) -> Result<Self, Failure> {
        assert_eq!(host.name(), "test");
        match config {
            "" => Ok(Self),
            why => Err(Failure::new(MEMPROF_INVALID_ARGUMENT, why)),
        }
    }

    fn handle_message(
        &self,
        name: &str,
        mut args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        if name == "file" {
            let file = File::open(args.require("path")?).unwrap();
            let size = args.require("size")?.parse().unwrap();
            return reply.file(&file, size, "application/x-test");
        }
        assert_eq!(name, "echo", "on purpose");
        let text = args.require("text")?;
        args.finish()?;
        log::info!("echo {text}");
        reply.text(&text)
    }
}

export_plugin!(Probe);

/// Lets one test run at a time, because a process can have only one instance.
static ONE: Mutex<()> = Mutex::new(());
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn log_line(
    _: *mut c_void,
    level: memprof_log_level_t,
    target: memprof_str_t,
    message: memprof_str_t,
) {
    // SAFETY: the plugin lends the text for the call.
    let [target, message] = [target, message].map(|text| unsafe { text.as_str() }.unwrap());
    let line = match target {
        Probe::ID => format!("{level} {message}"),
        // No line of a plugin may have it, whatever module logs.
        other => format!("{level} of {other}: {message}"),
    };
    LOG.lock().unwrap().push(line);
}

fn host() -> memprof_host_t {
    memprof_host_t {
        struct_size: size_of::<memprof_host_t>(),
        abi_version: MEMPROF_ABI_VERSION,
        reserved: 0,
        ctx: ptr::null_mut(),
        name: memprof_str_t::new("test"),
        version: memprof_str_t::EMPTY,
        log_enabled: None,
        log: Some(log_line),
        get_extension: None,
    }
}

/// Creates the plugin. Returns the status and the instance.
fn create(host: *const memprof_host_t, config: memprof_str_t) -> (Status, *mut c_void) {
    let mut plugin = ptr::null_mut();
    // SAFETY: memprof.h, `create`; the tests keep the host alive until `destroy`.
    let status = unsafe { memprof_plugin_entry.create.unwrap()(host, config, &raw mut plugin) };
    (status, plugin)
}

fn destroy(plugin: *mut c_void) {
    // SAFETY: memprof.h, `destroy`: once, after the last call.
    unsafe { memprof_plugin_entry.destroy.unwrap()(plugin) };
}

unsafe extern "C" fn collect(ctx: *mut c_void, chunk: memprof_str_t) -> Status {
    // SAFETY: `send` passes a pointer to its vector, which nothing else uses during the call.
    let body = unsafe { &mut *ctx.cast::<Vec<u8>>() };
    // SAFETY: the plugin lends the bytes for the call.
    body.extend_from_slice(unsafe { chunk.as_bytes() });
    MEMPROF_OK
}

unsafe extern "C" fn refuse(_: *mut c_void, _: memprof_str_t) -> Status {
    MEMPROF_IO
}

fn send(plugin: *mut c_void, name: memprof_str_t, args: &str) -> (Status, String) {
    let mut body: Vec<u8> = Vec::new();
    let reply = memprof_reply_t {
        struct_size: size_of::<memprof_reply_t>(),
        reserved: 0,
        ctx: (&raw mut body).cast(),
        begin: None,
        write: Some(collect),
    };
    let handle = memprof_plugin_entry.handle_message.unwrap();
    // SAFETY: memprof.h, `handle_message`.
    let status = unsafe { handle(plugin, name, memprof_str_t::new(args), &raw const reply) };
    (status, String::from_utf8(body).unwrap())
}

/// Accepts a file, and records its size and content type in the body.
unsafe extern "C" fn take_file(
    ctx: *mut c_void,
    fd: c_int,
    size: u64,
    content_type: memprof_str_t,
) -> Status {
    // SAFETY: `send` passes a pointer to its vector, which nothing else uses during the call.
    let body = unsafe { &mut *ctx.cast::<Vec<u8>>() };
    // SAFETY: the plugin lends the text for the call.
    let content_type = unsafe { content_type.as_str() }.unwrap();
    assert!(fd >= 0);
    body.extend_from_slice(format!("a file: {size} of {content_type}").as_bytes());
    MEMPROF_OK
}

unsafe extern "C" fn refuse_file(_: *mut c_void, _: c_int, _: u64, _: memprof_str_t) -> Status {
    MEMPROF_IO
}

static TAKING: memprof_reply_fd_t = memprof_reply_fd_t {
    struct_size: size_of::<memprof_reply_fd_t>(),
    file: Some(take_file),
};
static REFUSING: memprof_reply_fd_t = memprof_reply_fd_t {
    struct_size: size_of::<memprof_reply_fd_t>(),
    file: Some(refuse_file),
};

/// Returns the extension, to which the context of a host with it points.
unsafe extern "C" fn reply_fd(ctx: *mut c_void, id: memprof_str_t) -> *const c_void {
    // SAFETY: the plugin lends the text for the call.
    match unsafe { id.as_str() } {
        Ok(MEMPROF_EXTENSION_REPLY_FD) => ctx,
        _ => ptr::null(),
    }
}

#[test]
fn file_is_passed_or_copied_up_to_limit() {
    let _one = ONE.lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let check = |host: memprof_host_t, content: &[u8], size: u64, expected: (Status, &str)| {
        let path = directory.path().join("body");
        std::fs::write(&path, content).unwrap();
        let (_, plugin) = create(&host, memprof_str_t::EMPTY);
        let args = format!("path={} size={size}", path.display());
        let (status, body) = send(plugin, memprof_str_t::new("file"), &args);
        assert!(
            status == expected.0 && body.contains(expected.1),
            "{status} {body}"
        );
        destroy(plugin);
    };
    let with = |extension: &'static memprof_reply_fd_t| memprof_host_t {
        ctx: ptr::from_ref(extension).cast_mut().cast(),
        get_extension: Some(reply_fd),
        ..host()
    };
    let passed = "a file: 99000000 of application/x-test";
    check(with(&TAKING), b"dump", 99_000_000, (MEMPROF_OK, passed));
    check(with(&REFUSING), b"dump", 3, (MEMPROF_OK, "dum"));
    let large = "x".repeat(40_000);
    check(host(), large.as_bytes(), 40_000, (MEMPROF_OK, &large));
    check(
        host(),
        b"dump",
        COPY_LIMIT + 1,
        (MEMPROF_IO, "too large to be copied"),
    );
    check(host(), b"dump", 5, (MEMPROF_IO, "dump"));
}

#[test]
fn create_with_null_old_or_short_host() {
    let _one = ONE.lock().unwrap();
    let check = |host: *const memprof_host_t| {
        assert_eq!(
            create(host, memprof_str_t::EMPTY),
            (MEMPROF_ABI_MISMATCH, ptr::null_mut())
        );
    };
    check(ptr::null());
    check(&memprof_host_t {
        abi_version: 2 << 16,
        ..host()
    });
    check(&memprof_host_t {
        struct_size: 72,
        ..host()
    });
}

#[test]
fn failed_create_logs_reason_and_can_be_repeated() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (status, _) = create(&host, memprof_str_t::new("no such key"));
    assert_eq!(status, MEMPROF_INVALID_ARGUMENT);
    assert_eq!(LOG.lock().unwrap().last().unwrap(), "1 no such key");
    let (status, _) = create(&host, memprof_str_t::from_bytes(b"\xff"));
    assert_eq!(status, MEMPROF_INVALID_ARGUMENT);
    let (status, plugin) = create(&host, memprof_str_t::EMPTY);
    assert_eq!(status, MEMPROF_OK);
    destroy(plugin);
}

#[test]
fn second_instance_in_one_process() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (_, plugin) = create(&host, memprof_str_t::EMPTY);
    let (status, second) = create(&host, memprof_str_t::EMPTY);
    assert_eq!((status, second), (MEMPROF_INTERNAL, ptr::null_mut()));
    destroy(plugin);
}

#[test]
fn message_with_null_pointers() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (_, plugin) = create(&host, memprof_str_t::EMPTY);
    let handle = memprof_plugin_entry.handle_message.unwrap();
    let name = memprof_str_t::new("echo");
    // SAFETY: the plugin must check for a null reply.
    let status = unsafe { handle(plugin, name, name, ptr::null()) };
    assert_eq!(status, MEMPROF_INTERNAL);
    let null = memprof_str_t {
        ptr: ptr::null(),
        len: 5,
    };
    assert_eq!(send(plugin, null, "").0, MEMPROF_UNKNOWN_MESSAGE);
    assert_eq!(send(ptr::null_mut(), name, "").0, MEMPROF_INTERNAL);
    destroy(plugin);
    destroy(ptr::null_mut());
}

#[test]
fn unknown_malformed_and_panicking_messages() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (_, plugin) = create(&host, memprof_str_t::EMPTY);
    let check = |name: &[u8], args: &str, status: Status, kind: &str| {
        let (found, body) = send(plugin, memprof_str_t::from_bytes(name), args);
        assert_eq!(found, status, "{body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["kind"], kind, "{body}");
    };
    check(b"", "", MEMPROF_UNKNOWN_MESSAGE, "unknown_message");
    check(b"ech", "", MEMPROF_UNKNOWN_MESSAGE, "unknown_message");
    check(b"ECHO", "", MEMPROF_UNKNOWN_MESSAGE, "unknown_message");
    check(b"echo\0", "", MEMPROF_UNKNOWN_MESSAGE, "unknown_message");
    check(b"\xff", "", MEMPROF_UNKNOWN_MESSAGE, "unknown_message");
    check(
        b"echo",
        "text",
        MEMPROF_INVALID_ARGUMENT,
        "invalid_argument",
    );
    check(b"echo", "", MEMPROF_INVALID_ARGUMENT, "invalid_argument");
    check(b"panic", "", MEMPROF_PANIC, "panic");
    let echoed = send(plugin, memprof_str_t::new("echo"), "text=\"two words\"");
    assert_eq!(echoed, (MEMPROF_OK, "two words".to_owned()));
    assert_eq!(LOG.lock().unwrap().last().unwrap(), "3 echo two words");
    destroy(plugin);
}

#[test]
fn host_refuses_reply() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (_, plugin) = create(&host, memprof_str_t::EMPTY);
    let reply = memprof_reply_t {
        struct_size: size_of::<memprof_reply_t>(),
        reserved: 0,
        ctx: ptr::null_mut(),
        begin: Some(refuse),
        write: Some(refuse),
    };
    let handle = memprof_plugin_entry.handle_message.unwrap();
    let (name, args) = (memprof_str_t::new("echo"), memprof_str_t::new("text=x"));
    // SAFETY: memprof.h, `handle_message`.
    let status = unsafe { handle(plugin, name, args, &raw const reply) };
    assert_eq!(status, MEMPROF_INTERNAL);
    destroy(plugin);
}

#[test]
fn messages_from_eight_threads() {
    let _one = ONE.lock().unwrap();
    let host = host();
    let (_, plugin) = create(&host, memprof_str_t::EMPTY);
    let address = plugin.expose_provenance();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let plugin = ptr::with_exposed_provenance_mut(address);
                for round in 0..1000 {
                    let text = format!("{thread}.{round}");
                    let args = format!("text={text}");
                    assert_eq!(
                        send(plugin, memprof_str_t::new("echo"), &args),
                        (MEMPROF_OK, text)
                    );
                }
            });
        }
    });
    destroy(plugin);
}
