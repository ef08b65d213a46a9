//! Plugins that are wrong: the host lives, says why once, and answers with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use memprof_host::client::Client;
use nix::sys::signal::Signal;

use crate::dist::{dist, source, tool_text};
use crate::host::{Host, Setup};
use crate::memprof::memprof;

/// A host that is configured to load the plugin at `path`, besides memory_profile.
pub(crate) fn host_with(path: &Path, config: &str) -> Host {
    let more = format!("[[plugin]]\npath = {path:?}\n[plugin.config]\n{config}");
    Setup::of("c_host").more(&more).start()
}

pub(crate) fn text_of(client: &mut Client, plugin: &str, message: &str) -> (i32, String) {
    let reply = client.message(plugin, message, "", None).unwrap();
    let status = reply.result.status_code;
    (
        status,
        String::from_utf8(reply.into_bytes().unwrap()).unwrap(),
    )
}

/// Checks that the host refuses the plugin at `path` for the reason `why`, and works.
pub(crate) fn check_refused(path: &Path, config: &str, why: &str) {
    let host = host_with(path, config);
    let errors: Vec<_> = host
        .log()
        .into_iter()
        .filter(|line| line.starts_with("ERROR"))
        .collect();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains(why), "{}", errors[0]);
    let plugin = path.file_stem().unwrap().to_str().unwrap();
    let (status, reply) = text_of(&mut host.client(), plugin, "hello");
    assert!(status < 0, "{status}");
    let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
    assert!(reply["text"].as_str().unwrap().contains(why), "{reply}");
    host.memprof("status", &[]).exits(0);
}

/// hello_c.c of version 0.1, which writes all of the entry out.
pub(crate) fn plain_hello() -> String {
    fs::read_to_string(source(
        "outside/memprof-cli/tests/fixtures/abi_0_1/hello_c.c",
    ))
    .unwrap()
}

/// [`plain_hello`] with one thing changed.
pub(crate) fn changed_hello(place: &Path, from: &str, to: &str) -> PathBuf {
    let original = plain_hello();
    let changed = original.replacen(from, to, 1);
    assert_ne!(original, changed, "{from} is not in hello_c.c");
    compiled(place, &changed, &["-Wl,-z,nodelete"])
}

