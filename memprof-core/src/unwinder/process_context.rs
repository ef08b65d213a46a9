//! Key names of OpenTelemetry's thread context. A process publishes them in its process context: a mapping with a
//! reserved name, with a header that points to a protobuf message (OTEP 4719; OTEP 4947 for
//! `threadlocal.attribute_key_map`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Names of the mapping: as named shared memory, as named anonymous memory, and as a memfd if the kernel cannot name
/// mappings.
const MAPPING_NAMES: [&str; 3] = [
    "[anon_shmem:OTEL_CTX]",
    "[anon:OTEL_CTX]",
    "/memfd:OTEL_CTX",
];
const SIGNATURE: &[u8; 8] = b"OTEL_CTX";
const VERSION: u32 = 2;
/// Header length in bytes: signature, version, payload size, publication time and payload address.
const HEADER_LEN: usize = 32;
/// Maximum size of a payload to read, in bytes: more than 256 names need.
const MAX_PAYLOAD: usize = 1 << 20;
/// Maximum number of attempts to read a context that is being written.
const MAX_ATTEMPTS: usize = 100;

/// Reads the names of the keys in OpenTelemetry's thread contexts from the process context. The position of a name is
/// the index of its key. `None` if the process publishes no names for contexts that memprof reads, or if /proc cannot
/// be read.
pub(crate) fn read_label_key_names() -> Option<Vec<String>> {
    let maps = fs::read("/proc/thread-self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    // Not /proc/self, because the main thread may have exited.
    let memory = File::open("/proc/thread-self/mem").ok()?;
    context_mapping_starts(&maps).find_map(|start| parse_key_map(&read_payload(&memory, start)?))
}

/// Start addresses of the mappings with names that begin with one of [`MAPPING_NAMES`]. `maps` is the text of
/// /proc/PID/maps.
fn context_mapping_starts(maps: &str) -> impl Iterator<Item = u64> {
    let lines = maps.lines().filter(|line| {
        // proc_pid_maps(5): range, permissions, offset, device, inode, name.
        let name = line.split_ascii_whitespace().nth(5).unwrap_or_default();
        MAPPING_NAMES.iter().any(|known| name.starts_with(known))
    });
    lines.filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok())
}

/// Reads the payload of the context at `start` from the process's memory. Makes up to [`MAX_ATTEMPTS`] attempts. An
/// attempt fails if the context has another signature or version, is not published, is too large, cannot be read, or if
/// its header changes during the read. `None` if all fail.
fn read_payload(memory: &File, start: u64) -> Option<Vec<u8>> {
    (0..MAX_ATTEMPTS).find_map(|_| {
        // Offsets in the header: version 8, payload size 12, publication time 16, payload address 24.
        let before = read_header(memory, start).ok()?;
        let read_u64 = |offset: usize| {
            before
                .get(offset..offset + 8)?
                .try_into()
                .ok()
                .map(u64::from_ne_bytes)
        };
        let size = u32::from_ne_bytes(before.get(12..16)?.try_into().ok()?) as usize;
        let (published, address) = (read_u64(16)?, read_u64(24)?);
        let is_context =
            before.starts_with(SIGNATURE) && before.get(8..12)? == VERSION.to_ne_bytes();
        if !is_context || published == 0 || size > MAX_PAYLOAD {
            return None;
        }
        let mut payload = vec![0; size];
        memory.read_exact_at(&mut payload, address).ok()?;
        // A changed header means that the program replaced the context while its payload was read.
        (read_header(memory, start).ok()? == before).then_some(payload)
    })
}

/// Reads the header of the context at `start` from the process's memory.
fn read_header(memory: &File, start: u64) -> io::Result<[u8; HEADER_LEN]> {
    let mut header = [0; HEADER_LEN];
    memory.read_exact_at(&mut header, start)?;
    Ok(header)
}

/// Start of the schema's name for records at the thread-local variable `otel_thread_ctx_v1`, which are the only ones
/// that memprof reads. The draft's name is `tlsdesc_v1_dev`. Other schemas, such as `nodejs_v1_dev`, store their
/// records elsewhere.
const SCHEMA: &[u8] = b"tlsdesc_v1";

/// Extracts `threadlocal.attribute_key_map` from a `ProcessContext`: from its attributes or, in earlier versions, from
/// those of its resource. If a key occurs several times, the last attribute counts. `None` if both lack the map, or if
/// `threadlocal.schema_version` names a schema other than [`SCHEMA`].
fn parse_key_map(context: &[u8]) -> Option<Vec<String>> {
    // Field numbers: ProcessContext { resource 1, attributes 2 }, Resource { attributes 1 },
    // KeyValue { key 1, value 2 }, AnyValue { string 1, array 5 }, ArrayValue { values 1 }.
    let resource = ProtobufFields(context)
        .with_number(1)
        .flat_map(|resource| ProtobufFields(resource).with_number(1));
    let own = ProtobufFields(context).with_number(2);
    let value = |key: &[u8]| {
        let has_key =
            |attribute: &&[u8]| ProtobufFields(attribute).with_number(1).next() == Some(key);
        let in_resource = resource.clone().filter(has_key);
        let attribute = in_resource.chain(own.clone().filter(has_key)).last()?;
        ProtobufFields(attribute).with_number(2).last()
    };
    let text = |value| {
        ProtobufFields(value)
            .with_number(1)
            .last()
            .unwrap_or_default()
    };
    if let Some(schema) = value(b"threadlocal.schema_version")
        && !text(schema).starts_with(SCHEMA)
    {
        return None;
    }
    let array = ProtobufFields(value(b"threadlocal.attribute_key_map")?).with_number(5);
    let values = array.flat_map(|array| ProtobufFields(array).with_number(1));
    let names = values.map(|value| String::from_utf8_lossy(text(value)).into_owned());
    Some(names.collect())
}

