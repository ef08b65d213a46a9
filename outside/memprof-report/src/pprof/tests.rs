//! Reports on pprof profiles that other tools write.

use std::collections::HashMap;

use prost::Message;

use super::proto;
use crate::code_origin::OriginRules;
use crate::filter::compile_pattern;
use crate::limits::Limits;
use crate::options::{Format, Options};
use crate::report::{Input, write_report};
use crate::{Error, ErrorKind};

/// A profile that is being made.
#[derive(Default)]
struct Builder {
    profile: proto::Profile,
    strings: HashMap<String, i64>,
}

/// A label: a text, or a number with a unit.
type Label<'a> = (&'a str, Result<&'a str, (i64, &'a str)>);

impl Builder {
    /// Starts a profile with these sample types, by name and unit.
    fn new(types: &[(&str, &str)]) -> Self {
        let mut builder = Self::default();
        builder.string("");
        for (name, unit) in types {
            let value_type = builder.value_type(name, unit);
            builder.profile.sample_type.push(value_type);
        }
        builder
    }

    fn string(&mut self, text: &str) -> i64 {
        let table = &mut self.profile.string_table;
        *self.strings.entry(text.to_owned()).or_insert_with(|| {
            table.push(text.to_owned());
            table.len() as i64 - 1
        })
    }

    fn value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    /// Adds a mapping with the next id, from 1.
    fn mapping(mut self, start: u64, end: u64, path: &str, build_id: &str) -> Self {
        let mapping = proto::Mapping {
            id: self.profile.mapping.len() as u64 + 1,
            memory_start: start,
            memory_limit: end,
            filename: self.string(path),
            build_id: self.string(build_id),
            ..proto::Mapping::default()
        };
        self.profile.mapping.push(mapping);
        self
    }

    /// Adds a sample with a place of its own, in that mapping, of that function if it is not empty.
    fn sample(
        mut self,
        (address, mapping_id, function): (u64, u64, &str),
        value: &[i64],
        labels: &[Label<'_>],
    ) -> Self {
        let id = self.profile.location.len() as u64 + 1;
        let line = match function {
            "" => Vec::new(),
            name => {
                let name = self.string(name);
                self.profile.function.push(proto::Function {
                    id,
                    name,
                    ..proto::Function::default()
                });
                vec![proto::Line {
                    function_id: id,
                    line: 7,
                }]
            }
        };
        self.profile.location.push(proto::Location {
            id,
            mapping_id,
            address,
            line,
        });
        let labels = labels.iter().map(|(key, value)| {
            let key = self.string(key);
            let (str, num, num_unit) = match value {
                Ok(text) => (self.string(text), 0, 0),
                Err((number, unit)) => (0, *number, self.string(unit)),
            };
            proto::Label {
                key,
                str,
                num,
                num_unit,
            }
        });
        let label = labels.collect();
        self.profile.sample.push(proto::Sample {
            location_id: vec![id],
            value: value.to_vec(),
            label,
        });
        self
    }

    fn period(mut self, name: &str, unit: &str, period: i64) -> Self {
        self.profile.period_type = Some(self.value_type(name, unit));
        self.profile.period = period;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        self.profile.encode_to_vec()
    }
}

/// Options for a format, with all functions as rows.
fn flat(format: Format) -> Options {
    Options {
        format,
        origin_rules: OriginRules {
            flat: true,
            ..OriginRules::default()
        },
        ..Options::default()
    }
}

fn try_report(
    bytes: &[u8],
    base: Option<&[u8]>,
    options: &Options,
) -> Result<(Vec<u8>, Vec<String>), Error> {
    let (mut bytes, mut base) = (bytes, base);
    let input = Input {
        name: "x.pb",
        bytes: &mut bytes,
    };
    let base = base.as_mut().map(|bytes| Input {
        name: "y.pb",
        bytes,
    });
    let mut out = Vec::new();
    let notes = write_report(input, base, &[], options, &|_, _| {}, &mut out)?;
    Ok((out, notes))
}

/// The report and its notes as one text, a note in each of the last lines.
#[track_caller]
fn shown(bytes: &[u8], options: &Options) -> String {
    let (out, notes) = try_report(bytes, None, options).unwrap();
    let out = String::from_utf8(out).unwrap();
    let notes = notes.iter().map(|note| format!("note: {note}\n"));
    out + &notes.collect::<String>()
}

/// Lines of the collapsed stacks, which are name and value, and the notes.
#[track_caller]
fn check_stacks(builder: &Builder, expected: &[&str]) {
    let text = shown(&builder.bytes(), &flat(Format::Collapsed));
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[track_caller]
fn check_error(bytes: &[u8], options: &Options, kind: ErrorKind, expected: &str) {
    let error = try_report(bytes, None, options).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, expected));
}

