//! Holders in real programs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use memprof_leaks::{
    AnalysisOptions, Detail, Error, GroupKind, HeapObjectKind, Holder, HolderGroup, Holding,
    Method, SampledGroup, find_process_holders, prove_leaks,
};
use tempfile::TempDir;

use crate::leaks::{JEMALLOC, LONG_PAUSE};
use crate::start;
use crate::target::{Target, built};

const COUNT: u64 = 20_000;

fn sessions() -> Target {
    with_environment([])
}

fn with_environment<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Target {
    let program = built("sessions", |path| {
        let mut command = Command::new("g++");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "sessions.cc", "-o"]);
        command.arg(path);
        command
    });
    let mut command = Command::new(program);
    Target::from_command(command.arg(COUNT.to_string()).envs(variables))
}

fn class(name: &str) -> GroupKind {
    GroupKind::Objects(HeapObjectKind::Class(name.into()))
}

/// Kinds of a group and of those that hold it, the outermost one last.
fn path(holding: &Holding, group: &HolderGroup) -> Vec<GroupKind> {
    let mut path = vec![group.kind.clone()];
    let mut index = group.parent;
    while index != 0 {
        path.push(holding.groups[index].kind.clone());
        index = holding.groups[index].parent;
    }
    path
}

/// The group of a kind that holds most.
fn largest(holding: &Holding, is_selected: impl Fn(&GroupKind) -> bool) -> &HolderGroup {
    let groups = holding
        .groups
        .iter()
        .filter(|group| is_selected(&group.kind));
    let largest = groups.max_by_key(|group| group.held_bytes);
    largest.unwrap_or_else(|| panic!("{:?}", holding.groups))
}

fn is_variable(kind: &GroupKind, expected: &str) -> bool {
    matches!(kind, GroupKind::Holder(Holder::Variable { name, .. }) if name == expected)
}

#[test]
fn objects_of_map_are_held_by_its_variable() {
    let mut target = sessions();
    let holding = find_process_holders(target.pid, Detail::None, LONG_PAUSE, &|_| {}).unwrap();
    assert_eq!(holding.method, Method::Dominators);
    let global = largest(&holding, |kind| is_variable(kind, "sessions"));
    // A session has a node of the map, and of each order a node of its list, the order and its text.
    assert_eq!(global.held_objects, COUNT * (2 + 3 * 3));
    let orders = largest(&holding, |kind| *kind == class("shop::Order"));
    assert_eq!(
        (orders.objects, orders.held_objects),
        (3 * COUNT, 6 * COUNT)
    );
    let path = path(&holding, orders);
    assert_eq!(path.len(), 5, "{path:?}");
    assert_eq!(path[2], class("shop::Session"));
    assert!(is_variable(&path[4], "sessions"), "{path:?}");
    target.assert_unharmed();
}

#[test]
fn holders_with_little_memory_are_shortest_paths() {
    let mut target = sessions();
    // memprof itself uses 16 MiB, each of the 220,000 objects 21 bytes or 52, and the bitmaps of 30 MiB the
    // rest.
    let options = AnalysisOptions {
        max_memory: Some(25 << 20),
        ..LONG_PAUSE
    };
    let holding = find_process_holders(target.pid, Detail::None, options, &|_| {}).unwrap();
    assert_eq!(holding.method, Method::ShortestPath);
    let global = largest(&holding, |kind| is_variable(kind, "sessions"));
    assert_eq!(global.held_objects, COUNT * (2 + 3 * 3));
    let orders = largest(&holding, |kind| *kind == class("shop::Order"));
    assert_eq!(
        (orders.objects, orders.held_objects),
        (3 * COUNT, 6 * COUNT)
    );
    let path = path(&holding, orders);
    assert_eq!(path[2], class("shop::Session"));
    assert!(is_variable(path.last().unwrap(), "sessions"), "{path:?}");
    target.assert_unharmed();
}

