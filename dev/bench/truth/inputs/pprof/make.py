#!/usr/bin/env python3
"""Writes pprof profiles in the directory given: make.py DIR. Each function below is one case."""
import gzip, os, sys


def varint(number):
    number &= (1 << 64) - 1
    out = b''
    while number > 0x7f:
        out += bytes([number & 0x7f | 0x80])
        number >>= 7
    return out + bytes([number])


def field(tag, value):
    if isinstance(value, bytes):
        return varint(tag << 3 | 2) + varint(len(value)) + value
    return varint(tag << 3) + varint(value)


class Profile:
    """A profile.proto that is being made; tables are in the order of their ids, from 1."""

    def __init__(self, *types, period=('space', 'bytes', 524288)):
        self.strings, self.body, self.count = [b''], b'', {}
        for name, unit in types:
            self.body += field(1, self.value_type(name, unit))
        self.tail = field(11, self.value_type(*period[:2])) + field(12, period[2])

    def drop(self, drop, keep):
        self.tail += field(7, self.string(drop)) + field(8, self.string(keep))

    def string(self, text):
        text = text.encode(errors='surrogateescape')
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def value_type(self, name, unit):
        return field(1, self.string(name)) + field(2, self.string(unit))

    def next_id(self, kind):
        self.count[kind] = self.count.get(kind, 0) + 1
        return self.count[kind]

    def mapping(self, start, limit, path, build_id='', offset=0, number=None):
        number = number or self.next_id('mapping')
        self.body += field(3, field(1, number) + field(2, start) + field(3, limit) + field(4, offset)
                           + field(5, self.string(path)) + field(6, self.string(build_id)))
        return number

    def location(self, address=0, mapping=0, *functions):
        number, lines = self.next_id('location'), b''
        for name in functions:
            function = self.next_id('function')
            self.body += field(5, field(1, function) + field(2, self.string(name)) + field(3, self.string(name)))
            lines += field(4, field(1, function) + field(2, 10))
        self.body += field(4, field(1, number) + field(2, mapping) + field(3, address) + lines)
        return number

    def sample(self, locations, values, **labels):
        body = field(1, b''.join(map(varint, locations))) + field(2, b''.join(map(varint, values)))
        for key, found in labels.items():
            for value in found if isinstance(found, list) else [found]:
                label = field(1, self.string(key))
                if isinstance(value, str):
                    label += field(2, self.string(value))
                else:
                    label += field(3, value[0]) + field(4, self.string(value[1]))
                body += field(3, label)
        self.body += field(2, body)

    def write(self, path):
        strings = b''.join(field(6, text) for text in self.strings)
        with open(path, 'wb') as file:
            file.write(gzip.compress(strings + self.body + self.tail, mtime=0))


SPACE = ('inuse_space', 'bytes')


def two_programs():
    p = Profile(SPACE)
    a, b = p.mapping(0x1000, 0x3000, '/srv/a/app'), p.mapping(0x1000, 0x3000, '/srv/b/app')
    for mapping, value in ((a, 1000), (b, 2000), (0, 4000)):
        p.sample([p.location(0x1010, mapping), p.location(0x1fff, mapping)], [value])
    return p


def two_builds():
    p = Profile(SPACE)
    for build_id, value in (('aabbccdd00', 1000), ('1122334400', 2000)):
        p.sample([p.location(0x1010, p.mapping(0x1000, 0x2000, '/srv/app', build_id))], [value])
    return p


def sparse_ids():
    p = Profile(SPACE)
    a, b = p.mapping(0x5000, 0x6000, '/b', number=1 << 40), p.mapping(0x1000, 0x2000, '/a', number=7)
    p.sample([p.location(0x5001, a)], [1000])
    p.sample([p.location(0x1001, b)], [2000])
    p.sample([p.location(0x1001, 8, 'stray')], [4000])
    return p


def no_ids():
    p = Profile(SPACE)
    p.mapping(0x5000, 0x6000, '/b')
    p.mapping(0x1000, 0x2000, '/a')
    p.sample([p.location(0x5001)], [1000])
    p.sample([p.location(0x1001)], [2000])
    return p


def outside():
    p = Profile(SPACE)
    p.sample([p.location(0x9000, p.mapping(0x1000, 0x2000, '/srv/app'))], [1000])
    return p


def native_modules():
    p = Profile(SPACE)
    for start, name in ((0x1000, 'zlib'), (0x5000, 'canvas')):
        mapping = p.mapping(start, start + 0x1000, f'/app/{name}/build/Release/binding.node')
        p.sample([p.location(start + 0x10, mapping)], [1000 if name == 'zlib' else 2000])
    return p


def jit_regions():
    p = Profile(SPACE)
    first, second = p.mapping(0x10000, 0x20000, ''), p.mapping(0x50000, 0x60000, '//anon')
    p.sample([p.location(0x10010, first), p.location(0x50010, second)], [1000])
    return p


