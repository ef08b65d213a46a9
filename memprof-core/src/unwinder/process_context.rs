//! The names of the keys in OpenTelemetry's thread context, which a process publishes in its process context: a
//! mapping of that name, with a header that leads to a message of protobuf (OTEP 4719, and 4947 for
//! `threadlocal.attribute_key_map`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// With the naming of mappings and without, as shared memory or anonymous.
const MAPPINGS: [&str; 3] = [
    "[anon_shmem:OTEL_CTX]",
    "[anon:OTEL_CTX]",
    "/memfd:OTEL_CTX",
];
const SIGNATURE: &[u8; 8] = b"OTEL_CTX";
const VERSION: u32 = 2;
/// Signature, version, size of the payload, time of its publication, its address.
const HEADER: usize = 32;
/// More than 256 names take.
const MOST_PAYLOAD: usize = 1 << 20;
/// How often to read one that is written meanwhile.
const TRIES: usize = 100;

/// By index; none where the process publishes none.
pub(crate) fn attribute_keys() -> Option<Vec<String>> {
    let maps = fs::read("/proc/thread-self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    // Not /proc/self: a main thread may have ended.
    let memory = File::open("/proc/thread-self/mem").ok()?;
    starts(&maps).find_map(|start| key_map(&payload(&memory, start)?))
}

/// Where such mappings begin.
fn starts(maps: &str) -> impl Iterator<Item = u64> {
    let lines = maps.lines().filter(|line| {
        // proc_pid_maps(5): range, permissions, offset, device, inode, name.
        let name = line.split_ascii_whitespace().nth(5).unwrap_or_default();
        MAPPINGS.iter().any(|known| name.starts_with(known))
    });
    lines.filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok())
}

/// What was published, whole.
fn payload(memory: &File, start: u64) -> Option<Vec<u8>> {
    (0..TRIES).find_map(|_| {
        let before = header(memory, start).ok()?;
        let number = |at: usize| {
            before
                .get(at..at + 8)?
                .try_into()
                .ok()
                .map(u64::from_ne_bytes)
        };
        let size = u32::from_ne_bytes(before.get(12..16)?.try_into().ok()?) as usize;
        let (published, address) = (number(16)?, number(24)?);
        let is_one = before.starts_with(SIGNATURE) && before.get(8..12)? == VERSION.to_ne_bytes();
        if !is_one || published == 0 || size > MOST_PAYLOAD {
            return None;
        }
        let mut payload = vec![0; size];
        memory.read_exact_at(&mut payload, address).ok()?;
        (header(memory, start).ok()? == before).then_some(payload)
    })
}

fn header(memory: &File, start: u64) -> io::Result<[u8; HEADER]> {
    let mut header = [0; HEADER];
    memory.read_exact_at(&mut header, start)?;
    Ok(header)
}

/// `threadlocal.attribute_key_map` of a `ProcessContext`, which has it among its attributes, and earlier had it among
/// those of its resource.
fn key_map(context: &[u8]) -> Option<Vec<String>> {
    const KEY: &[u8] = b"threadlocal.attribute_key_map";
    let resource = ProtobufFields(context)
        .of(1)
        .flat_map(|resource| ProtobufFields(resource).of(1));
    let mut attributes = ProtobufFields(context).of(2).chain(resource);
    // KeyValue { key 1, value 2 }, AnyValue { string 1, array 5 }, ArrayValue { values 1 }
    let map = attributes.find(|attribute| ProtobufFields(attribute).of(1).next() == Some(KEY))?;
    let array = ProtobufFields(map)
        .of(2)
        .flat_map(|value| ProtobufFields(value).of(5));
    let values = array.flat_map(|array| ProtobufFields(array).of(1));
    let name = |value| ProtobufFields(value).of(1).next().unwrap_or_default();
    let names = values.map(|value| String::from_utf8_lossy(name(value)).into_owned());
    Some(names.collect())
}

/// The fields of a message that are texts or messages, up to where it makes no sense
/// (protobuf.dev/programming-guides/encoding).
#[derive(Clone, Copy)]
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    fn of(self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        self.filter(move |(found, _)| *found == number)
            .map(|(_, bytes)| bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.0.split_off_first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tag = self.varint()?;
            let length = match tag & 7 {
                0 => {
                    self.varint()?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(self.varint()?).ok()?,
                5 => 4,
                _ => return None,
            };
            let bytes = self.0.split_off(..length)?;
            if tag & 7 == 2 {
                return Some((tag >> 3, bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let head = [number << 3 | 2, u8::try_from(content.len()).unwrap()];
        [&head, content].concat()
    }

    fn text(key: &str, value: &[u8]) -> Vec<u8> {
        [field(1, key.as_bytes()), field(2, value)].concat()
    }

    /// `threadlocal.attribute_key_map: [http.route, tenant]`
    fn map() -> Vec<u8> {
        let names = ["http.route", "tenant"].map(|name| field(1, &field(1, name.as_bytes())));
        text("threadlocal.attribute_key_map", &field(5, &names.concat()))
    }

    #[test]
    fn names_are_found_wherever_they_were_published() {
        let version = text("threadlocal.schema_version", &field(1, b"tls_v1"));
        let resource = field(1, &field(1, &text("service.name", &field(1, b"shop"))));
        let attributes = [resource, field(2, &version), field(2, &map())].concat();
        let expected = Some(vec!["http.route".to_owned(), "tenant".to_owned()]);
        assert_eq!(key_map(&attributes), expected);
        assert_eq!(key_map(&field(1, &field(1, &map()))), expected);
        // A count of dropped attributes and a number of 64 bits before it.
        let other = [&[0x18, 0x96, 0x01][..], &[0x21; 9], &attributes].concat();
        assert_eq!(key_map(&other), expected);
    }

    #[test]
    fn a_damaged_context_ends_where_it_makes_no_sense() {
        let whole = field(2, &map());
        for length in 0..whole.len() {
            assert_eq!(key_map(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                key_map(&damaged);
            }
        }
    }

    #[test]
    fn mappings_are_known_by_their_names() {
        let maps = "7f0000000000-7f0000001000 rw-p 00000000 00:01 5   /memfd:OTEL_CTX (deleted)\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0   [anon_shmem:OTEL_CTX]\n\
                    7f0000004000-7f0000005000 rw-p 00000000 00:00 0 \n\
                    7f0000006000-7f0000007000 rw-p 00000000 fe:00 9   /tmp/OTEL_CTX\n";
        let found: Vec<_> = starts(maps).collect();
        assert_eq!(found, [0x7f00_0000_0000, 0x7f00_0000_2000]);
    }
}