pub(crate) fn compiled(place: &Path, text: &str, flags: &[&str]) -> PathBuf {
    let (code, library) = (place.join("changed.c"), place.join("changed.so"));
    fs::write(&code, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC"]).args(flags);
    cc.arg("-I").arg(dist("include"));
    tool_text("gcc", cc.arg("-o").arg(&library).arg(&code));
    library
}

#[test]
fn unload_while_a_thread_runs() {
    let place = tempfile::tempdir().unwrap();
    let hello = plain_hello();
    let warning = "link it with -Wl,-z,nodelete";
    for (flags, is_warned) in [(&["-Wl,-z,nodelete"][..], false), (&[], true)] {
        let plugin = compiled(place.path(), &hello, flags);
        let run = memprof(place.path(), &["check", plugin.to_str().unwrap()]).exits(0);
        assert_eq!(run.stderr.contains(warning), is_warned, "{run:?}");
    }
    let host = host_with(&place.path().join("changed.so"), "");
    host.wait_for_log(warning);
}

#[test]
fn abi_of_another_major() {
    let place = tempfile::tempdir().unwrap();
    let plugin = changed_hello(place.path(), "MEMPROF_ABI_VERSION", "2u << 16");
    check_refused(&plugin, "", "was built for ABI 2.0, this host speaks 1.x");
    let run = memprof(place.path(), &["check", plugin.to_str().unwrap()]).exits(6);
    assert!(run.stderr.contains("ABI 2.0"), "{run:?}");
}

/// A plugin in C++, which lets an exception out of one of its functions, is named before the program ends.
#[test]
fn exception_out_of_a_function_names_the_plugin() {
    let place = tempfile::tempdir().unwrap();
    let code = place.path().join("thrower.cc");
    let text = r#"
        #include <memprof.h>
        #include <pthread.h>
        #include <stdexcept>
        static int armed;
        static memprof_status_t create(const memprof_host_t *host, memprof_str_t, void **plugin) {
            *plugin = const_cast<memprof_host_t *>(host);
            return MEMPROF_OK;
        }
        static memprof_status_t handle(void *, memprof_str_t name, memprof_str_t, const memprof_reply_t *) {
            if (memprof_is(name, "end")) pthread_exit(nullptr);
            if (memprof_is(name, "arm")) return armed = 1, MEMPROF_OK;
            throw std::runtime_error("out of the handler");
        }
        static void destroy(void *) { if (armed) throw std::runtime_error("at the end"); }
        static const memprof_message_t raise = MEMPROF_MESSAGE("throw", "", "Throws."), end = MEMPROF_MESSAGE("end", "", "Ends."),
            arm = MEMPROF_MESSAGE("arm", "", "Throws later.");
        MEMPROF_PLUGIN("thrower", "1", create, handle, destroy, &raise, &end, &arm);
    "#;
    fs::write(&code, text).unwrap();
    let library = place.path().join("thrower.so");
    let mut compiler = Command::new("c++");
    compiler.args([
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wl,-z,nodelete,-Bsymbolic",
    ]);
    compiler.arg("-I").arg(dist("include"));
    tool_text("g++", compiler.arg("-o").arg(&library).arg(&code));
    for message in ["throw", "end"] {
        let host = host_with(&library, "");
        let sent = host.client().message("thrower", message, "", None);
        assert!(sent.is_err(), "{message}");
        host.wait_for_log(&format!(
            "plugin thrower leaves \"{message}\" by an exception or pthread_exit"
        ));
    }
    let host = host_with(&library, "");
    let (status, _) = text_of(&mut host.client(), "thrower", "arm");
    assert_eq!(status, 0);
    host.signal(Signal::SIGTERM);
    host.wait_for_log("plugin thrower leaves \"destroy\" by an exception or pthread_exit");
}

/// A bus splits its words at blanks, and a log has one line for a record.
#[test]
fn id_with_blanks_or_control_characters() {
    let place = tempfile::tempdir().unwrap();
    for id in ["hello c", "hello\\nERROR", "hello\\033[2J"] {
        let plugin = changed_hello(
            place.path(),
            "MEMPROF_STR_INIT(\"hello_c\")",
            &format!("MEMPROF_STR_INIT(\"{id}\")"),
        );
        check_refused(&plugin, "", "has blanks or control characters");
    }
}

#[test]
fn short_entry() {
    let place = tempfile::tempdir().unwrap();
    let size = "sizeof(memprof_plugin_entry_t)";
    let plugin = changed_hello(place.path(), size, "sizeof(memprof_plugin_entry_t) - 8");
    check_refused(
        &plugin,
        "",
        "memprof_plugin_entry has 104 bytes, ABI 1 needs 112",
    );
}

#[test]
fn create_that_fails_without_a_reason() {
    let place = tempfile::tempdir().unwrap();
    let plugin = changed_hello(place.path(), "host = from;", "return -9;");
    // Its id is known by then, so it is called by it.
    let host = host_with(&plugin, "");
    host.wait_for_log("plugin hello_c could not be created: it gave no reason (status -9)");
    host.memprof("status", &[]).exits(0);
}

#[test]
fn same_plugin_twice() {
    let path = dist("plugins/hello_c.so");
    let more = format!("[[plugin]]\npath = {path:?}\n[[plugin]]\npath = {path:?}");
    let host = Setup::of("c_host").more(&more).start();
    host.wait_for_log(&format!(
        "{0}: a plugin with the id hello_c is loaded already, from {0}; leave out one",
        path.display()
    ));
    let (status, reply) = text_of(&mut host.client(), "hello_c", "hello");
    assert_eq!((status, reply.as_str()), (0, "hello from C"));
}

#[test]
fn unknown_key_in_the_plugins_config() {
    check_refused_config(
        "dump_dirr = \"/x\"",
        ", column 1: unknown field `dump_dirr`",
    );
    check_refused_config("dump_dirr = \"/x\"", "could not be created: config file /");
    check_refused_config("dump_dir = \"relative\"", "is not an absolute path");
}

fn check_refused_config(config: &str, why: &str) {
    let host = Setup::of("c_host").config(config).start();
    host.wait_for_log(why);
    let run = host.memprof("status", &[]).exits(2);
    assert!(run.stderr.contains(why), "{run:?}");
}

/// A host with `odd_plugin.c` and this config.
fn odd_host(place: &Path, config: &str) -> Host {
    let code = source("outside/memprof-cli/tests/fixtures/odd_plugin.c");
    let plugin = compiled(
        place,
        &fs::read_to_string(code).unwrap(),
        &["-Wl,-z,nodelete,-Bsymbolic"],
    );
    host_with(&plugin, config)
}

#[test]
fn replies_that_break_the_contract_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let host = odd_host(place.path(), "");
    let mut client = host.client();
    let mut check = |message: &str, status: i32, text: &str| {
        let (actual, reply) = text_of(&mut client, "odd", message);
        assert_eq!(actual, status, "{reply}");
        assert!(reply.contains(text), "{reply}");
    };
    check(
        "silent",
        -5,
        r#"plugin odd refused \"silent\" with status -5 and no text"#,
    );
    check(
        "hole",
        -10,
        r#"the reply to \"hole\" does not fit: a body has at most 16777216 bytes"#,
    );
    check(
        "help",
        0,
        "log TEXT                         Logs its arguments.\n",
    );
}

