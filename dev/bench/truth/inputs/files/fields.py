"""Writes a profile.proto to stdout: fields.py ORDER, with a letter for each field in the order wanted. It holds 1,000 bytes
of main.first and 2,000 of main.second."""
import sys


def varint(number):
    out = b""
    while number > 0x7f:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(tag, value):
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    return varint(tag << 3 | 2) + varint(len(value)) + value


STRINGS = ["", "inuse_objects", "count", "inuse_space", "bytes", "main.first", "main.second", "/srv/app"]


def value_type(kind, unit):
    return field(1, kind) + field(2, unit)


def sample(location, values):
    return field(2, field(1, varint(location)) + field(2, b"".join(map(varint, values))))


def location(number, function):
    return field(4, field(1, number) + field(2, 1) + field(3, 0x401000 * number) + field(4, field(1, function) + field(2, 7)))


FIELDS = {
    "T": field(1, value_type(1, 2)) + field(1, value_type(3, 4)),
    # A sample type with a field that only a newer version knows: longer than two numbers.
    "X": field(1, value_type(1, 2) + field(9, b"x" * 40)) + field(1, value_type(3, 4)),
    "S": sample(1, [1, 1000]) + sample(2, [1, 2000]),
    "M": field(3, field(1, 1) + field(2, 0x400000) + field(3, 0x900000) + field(5, 7)),
    "L": location(1, 1) + location(2, 2),
    "F": field(5, field(1, 1) + field(2, 5)) + field(5, field(1, 2) + field(2, 6)),
    "s": b"".join(field(6, text.encode()) for text in STRINGS),
    "d": field(7, 0),
    "t": field(9, 1700000000000000000),
    "u": field(10, 1000000000),
    "P": field(11, value_type(3, 4)),
    "p": field(12, 524288),
    "c": field(13, 7),
    "C": field(13, varint(7)),
    "D": field(14, 3),
    "n": field(50, b"of a newer version"),
}
sys.stdout.buffer.write(b"".join(FIELDS[letter] for letter in sys.argv[1]))
