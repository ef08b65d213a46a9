"""many_types.py COUNT: makes as many types as a program can pretend to have, each a subtype of the next in a ring; an object of
each; and a dict for all of them that has an object of each as a key. Prints "ready" and echoes what it reads."""
import ctypes
import gc
import os
import sys

TYPE_SIZE = 1024
WORDS = TYPE_SIZE // 8
count = int(sys.argv[1])
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
gc.disable()


class Model:
    """A class as the interpreter makes it."""


def words(address, number):
    return (ctypes.c_uint64 * number).from_address(address)


def place(values):
    address = malloc(8 * len(values))
    words(address, len(values))[:] = values
    return address


# tp_base, tp_dict.
BASE, DICT = 32, 33
types = malloc(TYPE_SIZE * count)
model = list(words(id(Model), 880 // 8)) + [0] * (WORDS - 880 // 8)
table = words(types, WORDS * count)
for number in range(count):
    model[BASE] = types + TYPE_SIZE * ((number + 1) % count)
    table[number * WORDS:(number + 1) * WORDS] = model
text = list(words(id("x" * 8), 8))
keys = [place(text[:1] + [types + TYPE_SIZE * number] + text[2:]) for number in range(count)]
# A dict whose keys are such objects: its entries follow the indices, each with a hash, a key and a value, or without the
# hash.
names = {"key-%d" % number: None for number in range(count)}
entries = words(words(id(names), 5)[4], 1 << 20)
by_key = {id(name): key for name, key in zip(names, keys)}
rest = len(by_key)
for index in range(1 << 20):
    if entries[index] in by_key:
        entries[index] = by_key[entries[index]]
        rest -= 1
        if not rest:
            break
for number in range(count):
    table[number * WORDS + DICT] = id(names)
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
# Nothing of this may be freed.
os._exit(0)