#[test]
fn text_of_a_client_cannot_forge_a_log_line() {
    let place = tempfile::tempdir().unwrap();
    let host = odd_host(place.path(), "");
    let mut client = host.client();
    for forged in [
        "a\nERROR host: forged",
        "\rERROR host: forged",
        "\u{1b}[2K\u{85}ERROR host: forged",
    ] {
        client.message("odd", "log", forged, None).unwrap();
        host.memprof("msg", &["odd", &format!("x{forged}")]);
    }
    let log = host.log();
    let lines: Vec<_> = log.iter().filter(|line| line.contains("forged")).collect();
    assert!(lines.len() >= 3, "{lines:#?}");
    for line in lines {
        assert!(
            line.starts_with("INFO  odd: ") && !line.contains(char::is_control),
            "{line:?}"
        );
    }
}

#[test]
fn all_lines_of_a_failed_create_are_logged_in_order() {
    let place = tempfile::tempdir().unwrap();
    let host = odd_host(place.path(), "fails = \"yes\"");
    let log = host.log();
    let position = |text: &str| log.iter().position(|line| line.contains(text)).unwrap();
    let reason = "plugin refused: plugin odd could not be created: the last reason";
    assert!(
        position("odd: the first reason") < position("odd: a line between"),
        "{log:#?}"
    );
    assert!(
        position("odd: a line between") < position(reason),
        "{log:#?}"
    );
    let (status, reply) = text_of(&mut host.client(), "odd", "silent");
    assert_eq!(status, -10);
    assert!(reply.contains("the last reason"), "{reply}");
}

#[test]
fn plugins_lists_what_is_loaded_and_refused() {
    let place = tempfile::tempdir().unwrap();
    let gone = place.path().join("libgone.so");
    let host = odd_host(
        place.path(),
        &format!("wrong = 1\n[[plugin]]\npath = {gone:?}"),
    );
    let pid = host.pid().to_string();
    let list = memprof(&host.socket_dir(), &["plugins", &pid, "--json"])
        .exits(0)
        .json();
    let of = |id: &str| {
        let plugins = list["plugins"].as_array().unwrap();
        plugins.iter().find(|plugin| plugin["id"] == id).unwrap()
    };
    let profile = of("memory_profile");
    assert_eq!(profile["state"], "loaded");
    assert_eq!(profile["abi"], "1.3");
    assert!(
        profile["path"]
            .as_str()
            .unwrap()
            .ends_with("plugins/memory_profile.so"),
        "{profile}"
    );
    assert_eq!(profile["messages"][0]["name"], "activate");
    assert!(
        profile["messages"][0]["usage"]
            .as_str()
            .unwrap()
            .contains("for=10m"),
        "{profile}"
    );
    // Its id is known: it was refused by itself.
    assert_eq!(of("odd")["state"], "refused");
    assert_eq!(of("odd")["messages"][1]["usage"], "TEXT");
    let reason = of("odd")["reason"].as_str().unwrap();
    assert!(
        reason.contains("unknown key \"wrong\"; valid keys: "),
        "{reason}"
    );
    assert_eq!(of("libgone")["path"], gone.to_str().unwrap());
    let text = memprof(&host.socket_dir(), &["plugins", &pid])
        .exits(0)
        .stdout;
    assert!(
        text.contains("\n  refused: plugin odd could not be created"),
        "{text}"
    );
}