const SPACE: &[(&str, &str)] = &[("inuse_space", "bytes")];

/// Two programs that were mapped at the same addresses.
fn two_programs() -> Builder {
    Builder::new(SPACE)
        .mapping(0x1000, 0x2000, "/srv/a", "")
        .mapping(0x1000, 0x2000, "/srv/b", "")
}

#[test]
fn address_is_in_the_mapping_of_its_location() {
    let both = two_programs()
        .sample((0x1010, 1, ""), &[10], &[])
        .sample((0x1010, 2, ""), &[20], &[])
        .sample((0x1010, 0, ""), &[40], &[]);
    let note = "note: 1 addresses lie in no mapping";
    check_stacks(&both, &["0x1010 40", "a+0x10 10", "b+0x10 20", note]);
    let outside = two_programs()
        .sample((0x1010, 1, ""), &[1], &[])
        .sample((0x5000, 2, ""), &[2], &[])
        .sample((0x10, 2, "f"), &[4], &[]);
    check_stacks(&outside, &["0x5000 in b 2", "a+0x10 1", "f 4"]);
    let unknown =
        two_programs()
            .sample((0x1010, 1, ""), &[1], &[])
            .sample((0x1010, 9, "g"), &[2], &[]);
    let note = "note: 1 locations name a mapping that the profile lacks: they count as in none";
    check_stacks(&unknown, &["a+0x10 1", "g 2", note]);
}

#[test]
fn locations_without_mapping_are_found_by_address_if_it_is_unique() {
    let one = Builder::new(SPACE)
        .mapping(0x3000, 0x4000, "/srv/b", "")
        .mapping(0x1000, 0x2000, "/srv/a", "")
        .sample((0x3010, 0, ""), &[10], &[]);
    let note = "note: its locations name no mapping: they were assigned by address";
    check_stacks(&one, &["b+0x10 10", note]);
    let two = two_programs().sample((0x1010, 0, ""), &[10], &[]);
    check_stacks(&two, &["0x1010 10", "note: 1 addresses lie in no mapping"]);
}

#[test]
fn mapping_with_the_id_of_another_is_refused() {
    let mut profile = two_programs().sample((0x1010, 1, ""), &[1], &[]).profile;
    profile.mapping[1].id = 1;
    let problem = "x.pb: failed to parse pprof profile: there are two mappings 1";
    let options = flat(Format::Text);
    check_error(
        &profile.encode_to_vec(),
        &options,
        ErrorKind::Failed,
        problem,
    );
}

#[test]
fn function_with_the_id_of_another_is_refused() {
    let sample = |profile: Builder, name| profile.sample((0, 0, name), &[1], &[]);
    let mut profile = sample(sample(Builder::new(SPACE), "f"), "g").profile;
    profile.function[1].id = 1;
    let problem = "x.pb: failed to parse pprof profile: there are two functions 1";
    let options = flat(Format::Text);
    check_error(
        &profile.encode_to_vec(),
        &options,
        ErrorKind::Failed,
        problem,
    );
}

#[test]
fn function_without_a_name_is_shown_by_its_address() {
    let mut builder = Builder::new(SPACE)
        .mapping(0x1000, 0x2000, "/srv/a", "")
        .sample((0x1010, 1, "f"), &[1], &[])
        .sample((0x1020, 1, "g"), &[2], &[])
        .sample((0x1030, 1, "h"), &[4], &[]);
    builder.profile.function[0].name = 0;
    builder.profile.function[1].name = 0;
    // The function at 0x1030 has one without a name inlined.
    let inlined = builder.profile.location[0].line[0];
    builder.profile.location[2].line.insert(0, inlined);
    let note = "note: 3 frames without a function's name are left out";
    check_stacks(&builder, &["a+0x10 1", "a+0x20 2", "h 4", note]);
}

#[test]
fn only_system_names_are_demangled_in_any_order() {
    const SYMBOL: &str = "_ZN4shop4openEv";
    for is_reversed in [false, true] {
        let mut builder = Builder::new(&[("inuse_space", "bytes")])
            .sample((0x10, 0, SYMBOL), &[1], &[])
            .sample((0x20, 0, SYMBOL), &[2], &[]);
        let symbol = builder.string(SYMBOL);
        builder.profile.function[1].name = 0;
        builder.profile.function[1].system_name = symbol;
        if is_reversed {
            builder.profile.location.reverse();
        }
        check_stacks(&builder, &["_ZN4shop4openEv 1", "shop::open 2"]);
    }
}