#[test]
fn holders_beyond_max_memory_are_refused() {
    let mut target = sessions();
    let options = AnalysisOptions {
        max_memory: Some(17 << 20),
        ..LONG_PAUSE
    };
    let error = find_process_holders(target.pid, Detail::None, options, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    target.assert_unharmed();
}

#[test]
fn leaked_object_has_no_holders() {
    let mut target = sessions();
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    let group_of = |name: &str| {
        let mut groups = proof.leaked.iter();
        groups
            .find(|group| group.class.as_deref() == Some(name))
            .unwrap()
    };
    let leaked = group_of("shop::Session");
    assert!(
        (COUNT / 100 - 1..=COUNT / 100).contains(&leaked.objects),
        "{proof:?}"
    );
    assert!(
        group_of("shop::Order").objects >= 3 * leaked.objects,
        "{proof:?}"
    );
    let none = find_process_holders(
        target.pid,
        Detail::Object(leaked.example),
        LONG_PAUSE,
        &|_| {},
    )
    .unwrap();
    assert!(none.object.is_none(), "{:?}", none.object);
    target.assert_unharmed();
}

/// Those that `leaks --prove` follows, too: at a multiple of 4, and in code at any address.
#[test]
fn objects_with_unaligned_pointers_have_holders() {
    for mode in [
        "in_packed_events",
        "in_packed_events_on_heap",
        "in_code",
        "in_code_at_a_block_end",
    ] {
        let mut target = start("held", &[mode]);
        let holding = find_process_holders(target.pid, Detail::None, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        // held.c holds 50 objects of 1,000 bytes.
        let kind = GroupKind::Objects(HeapObjectKind::Size(1000));
        let groups = holding.groups.iter().filter(|group| group.kind == kind);
        let held: u64 = groups.map(|group| group.objects).sum();
        assert!((50..=51).contains(&held), "{mode}: {:?}", holding.groups);
    }
}

/// The program allocates some 35 MiB, of which one sample is taken in 4 KiB.
#[test]
fn samples_of_jemallocs_profiler_are_selected_by_stack() {
    let options = "prof:true,prof_active:true,lg_prof_sample:12";
    let mut target = with_environment([("LD_PRELOAD", JEMALLOC), ("MALLOC_CONF", options)]);
    let holding = find_process_holders(target.pid, Detail::Samples, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    let samples = holding.samples.as_ref().unwrap();
    let with_function =
        |name: &str| samples.select_by_stack(|stack| stack.iter().any(|function| function == name));
    let made = with_function("make");
    let sum = |found: &[SampledGroup]| found.iter().map(|each| each.own.objects).sum::<u64>();
    assert!((1_000..30_000).contains(&sum(&made)), "{made:?}");
    assert!(sum(&made) <= samples.count() as u64);
    let sessions = made
        .iter()
        .find(|each| holding.groups[each.group].kind == class("shop::Session"))
        .unwrap();
    assert!(sessions.own.objects > 20, "{sessions:?}");
    // Each session holds a list of three orders with their texts.
    let held_by_each = 1 + 3 * 3;
    assert_eq!(sessions.held.objects, sessions.own.objects * held_by_each);
    let path = path(&holding, &holding.groups[sessions.group]);
    assert!(is_variable(path.last().unwrap(), "sessions"), "{path:?}");
    assert_eq!(with_function("no_such_function"), []);
}

#[test]
fn samples_without_profiler_are_refused() {
    let mut target = sessions();
    let error = find_process_holders(target.pid, Detail::Samples, LONG_PAUSE, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::NoSamples), "{error}");
    target.assert_unharmed();
}

/// redis-server with `keys` keys, killed on drop.
struct Redis {
    server: Child,
    _directory: TempDir,
}

impl Redis {
    fn start(keys: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--dir"]);
        command
            .arg(directory.path())
            .arg("--unixsocket")
            .arg(&socket);
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(server.stdout.take().unwrap()).lines();
        log.find(|line| line.as_ref().unwrap().contains("accept connections at"));
        let mut client = UnixStream::connect(&socket).unwrap();
        let fill = "redis.call('SET','key:'..i,string.rep('v',40))";
        let script = format!("EVAL \"for i=1,{keys} do {fill} end\" 0\r\n");
        client.write_all(script.as_bytes()).unwrap();
        let mut reply = String::new();
        BufReader::new(client).read_line(&mut reply).unwrap();
        assert_eq!(reply, "$-1\r\n");
        Self {
            server,
            _directory: directory,
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

#[test]
fn keys_of_redis_are_held_by_its_server_variable() {
    const KEYS: u64 = 200_000;
    let redis = Redis::start(KEYS);
    let holding =
        find_process_holders(redis.server.id(), Detail::None, LONG_PAUSE, &|_| {}).unwrap();
    assert_eq!(holding.report.allocators, ["jemalloc"]);
    let server = largest(&holding, |kind| is_variable(kind, "server"));
    // A key has an entry in the table, a name and a value.
    assert!(server.held_objects > 3 * KEYS, "{server:?}");
    // The table that `dictExpand` allocates.
    let table = GroupKind::Objects(HeapObjectKind::Size((KEYS * 8).next_power_of_two()));
    let table = largest(&holding, |kind| *kind == table);
    // Objects that a stale word reaches, too, are not held by the table alone.
    assert!(table.held_objects > 2 * KEYS / 100 * 99, "{table:?}");
    assert!(is_variable(path(&holding, table).last().unwrap(), "server"));
}

/// The kernel merges the mapping with that of the first thread's variables.
#[test]
fn memory_of_program_is_not_called_stack_or_variable() {
    let holder_of_table = |mode: &str| {
        let mut target = start("owners", &[mode]);
        let holding = find_process_holders(target.pid, Detail::None, LONG_PAUSE, &|_| {}).unwrap();
        target.assert_unharmed();
        let holder = largest(&holding, |kind| matches!(kind, GroupKind::Holder(_)));
        assert!(holder.held_objects >= 2000, "{mode}: {holder:?}");
        holder.kind.clone()
    };
    let is_memory = |kind: &GroupKind, expected: &str| matches!(kind, GroupKind::Holder(Holder::Memory { name, .. }) if name.contains(expected));
    let is_stack = |kind: &GroupKind| matches!(kind, GroupKind::Holder(Holder::Stack { .. }));
    let anonymous = holder_of_table("anonymous");
    assert!(is_memory(&anonymous, ""), "{anonymous:?}");
    let file = holder_of_table("file");
    assert!(is_memory(&file, "/tmp/data"), "{file:?}");
    for mode in ["local", "stack"] {
        let kind = holder_of_table(mode);
        assert!(is_stack(&kind), "{mode}: {kind:?}");
    }
}