/// The fixture plugin, built by another compiler setting than everything else.
pub(crate) fn panicky() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let manifest = source("outside/memprof-cli/tests/fixtures/panicky/Cargo.toml");
        build_foreign(&manifest, BuildProfile::Dev).join("libpanicky.so")
    })
}

/// A plugin as a third party would build it, optimized.
pub(crate) fn out_of_tree() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let manifest = source("outside/memprof-cli/tests/fixtures/out_of_tree/Cargo.toml");
        build_foreign(&manifest, BuildProfile::Release).join("libout_of_tree.so")
    })
}

/// Cargo's profile of a package outside of the workspace.
#[derive(Clone, Copy)]
enum BuildProfile {
    /// At -O0.
    Dev,
    Release,
}

/// Builds a package with randomized layouts, and returns the folder of the library.
fn build_foreign(manifest: &Path, profile: BuildProfile) -> PathBuf {
    let target = source("target/abi");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zrandomize-layout");
    let folder = match profile {
        BuildProfile::Dev => "debug",
        BuildProfile::Release => {
            cargo.arg("--release");
            "release"
        }
    };
    tool_text("rustc", &mut cargo);
    target.join(folder)
}

#[test]
fn plugin_of_another_compiler_setting_is_accepted() {
    let host = host_with(panicky(), "");
    assert_eq!(
        text_of(&mut host.client(), "panicky", "hello"),
        (0, "hello".to_owned())
    );
}

#[test]
fn panic_in_create() {
    let host = host_with(panicky(), "at = \"create\"");
    let why = "the plugin panicked: in create, on purpose";
    host.wait_for_log(why);
    let (status, reply) = text_of(&mut host.client(), "panicky", "hello");
    assert_eq!(status, -7);
    assert!(reply.contains(why), "{reply}");
}

#[test]
fn panic_in_a_message_a_thread_and_drop() {
    let mut host = host_with(panicky(), "at = \"drop\"");
    let mut client = host.client();
    let (status, reply) = text_of(&mut client, "panicky", "panic");
    assert_eq!(status, -7);
    assert!(
        reply.contains("the plugin panicked: in a message, on purpose"),
        "{reply}"
    );
    let line = host.wait_for_log("in a message, on purpose");
    let expected = "plugin panicky panicked in thread \"memprof-conn\" at ";
    assert!(line.contains(expected), "{line}");
    host.wait_for_log("message \"panic\" of plugin panicky ended in a panic");
    let half = text_of(&mut client, "panicky", "half");
    assert_eq!(
        half,
        (-10, "half\nerror: the other half is lost\n".to_owned())
    );
    host.wait_for_log("message \"half\" failed after a part of its reply: the other half is lost");
    let (status, _) = text_of(&mut client, "panicky", "nasty");
    assert_eq!(status, -7);
    assert_eq!(
        text_of(&mut client, "panicky", "thread"),
        (0, "the thread panicked".to_owned())
    );
    host.wait_for_log("in a thread, on purpose");
    assert_eq!(
        text_of(&mut client, "panicky", "hello"),
        (0, "hello".to_owned())
    );
    drop(client);
    assert!(host.terminate().success());
    host.wait_for_log("in drop, on purpose");
}