#[test]
fn unnamed_places_of_two_builds_are_apart() {
    let two = Builder::new(SPACE)
        .mapping(0x1000, 0x2000, "/a/Release/x.node", "aabbccddee")
        .mapping(0x1000, 0x2000, "/b/Release/x.node", "")
        .mapping(0x1000, 0x2000, "/a/Release/x.node", "1122334455")
        .sample((0x1010, 1, ""), &[10], &[])
        .sample((0x1010, 2, ""), &[20], &[])
        .sample((0x1010, 3, ""), &[40], &[]);
    let expected = [
        "a/Release/x.node (11223344)+0x10 40",
        "a/Release/x.node (aabbccdd)+0x10 10",
        "b/Release/x.node+0x10 20",
    ];
    check_stacks(&two, &expected);
    // A comparison calls the modules of both profiles apart.
    let build = |id| {
        let profile = Builder::new(SPACE).mapping(0x1000, 0x2000, "/app", id);
        profile.sample((0x1010, 1, ""), &[8], &[]).bytes()
    };
    let compare = |new, base| {
        let (new, base) = (build(new), build(base));
        let (out, _) = try_report(&new, Some(&base), &flat(Format::Collapsed)).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(compare("aa", "aa"), "");
    assert_eq!(compare("aa", ""), "");
    assert_eq!(compare("aa", "bb"), "app (aa)+0x10 8\napp (bb)+0x10 -8\n");
}

/// One function with a value of each sample type.
fn one(types: &[(&str, &str)], values: &[i64]) -> Builder {
    Builder::new(types).sample((0, 0, "f"), values, &[])
}

#[test]
fn selected_type_is_shown_in_its_unit() {
    let heading = |types: &[(&str, &str)], values: &[i64], name: Option<&str>| {
        let options = Options {
            sample_type_name: name.map(str::to_owned),
            ..flat(Format::Text)
        };
        let text = shown(&one(types, values).bytes(), &options);
        text.split(", as the file has it")
            .next()
            .unwrap()
            .to_owned()
    };
    let check = |types: &[(&str, &str)], name, expected: &str| {
        let values: Vec<i64> = (0..types.len() as i64).map(|index| 3 + index).collect();
        assert_eq!(heading(types, &values, name), expected);
    };
    check(
        &[("inuse_space", "kilobytes")],
        None,
        "inuse_space: 3072 bytes (3.00KiB)",
    );
    check(
        &[("space", "MiB")],
        None,
        "inuse_space: 3145728 bytes (3.00MiB)",
    );
    check(
        &[("space", "MB")],
        Some("space"),
        "inuse_space: 3145728 bytes (3.00MiB)",
    );
    check(&[("inuse_space", "pages")], None, "inuse_space: 3 pages");
    check(&[("inuse_space", "")], None, "inuse_space: 3");
    let many = [
        ("alloc-samples", "count"),
        ("heap-live-size", "kB"),
        ("cpu", "nanoseconds"),
        ("inuse_objects", "count"),
    ];
    check(&many, Some("alloc-samples"), "alloc-samples: 3 count");
    check(
        &many,
        Some("heap-live-size"),
        "heap-live-size: 4096 bytes (4.00KiB)",
    );
    check(&many, Some("cpu"), "cpu: 5 nanoseconds");
    check(&many, Some("inuse_objects"), "inuse_objects: 6 objects");
}

/// Go's profile of a program that has freed all.
#[test]
fn what_was_allocated_remains_where_nothing_is_in_use() {
    let types = [("alloc_space", "bytes"), ("inuse_space", "bytes")];
    let freed = one(&types, &[4096, 0]).bytes();
    let expected = "--sample-type alloc_space shows what was allocated";
    let error = try_report(&freed, None, &flat(Format::Text)).unwrap_err();
    assert!(error.to_string().ends_with(expected), "{error}");
    let whole = try_report(&freed, None, &flat(Format::Pprof)).unwrap().0;
    let named = Options {
        sample_type_name: Some("alloc_space".to_owned()),
        ..flat(Format::Collapsed)
    };
    assert_eq!(shown(&whole, &named), "f 4096\n");
}

#[test]
fn missing_type_is_refused_with_those_that_exist() {
    let alloc = one(
        &[("alloc_objects", "count"), ("alloc_space", "bytes")],
        &[1, 2],
    )
    .bytes();
    let check = |name: Option<&str>, expected: &str| {
        let options = Options {
            sample_type_name: name.map(str::to_owned),
            ..flat(Format::Text)
        };
        check_error(&alloc, &options, ErrorKind::Usage, expected);
    };
    let types = "but: alloc_objects, alloc_space (--sample-type NAME selects one)";
    check(None, &format!("x.pb: it has no inuse_space, {types}"));
    check(Some("cpu"), &format!("x.pb: it has no cpu, {types}"));
    let nameless = one(&[("", "")], &[1]).bytes();
    let expected =
        "x.pb: it has no inuse_space, but: one without a name (--sample-type NAME selects one)";
    check_error(&nameless, &flat(Format::Text), ErrorKind::Usage, expected);
    let none = one(&[], &[]).bytes();
    let error = super::parse_uncompressed(&none, &Limits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to parse pprof profile: it has no sample type"
    );
    let large = one(&[("inuse_space", "GB")], &[1 << 40]).bytes();
    let problem = "x.pb: the values overflow: a value in bytes passes 63 bits";
    check_error(&large, &flat(Format::Text), ErrorKind::Failed, problem);
    let types = [("inuse_objects", "count"), ("cpu", "ms")];
    let options = Options {
        sample_type_name: Some("cpu".to_owned()),
        ..flat(Format::Jeprof)
    };
    let problem = "jeprof's file holds inuse_* and alloc_*, not cpu; --format pprof holds it";
    check_error(
        &one(&types, &[1, 2]).bytes(),
        &options,
        ErrorKind::Usage,
        problem,
    );
}

/// The sum over all samples fits, but that over the function `f` does not, or the change from the base.
#[test]
fn overflow_of_negative_values_is_refused() {
    let build = |values: &[i64]| {
        let names = ["f", "g"].into_iter().cycle();
        let samples = values.iter().zip(names).zip(1..);
        let built = samples.fold(Builder::new(SPACE), |builder, ((value, name), address)| {
            builder.sample((address, 0, name), &[*value], &[])
        });
        built.bytes()
    };
    let check = |values: &[i64], base: Option<&[i64]>, prefix: &str| {
        for format in [Format::Text, Format::Collapsed, Format::Tree] {
            let base = base.map(build);
            let error = try_report(&build(values), base.as_deref(), &flat(format)).unwrap_err();
            let problem = "the values overflow: the sum over all stacks passes 63 bits";
            assert_eq!(error.to_string(), format!("{prefix}{problem}"));
        }
    };
    const MAX: i64 = i64::MAX;
    check(&[MAX, -MAX, MAX, -MAX], None, "x.pb: ");
    check(&[i64::MIN], None, "x.pb: ");
    check(&[1], Some(&[MAX, -MAX]), "y.pb: ");
    check(&[MAX], Some(&[-MAX]), "");
}

#[test]
fn base_in_another_unit_is_refused() {
    let [new, base] = ["ms", "s"].map(|unit| one(&[("cpu", unit)], &[1]).bytes());
    let options = Options {
        sample_type_name: Some("cpu".to_owned()),
        ..flat(Format::Text)
    };
    let error = try_report(&new, Some(&base), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "x.pb: it counts cpu in \"ms\", the base in \"s\""
    );
    let [new, base] = [("kB", 3), ("bytes", 1024)]
        .map(|(unit, value)| one(&[("inuse_space", unit)], &[value]).bytes());
    let (out, _) = try_report(&new, Some(&base), &flat(Format::Collapsed)).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "f 2048\n");
}