/// Iterator over the length-delimited fields (strings and messages) of a protobuf message
/// (protobuf.dev/programming-guides/encoding). Ends at the first malformed byte.
#[derive(Clone, Copy)]
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    /// Iterates over the contents of the fields with this number.
    fn with_number(self, number: u64) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.filter(move |(found, _)| *found == number)
            .map(|(_, bytes)| bytes)
    }

    /// Reads a varint. `None` at the end, or for more than 64 bits.
    fn read_varint(&mut self) -> Option<u64> {
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

    /// Reads the next length-delimited field: its number and content. Skips fields of other types. `None` at the end,
    /// or for malformed bytes.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tag = self.read_varint()?;
            // Wire types: 0 is a varint, 1 is 8 bytes, 2 is length-delimited, 5 is 4 bytes.
            let length = match tag & 7 {
                0 => {
                    self.read_varint()?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(self.read_varint()?).ok()?,
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

    /// Attribute `threadlocal.attribute_key_map: [http.route, tenant]`.
    fn map() -> Vec<u8> {
        let names = ["http.route", "tenant"].map(|name| field(1, &field(1, name.as_bytes())));
        text("threadlocal.attribute_key_map", &field(5, &names.concat()))
    }

    #[test]
    fn key_names_in_attributes_and_resource() {
        let version = text("threadlocal.schema_version", &field(1, b"tlsdesc_v1_dev"));
        let resource = field(1, &field(1, &text("service.name", &field(1, b"shop"))));
        let attributes = [resource, field(2, &version), field(2, &map())].concat();
        let expected = Some(vec!["http.route".to_owned(), "tenant".to_owned()]);
        assert_eq!(parse_key_map(&attributes), expected);
        assert_eq!(parse_key_map(&field(1, &field(1, &map()))), expected);
        // A count of dropped attributes and a 64-bit number before the attributes.
        let other = [&[0x18, 0x96, 0x01][..], &[0x21; 9], &attributes].concat();
        assert_eq!(parse_key_map(&other), expected);
    }

    #[test]
    fn last_of_duplicate_attributes_counts() {
        let other = text(
            "threadlocal.attribute_key_map",
            &field(5, &field(1, &field(1, b"old"))),
        );
        let check = |attributes: &[Vec<u8>], expected: &[&str]| {
            assert_eq!(parse_key_map(&attributes.concat()).unwrap(), expected);
        };
        let new = ["http.route", "tenant"];
        check(&[field(2, &other), field(2, &map())], &new);
        check(&[field(2, &map()), field(2, &other)], &["old"]);
        check(&[field(2, &map()), field(1, &field(1, &other))], &new);
    }

    #[test]
    fn keys_of_another_schema_are_not_read() {
        let schema = |name: &[u8]| field(2, &text("threadlocal.schema_version", &field(1, name)));
        let check = |schemas: &[&[u8]], expected: bool| {
            let attributes = schemas.iter().map(|name| schema(name)).collect::<Vec<_>>();
            let context = [attributes.concat(), field(2, &map())].concat();
            assert_eq!(parse_key_map(&context).is_some(), expected, "{schemas:?}");
        };
        check(&[], true);
        check(&[b"tlsdesc_v1"], true);
        check(&[b"tlsdesc_v1_dev"], true);
        check(&[b"nodejs_v1_dev"], false);
        check(&[b"tlsdesc_v2"], false);
        check(&[b""], false);
        check(&[b"nodejs_v1_dev", b"tlsdesc_v1_dev"], true);
        check(&[b"tlsdesc_v1_dev", b"nodejs_v1_dev"], false);
    }

    #[test]
    fn damaged_context_yields_no_keys() {
        let whole = field(2, &map());
        for length in 0..whole.len() {
            assert_eq!(parse_key_map(&whole[..length]), None, "{length} bytes");
        }
        for index in 0..whole.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[index] = byte;
                parse_key_map(&damaged);
            }
        }
    }

    #[test]
    fn context_mappings_are_recognized_by_name() {
        let maps = "7f0000000000-7f0000001000 rw-p 00000000 00:01 5   /memfd:OTEL_CTX (deleted)\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0   [anon_shmem:OTEL_CTX]\n\
                    7f0000004000-7f0000005000 rw-p 00000000 00:00 0 \n\
                    7f0000006000-7f0000007000 rw-p 00000000 fe:00 9   /tmp/OTEL_CTX\n";
        let found: Vec<_> = context_mapping_starts(maps).collect();
        assert_eq!(found, [0x7f00_0000_0000, 0x7f00_0000_2000]);
    }
}
