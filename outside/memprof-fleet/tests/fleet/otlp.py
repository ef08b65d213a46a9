"""Reads OpenTelemetry's profiles with the official messages, and prints what they say as JSON.

    otlp.py MESSAGE PPROF

Exits with what is wrong with the message: the rules are those of profcheck (github.com/open-telemetry/sig-profiling),
which knows no others for duplicates and for entries that nothing refers to.
"""

import gzip
import json
import sys

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

wrong = []


def check(holds, text):
    if not holds:
        wrong.append(text)


def table_of(field):
    """The table into which a field has indices."""
    if field.endswith("strindex"):
        return "string_table"
    for end in ("_index", "_indices"):
        if field.endswith(end):
            return field.removesuffix(end) + "_table"
    return None


def walk(message, path, references):
    """Adds the indices of a message and all in it, by table."""
    check(len(UnknownFieldSet(message)) == 0, f"{path} has fields that the format does not know")
    for field, value in message.ListFields():
        values = [value] if isinstance(value, (Message, str, bytes, int)) else list(value)
        table = table_of(field.name)
        for at, value in enumerate(values):
            if table:
                references.setdefault(table, []).append((value, f"{path}.{field.name}"))
            elif isinstance(value, Message):
                walk(value, f"{path}.{field.name}[{at}]", references)


def check_tables(dictionary, references):
    for field in dictionary.DESCRIPTOR.fields:
        table, name = list(getattr(dictionary, field.name)), field.name
        check(table and table[0] == type(table[0])(), f"{name} does not begin with a zero entry")
        entries = [one if name == "string_table" else one.SerializeToString(deterministic=True) for one in table]
        check(len(set(entries)) == len(entries), f"{name} has an entry twice")
        indices = references.pop(name, [])
        for index, where in indices:
            check(0 <= index < len(table), f"{where} is {index}, but {name} has {len(table)} entries")
        orphans = set(range(1, len(table))) - {index for index, _ in indices}
        check(not orphans, f"nothing refers to these of {name}: {orphans}")
    check(not references, f"there are indices into tables that do not exist: {references.keys()}")


def check_profile(profile):
    check(len(profile.profile_id) == 16 and any(profile.profile_id), "a profile has no id")
    check(profile.time_unix_nano > 0 and profile.duration_nano > 0, "a profile has no time")
    stacks = [sample.stack_index for sample in profile.samples]
    check(len(set(stacks)) == len(stacks), "a profile has two samples of one stack")
    for sample in profile.samples:
        check(len(sample.values) == 1 and not sample.timestamps_unix_nano, "a sample has not one value")


def size(data):
    return [len(data), len(gzip.compress(data, 6))]


with open(sys.argv[1], "rb") as file:
    encoded = file.read()
with gzip.open(sys.argv[2]) as file:
    pprof = file.read()
message = ProfilesData.FromString(encoded)
dictionary = message.dictionary
references = {}
walk(message, "message", references)
check_tables(dictionary, references)
scopes = [scope for resource in message.resource_profiles for scope in resource.scope_profiles]
profiles = [profile for scope in scopes for profile in scope.profiles]
for profile in profiles:
    check_profile(profile)
check(len({profile.profile_id for profile in profiles}) == len(profiles), "two profiles have one id")
if wrong:
    sys.exit("\n".join(wrong))


def text(index):
    return dictionary.string_table[index]


def known_addresses():
    for mapping in dictionary.mapping_table:
        yield from (mapping.memory_start, mapping.memory_limit, mapping.file_offset)
    for location in dictionary.location_table:
        yield location.address


print(
    json.dumps(
        {
            "services": [
                attribute.value.string_value
                for resource in message.resource_profiles
                for attribute in resource.resource.attributes
            ],
            "totals": {
                f"{text(profile.sample_type.type_strindex)} {text(profile.sample_type.unit_strindex)}": sum(
                    sample.values[0] for sample in profile.samples
                )
                for profile in profiles
            },
            "addresses": [address for address in known_addresses() if address],
            "files": sorted(text(mapping.filename_strindex) for mapping in dictionary.mapping_table),
            "bytes": {"otlp": size(encoded), "pprof": size(pprof)},
        }
    )
)