#[test]
fn period_of_another_quantity_is_no_sample_interval() {
    let check = |name, unit, expected: &str| {
        let profile = one(SPACE, &[1]).period(name, unit, 512);
        let text = shown(&profile.bytes(), &flat(Format::Text));
        assert!(text.contains(expected), "{text}");
    };
    check("space", "bytes", "estimated, 1 sample per 512 bytes");
    check("space", "kilobytes", "estimated, 1 sample per 524288 bytes");
    check("cpu", "nanoseconds", "as the file has it");
    check("allocations", "count", "as the file has it");
}

fn labelled() -> Builder {
    Builder::new(SPACE)
        .sample(
            (0, 0, "f"),
            &[10],
            &[("tenant", Ok("acme")), ("size", Err((16, "bytes")))],
        )
        .sample(
            (0, 0, "f"),
            &[20],
            &[("tenant", Ok("zeta")), ("size", Err((-3, "")))],
        )
        .sample(
            (0, 0, "g"),
            &[40],
            &[("tenant", Ok("acme")), ("tenant", Ok("zeta"))],
        )
        .sample((0, 0, "g"), &[80], &[("", Err((0, "")))])
}

#[test]
fn total_of_types_of_one_name_is_that_of_the_first() {
    let profile = one(&[SPACE[0], SPACE[0]], &[1, 2]);
    let (out, _) = try_report(&profile.bytes(), None, &flat(Format::Json)).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(report["totals"]["inuse_space"], 1);
}

