//! Who holds what, in programs as people run them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use memprof_leaks::{
    AnalysisOptions, Detail, Error, GroupKind, HeapObjectKind, Holder, HolderGroup, Holding,
    Method, SampledGroup, holders, prove,
};
use tempfile::TempDir;

use crate::leaks::{JEMALLOC, PATIENT};
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

/// What a group and those that hold it are, the outermost one last.
fn path(holding: &Holding, group: &HolderGroup) -> Vec<GroupKind> {
    let mut path = vec![group.kind.clone()];
    let mut at = group.parent;
    while at != 0 {
        path.push(holding.groups[at].kind.clone());
        at = holding.groups[at].parent;
    }
    path
}

/// The group of a link that holds most.
fn largest(holding: &Holding, is_meant: impl Fn(&GroupKind) -> bool) -> &HolderGroup {
    let groups = holding.groups.iter().filter(|group| is_meant(&group.kind));
    let largest = groups.max_by_key(|group| group.held_bytes);
    largest.unwrap_or_else(|| panic!("{:?}", holding.groups))
}

fn is_variable(link: &GroupKind, expected: &str) -> bool {
    matches!(link, GroupKind::Holder(Holder::Variable { name, .. }) if name == expected)
}

#[test]
fn a_map_s_global_and_the_classes_in_it_are_named() {
    let mut target = sessions();
    let holding = holders(target.pid, Detail::None, PATIENT, &|_| {}).unwrap();
    assert_eq!(holding.method, Method::Dominators);
    let global = largest(&holding, |link| is_variable(link, "sessions"));
    // A session has a node of the map, and of each order a node of its list, the order and its text.
    assert_eq!(global.held_objects, COUNT * (2 + 3 * 3));
    let orders = largest(&holding, |link| *link == class("shop::Order"));
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
fn one_shortest_path_is_told_where_there_is_no_memory_for_dominators() {
    let mut target = sessions();
    // 16 MiB of its own, for each of its 220,000 objects 21 bytes or 52, and what the bits of 30 MiB take.
    let options = AnalysisOptions {
        max_memory: Some(25 << 20),
        ..PATIENT
    };
    let holding = holders(target.pid, Detail::None, options, &|_| {}).unwrap();
    assert_eq!(holding.method, Method::ShortestPath);
    let global = largest(&holding, |link| is_variable(link, "sessions"));
    assert_eq!(global.held_objects, COUNT * (2 + 3 * 3));
    let orders = largest(&holding, |link| *link == class("shop::Order"));
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
fn a_process_whose_objects_take_more_memory_than_is_allowed_is_refused() {
    let mut target = sessions();
    let options = AnalysisOptions {
        max_memory: Some(20 << 20),
        ..PATIENT
    };
    let error = holders(target.pid, Detail::None, options, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    target.assert_unharmed();
}

#[test]
fn an_object_s_holders_are_told_by_address() {
    let mut target = sessions();
    let proof = prove(target.pid, PATIENT, &|_| {}).unwrap();
    let of = |name: &str| {
        let mut groups = proof.leaked.iter();
        groups
            .find(|group| group.class.as_deref() == Some(name))
            .unwrap()
    };
    let leaked = of("shop::Session");
    assert!(
        (COUNT / 100 - 1..=COUNT / 100).contains(&leaked.objects),
        "{proof:?}"
    );
    assert!(of("shop::Order").objects >= 3 * leaked.objects, "{proof:?}");
    let none = holders(target.pid, Detail::Object(leaked.example), PATIENT, &|_| {}).unwrap();
    assert!(none.object.is_none(), "{:?}", none.object);
    target.assert_unharmed();
}

/// Of some 35 MiB each 4 KiB have a sample.
#[test]
fn what_jemalloc_s_profiler_sampled_is_told_by_its_stack() {
    let options = "prof:true,prof_active:true,lg_prof_sample:12";
    let mut target = with_environment([("LD_PRELOAD", JEMALLOC), ("MALLOC_CONF", options)]);
    let holding = holders(target.pid, Detail::Samples, PATIENT, &|_| {}).unwrap();
    target.assert_unharmed();
    let samples = holding.samples.as_ref().unwrap();
    let of =
        |name: &str| samples.with_stacks(|stack| stack.iter().any(|function| function == name));
    let made = of("make");
    let sum = |found: &[SampledGroup]| found.iter().map(|each| each.own.objects).sum::<u64>();
    assert!((1_000..30_000).contains(&sum(&made)), "{made:?}");
    assert!(sum(&made) <= samples.count() as u64);
    let sessions = made
        .iter()
        .find(|each| holding.groups[each.group].kind == class("shop::Session"))
        .unwrap();
    assert!(sessions.own.objects > 20, "{sessions:?}");
    // A list of three with its texts is held through each.
    let of_each = 1 + 3 * 3;
    assert_eq!(sessions.held.objects, sessions.own.objects * of_each);
    let path = path(&holding, &holding.groups[sessions.group]);
    assert!(is_variable(path.last().unwrap(), "sessions"), "{path:?}");
    assert_eq!(of("no_such_function"), []);
}

#[test]
fn where_no_profiler_runs_nothing_is_told_by_stacks() {
    let mut target = sessions();
    let error = holders(target.pid, Detail::Samples, PATIENT, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::NoSamples), "{error}");
    target.assert_unharmed();
}

#[test]
fn objects_of_python_are_named_by_their_types() {
    // Attributes are in the object itself since Python 3.11, but for those of exceptions: these have a dict, as all
    // objects had before.
    for (base, attributes) in [("object", 0), ("Exception", COUNT)] {
        let mut command = Command::new("python3");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/sessions.py");
        command.args([script, &COUNT.to_string(), base]);
        let mut target = Target::from_command(command.env("PYTHONMALLOC", "malloc"));
        let holding = holders(target.pid, Detail::None, PATIENT, &|_| {}).unwrap();
        let count = |name: &str| {
            let groups = holding.groups.iter();
            let of_type = groups.filter(|group| group.kind == class(name));
            of_type.map(|group| group.objects).sum::<u64>()
        };
        // What is left in the unused part of a table may look like an object's head, and hide what the table holds.
        let most = |count: u64| count / 1000 * 999..=count;
        assert!(most(COUNT).contains(&count("Session")), "{base}");
        assert!(most(3 * COUNT).contains(&count("Order")), "{base}");
        assert!(count("Session.__dict__") >= attributes / 100 * 99, "{base}");
        let sessions = largest(&holding, |link| *link == class("Session"));
        // Some are held by what is left on a free list of the interpreter's, too.
        assert!(sessions.objects > COUNT / 100 * 99, "{sessions:?}");
        assert!(sessions.held_bytes > COUNT * 3 * 200, "{sessions:?}");
        let path = path(&holding, sessions);
        let outermost = path.last().unwrap();
        assert!(
            matches!(outermost, GroupKind::Holder(Holder::Variable { .. })),
            "{base}: {path:?}"
        );
        target.assert_unharmed();
    }
}

/// redis-server with so many keys, ended when dropped.
struct Redis {
    server: Child,
    _place: TempDir,
}

impl Redis {
    fn start(keys: u64) -> Self {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--dir"]);
        command.arg(place.path()).arg("--unixsocket").arg(&socket);
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
            _place: place,
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
fn the_keys_of_redis_are_held_by_its_server() {
    const KEYS: u64 = 200_000;
    let redis = Redis::start(KEYS);
    let holding = holders(redis.server.id(), Detail::None, PATIENT, &|_| {}).unwrap();
    assert_eq!(holding.report.allocators, ["jemalloc"]);
    let server = largest(&holding, |link| is_variable(link, "server"));
    // Of a key: its entry in the table, its name, its value.
    assert!(server.held_objects > 3 * KEYS, "{server:?}");
    // dictExpand's.
    let table = GroupKind::Objects(HeapObjectKind::Size((KEYS * 8).next_power_of_two()));
    let table = largest(&holding, |link| *link == table);
    // What a stale word leads to as well is not held by the table alone.
    assert!(table.held_objects > 2 * KEYS / 100 * 99, "{table:?}");
    assert!(is_variable(path(&holding, table).last().unwrap(), "server"));
}