#[test]
fn plugin_with_an_inserted_field_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let copy = |name: &str, change: &dyn Fn(String) -> String| {
        let to = place
            .path()
            .join(name.rsplit_once("fixtures/").map_or(name, |(_, name)| name));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(&to, change(fs::read_to_string(source(name)).unwrap())).unwrap();
        to
    };
    let same = |text: String| text;
    copy("Cargo.lock", &same);
    copy("Cargo.toml", &|text| {
        let (head, rest) = text.split_once("members = [").unwrap();
        let (_, tail) = rest.split_once(']').unwrap();
        format!("{head}members = [\"memprof-plugin-abi\", \"panicky\"]{tail}")
    });
    copy("memprof-plugin-abi/Cargo.toml", &|text| {
        text.split("[[example]]").next().unwrap().to_owned()
    });
    copy("memprof-plugin-abi/CONTRACT.md", &same);
    for file in fs::read_dir(source("memprof-plugin-abi/src")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        copy(&format!("memprof-plugin-abi/src/{name}"), &|text| {
            let structs = text.split("// Another build").next().unwrap();
            structs.replace(
                "pub reserved: u64,",
                "pub reserved: u64,\n    /// New.\n    pub new: u64,",
            )
        });
    }
    copy(
        "outside/memprof-cli/tests/fixtures/panicky/src/lib.rs",
        &same,
    );
    let manifest = copy(
        "outside/memprof-cli/tests/fixtures/panicky/Cargo.toml",
        &|text| {
            let package = text
                .split("[profile")
                .next()
                .unwrap()
                .replace("[workspace]", "");
            package
                .replace("../../../../../", "../")
                .replace("\"panicky\"", "\"inserted\"")
        },
    );
    let plugin = build_foreign(&manifest, BuildProfile::Dev).join("libinserted.so");
    check_refused(
        &plugin,
        "",
        "memprof_reply_t: incompatible type size, unexpected field \"new\"",
    );
}

/// A host that unloads the plugin while a thread that used it still runs.
const UNLOADER: &str = r#"
#include <memprof.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
static const memprof_plugin_entry_t *entry;
static memprof_plugin_t *plugin;
static pthread_barrier_t used, unloaded;
static int32_t enabled(void *ctx, memprof_log_level_t level) { (void)ctx; (void)level; return 1; }
static void ignore(void *ctx, memprof_log_level_t level, memprof_str_t target, memprof_str_t message) {
    (void)ctx; (void)level; (void)target; (void)message;
}
static memprof_status_t take(void *ctx, memprof_str_t chunk) { (void)ctx; (void)chunk; return MEMPROF_OK; }
static void *use(void *unused) {
    const memprof_reply_t reply = {sizeof reply, 0, 0, 0, take};
    entry->handle_message(plugin, MEMPROF_STR("hello"), MEMPROF_STR(""), &reply);
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&unloaded);
    return unused;
}
int main(int argc, char **argv) {
    const memprof_host_t host = {sizeof host, MEMPROF_ABI_VERSION, 0, 0, MEMPROF_STR_INIT("h"), MEMPROF_STR_INIT(""), enabled, ignore, 0};
    void *library = dlopen(argv[argc - 1], RTLD_NOW);
    if (!library) abort();
    entry = dlsym(library, "memprof_plugin_entry");
    if (entry->create(&host, MEMPROF_STR(""), &plugin) != MEMPROF_OK) abort();
    pthread_barrier_init(&used, 0, 2);
    pthread_barrier_init(&unloaded, 0, 2);
    pthread_t thread;
    pthread_create(&thread, 0, use, 0);
    pthread_barrier_wait(&used);
    entry->destroy(plugin);
    dlclose(library);
    pthread_barrier_wait(&unloaded);
    return pthread_join(thread, 0);
}
"#;

#[test]
fn dlclose_before_a_thread_ends() {
    let place = tempfile::tempdir().unwrap();
    let (code, program) = (
        place.path().join("unloader.c"),
        place.path().join("unloader"),
    );
    fs::write(&code, UNLOADER).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-I")
        .arg(dist("include"))
        .arg("-o")
        .arg(&program)
        .arg(&code);
    tool_text("gcc", cc.args(["-lpthread", "-ldl"]));
    for plugin in ["plugins/hello_rust.so", "plugins/hello_c.so"] {
        tool_text("gcc", Command::new(&program).arg(dist(plugin)));
    }
}