#[test]
fn frames_that_the_file_drops_are_left_out() {
    let check = |drop, keep, expected: &[&str]| {
        let functions = ["track", "pool", "main", "handler"].into_iter();
        let mut builder = functions.fold(Builder::new(SPACE), |builder, function| {
            builder.sample((0, 0, function), &[0], &[])
        });
        // `track` is inlined in `handler`.
        let inlined = builder.profile.location[0].line[0];
        builder.profile.location[3].line.insert(0, inlined);
        let sample = |stack: &[u64], value| proto::Sample {
            location_id: stack.to_vec(),
            value: vec![value],
            ..proto::Sample::default()
        };
        builder.profile.sample = vec![
            sample(&[1, 2, 3], 10),
            sample(&[1], 20),
            sample(&[4, 3], 40),
        ];
        builder.profile.drop_frames = builder.string(drop);
        builder.profile.keep_frames = builder.string(keep);
        check_stacks(&builder, expected);
    };
    let all = ["main;handler;track 40", "main;pool;track 10", "track 20"];
    check("", "", &all);
    check("rack", "", &all);
    check("track", "track", &all);
    // A function at the root stays.
    check("main", "", &all);
    let without_track = ["main;handler 40", "main;pool 10", "track 20"];
    check("track", "", &without_track);
    check(".*", "main|handler|pool", &without_track);
    // With a function, those that it calls.
    let expected = ["main 10", "main;handler;track 40", "track 20"];
    check("pool", "", &expected);
    let note = "note: its drop_frames or keep_frames is no valid pattern: all frames are shown";
    check("(", "", &[all[0], all[1], all[2], note]);
}

#[test]
fn repeated_label_is_one_value() {
    // As jemalloc_pprof writes them: once for each frame of the stack.
    let main = ("annotation", Ok("main"));
    let profile = Builder::new(SPACE)
        .sample((0, 0, "f"), &[10], &[main, main, main])
        .sample((0, 0, "g"), &[20], &[main]);
    let options = Options {
        by: Some("annotation".to_owned()),
        ..flat(Format::Text)
    };
    let text = shown(&profile.bytes(), &options);
    let rows: Vec<_> = text.lines().skip(2).collect();
    assert!(rows.len() == 1 && rows[0].ends_with(" main"), "{text}");
}

#[test]
fn labels_select_and_divide() {
    let rows = |key: &str| {
        let options = Options {
            by: Some(key.to_owned()),
            ..flat(Format::Text)
        };
        let text = shown(&labelled().bytes(), &options);
        let rows = text.lines().skip(2).map(str::split_ascii_whitespace);
        let rows = rows.map(|words| words.collect::<Vec<_>>().join(" "));
        rows.collect::<Vec<_>>()
    };
    let tenants = [
        "80B 53.3% 0 [none]",
        "40B 26.7% 0 acme, zeta",
        "20B 13.3% 0 zeta",
        "10B 6.7% 0 acme",
    ];
    assert_eq!(rows("tenant"), tenants);
    let sizes = [
        "120B 80.0% 0 [none]",
        "20B 13.3% 0 -3",
        "10B 6.7% 0 16 bytes",
    ];
    assert_eq!(rows("size"), sizes);
    let check = |label: &str, expected: &str| {
        let options = Options {
            label: Some(label.parse().unwrap()),
            ..flat(Format::Collapsed)
        };
        assert_eq!(shown(&labelled().bytes(), &options), expected);
    };
    check("tenant=acme", "f 10\ng 40\n");
    check("size=16 bytes", "f 10\n");
    check("size=16", "f 10\n");
    check("size=[none]", "g 120\n");
    let options = Options {
        by: Some("route".to_owned()),
        ..flat(Format::Text)
    };
    let problem = "its samples have no labels";
    check_error(
        &one(SPACE, &[1]).bytes(),
        &options,
        ErrorKind::Usage,
        problem,
    );
}

