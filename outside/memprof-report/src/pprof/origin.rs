//! Origin of a profile in the comments of a pprof profile, `KEY: VALUE`, after one with memprof's name.

use crate::profile::ProfileOrigin;

/// First word of the first comment that memprof writes; its version follows.
const WRITER: &str = "memprof ";

/// A part of the origin.
type Part = fn(&mut ProfileOrigin) -> &mut Option<String>;

/// Parts of the origin by their keys, in the order in which they are written; the process id is beside them.
const PARTS: [(&str, Part); 6] = [
    ("host", |origin| &mut origin.host),
    ("machine", |origin| &mut origin.machine),
    ("allocator", |origin| &mut origin.allocator),
    ("active-since", |origin| &mut origin.active_since),
    ("only memory allocated since", |origin| {
        &mut origin.sampling_since
    }),
    ("taken", |origin| &mut origin.taken),
];

const PID: &str = "pid";

/// Returns comments for a pprof file: memprof's version, then `KEY: VALUE` for each part of the origin that is known.
pub(crate) fn origin_comments(origin: &ProfileOrigin) -> Vec<String> {
    let mut origin = origin.clone();
    let mut comments = vec![format!("{WRITER}{}", env!("CARGO_PKG_VERSION"))];
    for (key, part) in PARTS {
        let value = part(&mut origin).take();
        comments.extend(value.map(|value| format!("{key}: {value}")));
    }
    comments.extend(origin.pid.map(|pid| format!("{PID}: {pid}")));
    comments
}

/// Reads the origin of a profile, such as the host's name and process id, from the comments of a pprof file that
/// memprof wrote. Empty if another program wrote the file. Ignores unknown comments.
pub(super) fn read_origin(comments: &[String]) -> ProfileOrigin {
    let mut origin = ProfileOrigin::default();
    let Some((first, rest)) = comments.split_first() else {
        return origin;
    };
    if !first.starts_with(WRITER) {
        return origin;
    }
    for (key, value) in rest.iter().filter_map(|comment| comment.split_once(": ")) {
        if key == PID {
            origin.pid = value.parse().ok();
        }
        if let Some((_, part)) = PARTS.iter().find(|(known, _)| *known == key) {
            *part(&mut origin) = Some(value.to_owned());
        }
    }
    origin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_origin_is_read_back() {
        let origin = ProfileOrigin {
            host: Some("shop: the first".to_owned()),
            pid: Some(7),
            machine: Some("m".to_owned()),
            sampling_since: Some("2026-01-01".to_owned()),
            ..ProfileOrigin::default()
        };
        let mut comments = origin_comments(&origin);
        comments.push("base: x".to_owned());
        assert_eq!(read_origin(&comments), origin);
        comments.remove(0);
        assert_eq!(read_origin(&comments), ProfileOrigin::default());
    }
}