def labels():
    p = Profile(SPACE)
    leaf = p.location(0, 0, 'leak')
    p.sample([leaf], [1000], tenant='acme', size=(16, 'bytes'))
    p.sample([leaf], [3000], tenant='zeta', size=(16, 'kilobytes'))
    p.sample([leaf], [4000], tenant=['acme', 'zeta'], size=(7, ''))
    return p


def unit(name):
    def kind():
        p = Profile(('inuse_objects', 'count'), ('inuse_space', name))
        p.sample([p.location(0, 0, 'leak')], [5, 3])
        return p
    return kind


def alloc_only():
    p = Profile(('alloc_objects', 'count'), ('alloc_space', 'bytes'))
    p.sample([p.location(0, 0, 'leak')], [2, 2048])
    return p


def other_types():
    p = Profile(('alloc-samples', 'count'), ('heap-live-size', 'kilobytes'), ('wall', 'nanoseconds'),
                period=('wall', 'nanoseconds', 10000000))
    p.sample([p.location(0, 0, 'first')], [2, 8, 100])
    p.sample([p.location(0, 0, 'second')], [3, 4, 900])
    return p


def difference():
    p = Profile(('inuse_objects', 'count'), SPACE)
    root = p.location(0, 0, 'main.main')
    p.sample([p.location(0, 0, 'main.grew'), root], [1, 1000])
    p.sample([p.location(0, 0, 'main.shrank'), root], [-3, -3000])
    return p


def cancelling():
    p = Profile(SPACE)
    root, handler = p.location(0, 0, 'main.main'), p.location(0, 0, 'main.handler')
    p.sample([handler, root], [1000])
    p.sample([p.location(0, 0, 'main.pool'), handler, root], [-1000])
    return p


def dropped():
    p = Profile(SPACE)
    root, track = p.location(0, 0, 'main'), p.location(0, 0, 'track')
    p.sample([track, p.location(0, 0, 'pool'), root], [1000])
    p.sample([p.location(0, 0, 'malloc_hook'), track, root], [2000])
    p.drop('track|malloc_.*|main', 'main')
    return p


def closures():
    p = Profile(SPACE)
    root = p.location(0, 0, 'app::run')
    for name, value in (('load', 1000), ('save', 2000)):
        p.sample([p.location(0, 0, f'app::{name}::{{closure#0}}'), root], [value])
    return p


def with_base():
    p = Profile(SPACE)
    for name, value, base in (('main.grew', 3000, 1000), ('main.shrank', 1000, 3000)):
        place = p.location(0, 0, name)
        p.sample([place], [value])
        p.sample([place], [-base], **{'pprof::base': 'true'})
    return p


def nameless():
    p = Profile(SPACE)
    mapping = p.mapping(0x1000, 0x2000, '/srv/app')
    p.sample([p.location(0x1010, mapping, '')], [1000])
    p.sample([p.location(0x1020, mapping, '', 'main.outer')], [2000])
    return p


def two_functions():
    p = Profile(SPACE)
    p.sample([p.location(0, 0, 'main.first')], [1000])
    p.count = {'location': 1}
    p.sample([p.location(0, 0, 'main.second')], [2000])
    return p


def all_shrank():
    p = Profile(SPACE)
    p.sample([p.location(0, 0, 'main.shrank')], [-3000])
    return p


def one_address():
    p = Profile(SPACE)
    for number in range(3):
        p.sample([p.location(0x10, 0, f'script{number}'), p.location(0, 0, 'loop')], [1000 << number])
    return p


def not_utf8():
    p = Profile(SPACE)
    p.mapping(0x1000, 0x2000, '/srv/caf\udce9/shop')
    for number, name in enumerate(('laden_f\udcfcr_a', 'laden_f\udce4r_a', 'good')):
        p.sample([p.location(0x1010 + number, 1, name)], [1000 << number], tenant='m\udcfcller')
    return p


def long_names():
    p = Profile(SPACE)
    for number in range(2):
        p.sample([p.location(0, 0, '_ZN4shop' + 'x' * 1500 + f'7load_all{number}Ev')], [1000 << number])
    return p


if __name__ == '__main__':
    kinds = [two_programs, two_builds, sparse_ids, no_ids, outside, native_modules, jit_regions, labels, alloc_only,
             other_types, difference, cancelling, dropped, closures, with_base, all_shrank, nameless, two_functions,
             one_address, not_utf8, long_names]
    made = {kind.__name__: kind for kind in kinds}
    made |= {f'unit_{name or "none"}': unit(name) for name in ('kilobytes', 'MiB', 'megabytes', 'pages', '')}
    for name, kind in made.items():
        kind().write(os.path.join(sys.argv[1], name + '.pb.gz'))