/// A profile with everything that conversions keep.
fn full() -> Builder {
    let types = [
        ("cpu", "nanoseconds"),
        ("objects", "count"),
        ("space", "kB"),
        ("heap-live-size", "bytes"),
    ];
    let mut full = Builder::new(&types)
        .mapping(0x1000, 0x2000, "/srv/a", "aa")
        .mapping(0x1000, 0x2000, "/srv/b", "bb")
        .mapping(0, u64::MAX, "", "")
        .sample((0x1010, 1, ""), &[1, 2, 3, 4], &[("tenant", Ok("acme"))])
        .sample(
            (0x1010, 2, ""),
            &[5, 6, 7, 8],
            &[("size", Err((16, "bytes")))],
        )
        .sample(
            (0x1010, 2, "get_iterator"),
            &[-9, 10, 11, 12],
            &[("tenant", Ok("zeta"))],
        )
        .sample((0, 3, "f"), &[13, 14, -15, 16], &[])
        .sample((0, 0, "f"), &[17, 18, 19, 20], &[("n", Err((7, "")))])
        .period("space", "bytes", 4096);
    full.profile.time_nanos = 1_234_567;
    full.profile.duration_nanos = 89;
    let comment = full.string("made by hand");
    full.profile.comment = vec![comment];
    full
}

#[test]
fn conversion_to_pprof_reads_back_the_same() {
    let source = full().bytes();
    let convert = |bytes: &[u8]| {
        let (gzip, _) = try_report(bytes, None, &flat(Format::Pprof)).unwrap();
        let mut plain = Vec::new();
        let mut reader = flate2::read::GzDecoder::new(gzip.as_slice());
        std::io::Read::read_to_end(&mut reader, &mut plain).unwrap();
        plain
    };
    let converted = convert(&source);
    assert_eq!(convert(&converted), converted);
    let profile = proto::Profile::decode(converted.as_slice()).unwrap();
    assert_eq!(
        (profile.time_nanos, profile.duration_nanos),
        (1_234_567, 89)
    );
    let options = |format, name: &str, by: Option<&str>| Options {
        sample_type_name: Some(name.to_owned()),
        by: by.map(str::to_owned),
        ..flat(format)
    };
    for name in ["cpu", "objects", "space", "heap-live-size"] {
        for format in [Format::Text, Format::Collapsed, Format::Json] {
            let options = options(format, name, None);
            assert_eq!(
                shown(&converted, &options),
                shown(&source, &options),
                "{name}"
            );
        }
        for key in ["tenant", "size", "n"] {
            let options = options(Format::Text, name, Some(key));
            assert_eq!(
                shown(&converted, &options),
                shown(&source, &options),
                "{key}"
            );
        }
    }
}

#[test]
fn jeprof_file_has_the_same_functions() {
    let source = full().bytes();
    let stacks = |bytes: &[u8]| shown(bytes, &flat(Format::Collapsed));
    let (jeprof, notes) = try_report(&source, None, &flat(Format::Jeprof)).unwrap();
    let left_out = "-15.00KiB of inuse_space left out: jeprof's file cannot hold negative values, --format pprof can";
    assert_eq!(notes, [left_out]);
    let stacks = stacks(&jeprof);
    let expected = "a+0x10 3072\nb+0x10 7168\nf 19456\nget_iterator 11264\n";
    assert_eq!(stacks, expected);
    let (out, _) = try_report(&source, Some(&jeprof), &flat(Format::Collapsed)).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "f -15360\n");
}

