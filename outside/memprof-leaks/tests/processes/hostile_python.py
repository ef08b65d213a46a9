"""hostile_python.py LIBRARY SEED: hands parts of the interpreter's structures to the function that overwrites them."""
import ctypes
import sys


class User:
    names = {}

    def __init__(self, number):
        self.name = "user-%d" % number


CACHE = {"k%d" % number: ("v%d" % number, [number]) for number in range(5_000)}
USERS = [User(number) for number in range(5_000)]
WORD = 8
POOL = 4 << 10


def words(address, size):
    return (address, size // WORD)


def word(address):
    return ctypes.c_uint64.from_address(address).value


runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
tables = [sys.modules, globals(), CACHE, User.names]
parts = [words(runtime, 656), words(id(User), 880), words(id(type(User)), 408), words(id(dict), 408), words(id(str), 408)]
parts += [words(id(table), 48) for table in tables]
parts += [words(word(id(table) + 32), 1 << 10) for table in tables[:3]]
# Headers of pools, and objects in them.
for value in [*USERS[::50], *CACHE.values(), *CACHE]:
    parts.append(words(id(value) & ~(POOL - 1), POOL))
numbers = (ctypes.c_uint64 * (2 * len(parts)))(*(number for part in parts for number in part))
# The function ends the process, so nothing of the interpreter runs any more.
scribble = ctypes.CDLL(sys.argv[1]).scribble
print("ready", flush=True)
scribble(numbers, *(ctypes.c_uint64(number) for number in (len(parts), 4, int(sys.argv[2]))))