#[test]
fn shares_of_a_difference_are_of_all_that_changed() {
    let delta = Builder::new(SPACE)
        .sample((0, 0, "grew"), &[1000], &[("k", Ok("a"))])
        .sample((0, 0, "shrank"), &[-3000], &[("k", Ok("b"))])
        .bytes();
    let check = |options: &Options, expected: &[&str]| {
        let text = shown(&delta, options);
        for part in expected {
            assert!(text.contains(part), "{part}: {text}");
        }
    };
    check(&flat(Format::Text), &["-2.93KiB -75.0%", "1000B  25.0%"]);
    let by = Options {
        by: Some("k".to_owned()),
        ..flat(Format::Text)
    };
    check(&by, &["-2.93KiB -75.0%", "1000B  25.0%"]);
    check(
        &flat(Format::Tree),
        &["-2.93KiB -75.0%", "1000B  25.0%", "-1.95KiB -50.0%"],
    );
    check(&flat(Format::Dot), &["-2.93KiB (-75.0%)", "1000B (25.0%)"]);
    let note = "note: -2.93KiB in 1 stack are negative";
    check(&flat(Format::Collapsed), &["shrank -3000", note]);
    check(&flat(Format::Flamegraph), &["grew", note]);
    check(
        &flat(Format::View),
        &["-3000", "-2.93KiB in 1 stack are negative"],
    );
    check(
        &flat(Format::Jeprof),
        &["note: -2.93KiB of inuse_space left out"],
    );
    // What `go tool pprof -diff_base` writes: a stack's old value beside its new one.
    let mut pair = Builder::new(SPACE)
        .sample((0, 0, "f"), &[1000], &[])
        .sample((0, 0, "f"), &[-400], &[("pprof::base", Ok("true"))])
        .profile;
    pair.sample[1].location_id = vec![1];
    let text = shown(&pair.encode_to_vec(), &flat(Format::Jeprof));
    assert!(text.contains("0: 600 [0: 0] @ 0x"), "{text}");
    assert!(!text.contains("note"), "{text}");
    let two = two_callees();
    let peek = Options {
        filter: crate::Filter {
            focus: Some(compile_pattern("^main$").unwrap()),
            ignore: None,
        },
        ..flat(Format::Peek)
    };
    let text = shown(&two, &peek);
    assert!(text.contains("-2.93KiB  -75.0%    shrank"), "{text}");
}

/// `main` calls a function that grew and one that shrank.
fn two_callees() -> Vec<u8> {
    let mut two = Builder::new(SPACE)
        .sample((0, 0, "grew"), &[1000], &[])
        .sample((0, 0, "shrank"), &[-3000], &[])
        .sample((0, 0, "main"), &[0], &[]);
    for sample in &mut two.profile.sample[..2] {
        sample.location_id.push(3);
    }
    two.bytes()
}

/// Decodes a report, and checks it by Parca's rules (`pkg/normalizer/validate.go`), which refuses a profile whose ids
/// are not 1, 2, 3 … in their order.
fn decode_checked(report: &[u8]) -> proto::Profile {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(report), &mut plain).unwrap();
    let profile = proto::Profile::decode(&plain[..]).unwrap();
    let is_sequence = |ids: Vec<u64>| ids.iter().copied().eq(1..=ids.len() as u64);
    assert!(is_sequence(
        profile.mapping.iter().map(|one| one.id).collect()
    ));
    assert!(is_sequence(
        profile.function.iter().map(|one| one.id).collect()
    ));
    assert!(is_sequence(
        profile.location.iter().map(|one| one.id).collect()
    ));
    assert_eq!(profile.string_table[0], "");
    let strings = profile.string_table.len() as i64;
    for sample in &profile.sample {
        assert_eq!(sample.value.len(), profile.sample_type.len());
        let ids = sample.location_id.iter();
        assert!(
            ids.copied()
                .all(|id| (1..=profile.location.len() as u64).contains(&id))
        );
        let labels = sample.label.iter();
        assert!(
            labels
                .clone()
                .all(|label| (1..strings).contains(&label.key) && label.str < strings)
        );
    }
    profile
}

#[test]
fn profile_without_the_allocators_frames_is_valid_for_parca() {
    let dump = "--- symbol\nbinary=/x\n0x0000000000100010 malloc\n0x0000000000100020 leak\n---\n--- heap\nheap_v2/1\n  \
                t*: 2: 300 [0: 0]\n@ 0x100011 0x100021 0x100041\n  t*: 1: 100 [0: 0]\n@ 0x100011 0x100031\n  \
                t*: 1: 200 [0: 0]\n\nMAPPED_LIBRARIES:\n100000-101000 r-xp 00000000 00:00 0 /x\n";
    let options = Options {
        format: Format::Pprof,
        ..Options::default()
    };
    let (mut bytes, mut out) = (dump.as_bytes(), Vec::new());
    let input = Input {
        name: "new",
        bytes: &mut bytes,
    };
    write_report(input, None, &[], &options, &|_, _| {}, &mut out).unwrap();
    let profile = decode_checked(&out);
    assert_eq!((profile.sample.len(), profile.location.len()), (2, 3));
}

/// Samples of the difference of two dumps, as addresses in /x with the bytes, and its duration in nanoseconds.
fn difference(new: &str, base: &str) -> (Vec<(Vec<u64>, i64)>, i64) {
    let options = Options {
        format: Format::Pprof,
        time_nanos: 5_000,
        base_time_nanos: 2_000,
        ..Options::default()
    };
    let (mut new, mut base, mut out) = (new.as_bytes(), base.as_bytes(), Vec::new());
    let new = Input {
        name: "new",
        bytes: &mut new,
    };
    let base = Input {
        name: "base",
        bytes: &mut base,
    };
    write_report(new, Some(base), &[], &options, &|_, _| {}, &mut out).unwrap();
    let profile = decode_checked(&out);
    let offset = |id: &u64| {
        let location = profile.location.iter().find(|one| one.id == *id).unwrap();
        let mapping = profile.mapping.iter();
        let start = mapping
            .filter(|mapping| mapping.id == location.mapping_id)
            .map(|mapping| mapping.memory_start);
        location.address - start.sum::<u64>()
    };
    let samples = profile.sample.iter().map(|sample| {
        assert!(sample.label.len() <= 1, "{sample:?}");
        (
            sample.location_id.iter().map(offset).collect(),
            sample.value[1],
        )
    });
    (samples.collect(), profile.duration_nanos)
}

/// A dump of two stacks with these bytes, in a process that has /x at `start`, with ages and a label.
fn dump_of_two(start: u64, first: u64, second: u64, path: &str) -> String {
    let (one, two, end) = (start + 0x11, start + 0x21, start + 0x1000);
    let births = start >> 12;
    let marks = format!("{:#x}", 0x4d50_0200_0000_0000 | births << 1 | 1);
    format!(
        "heap_v2/1\n  t*: 2: {total} [0: 0]\n@ {one:#x} {two:#x} {marks}\n  t*: 1: {first} [0: 0]\n\
         @ {two:#x} {marks}\n  t*: 1: {second} [0: 0]\n\nMAPPED_LIBRARIES:\n\
         {start:x}-{end:x} r-xp 00000000 00:00 0 {path}\n# ages: 60 {taken}\n",
        total = first + second,
        taken = births + 600,
    )
}

#[test]
fn difference_has_each_stack_once_and_none_that_is_the_same() {
    let check = |new: &str, base: &str, expected: &[(&[u64], i64)]| {
        let (samples, duration) = difference(new, base);
        let samples: Vec<_> = samples
            .iter()
            .map(|(at, value)| (&at[..], *value))
            .collect();
        assert_eq!((&samples[..], duration), (expected, 3_000));
    };
    let x = |start, first, second| dump_of_two(start, first, second, "/x");
    check(&x(0x10_0000, 100, 200), &x(0x10_0000, 100, 200), &[]);
    // Of another process, whose file lies elsewhere.
    check(&x(0x10_0000, 100, 200), &x(0x70_0000, 100, 200), &[]);
    check(
        &x(0x10_0000, 150, 200),
        &x(0x70_0000, 100, 260),
        &[(&[0x10, 0x20], 50), (&[0x20], -60)],
    );
    // Code of no file is the same only at the same address.
    let code = |start| dump_of_two(start, 100, 100, "[anon:code]");
    check(&code(0x10_0000), &code(0x10_0000), &[]);
    let (samples, _) = difference(&code(0x10_0000), &code(0x70_0000));
    assert_eq!(samples.iter().map(|(_, value)| value).sum::<i64>(), 0);
    assert_eq!(samples.len(), 4);
}

#[test]
fn strings_that_are_not_utf8_stay_apart_and_are_counted() {
    let samples = ["f\u{1}", "f\u{2}", "g"].map(|name| ((0, 0, name), [1, 8]));
    let builder = Builder::new(&[("inuse_objects", "count"), ("inuse_space", "bytes")]);
    let builder = samples.iter().fold(builder, |builder, (place, values)| {
        builder.sample(*place, values, &[("tenant", Ok("t\u{1}"))])
    });
    let bytes = builder.bytes();
    let bytes: Vec<u8> = bytes
        .iter()
        .enumerate()
        .map(
            |(index, byte)| match (index.checked_sub(1).map(|before| bytes[before]), byte) {
                (Some(b'f' | b't'), 1) => 0xff,
                (Some(b'f'), 2) => 0xfe,
                _ => *byte,
            },
        )
        .collect();
    let (out, warnings) = try_report(&bytes, None, &flat(Format::Collapsed)).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert_eq!(out, "f\\xfe 8\nf\\xff 8\ng 8\n");
    assert!(
        warnings.iter().any(|note| note.starts_with("3 of its ")),
        "{warnings:?}"
    );
}
