"""Keeps objects to which CPython has pointers in odd places, also in threads and subinterpreters, leaves garbage to the
collector, and loses LOST blocks and objects. Prints "ready" and echoes what it reads."""
import asyncio
import collections
import contextvars
import ctypes
import functools
import gc
import itertools
import sqlite3
import struct
import sys
import threading
import weakref
import xml.etree.ElementTree

COUNT = 300
LOST = 57


class Plain:
    def __init__(self, number):
        self.list = [str(number)]
        self.text = "text-%d" % number


class Slots:
    __slots__ = ("list", "__weakref__")

    def __init__(self, number):
        self.list = [str(number)]


class Lost:
    __slots__ = ("list", "text")


class Text(str):
    pass


class Pair(tuple):
    pass


def generate(number):
    local = ["local-%d" % number]
    yield local
    yield from itertools.repeat([local])


def enclose(number):
    enclosed = ["enclosed-%d" % number]
    return lambda argument=[number]: (enclosed, argument)


def fail(depth):
    local = ["failed-%d" % depth]
    if depth > 0:
        fail(depth - 1)
    raise ValueError(local)


def failure(depth):
    try:
        fail(depth)
    except ValueError as error:
        return error


async def wait(number):
    local = ["waits-%d" % number]
    await asyncio.sleep(1000)
    return local


def with_attributes(thing, number):
    """Adds attributes in an order of its own, and takes some away."""
    names = ["name%d" % (number * factor % 31) for factor in (3, 5, 7, 11, 13)]
    for name in names:
        setattr(thing, name, ["value-%d" % number])
    if number % 3 == 0:
        thing.__dict__["own-%d" % number] = [number]
    if number % 5 == 0:
        delattr(thing, names[0])
    return thing


def keep_all(kept):
    classes = [type("Class%d" % number, (Plain,), {"data": [str(number)]}) for number in range(30)]
    known, seen = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()
    variable, loop = contextvars.ContextVar("variable"), asyncio.new_event_loop()
    cached = functools.lru_cache(maxsize=None)(lambda number: [str(number)])
    tree, database = xml.etree.ElementTree.Element("tree"), sqlite3.connect(":memory:")
    kept += [classes, known, seen, variable, loop, cached, tree, database]
    for number in range(COUNT):
        plain, generator = Plain(number), generate(number)
        known[number], seen[plain] = plain, ["seen-%d" % number]
        variable.set(["variable-%d" % number])
        cached(number)
        xml.etree.ElementTree.SubElement(tree, "child", {"name": "tree-%d" % number}).text = "in-%d" % number
        for _ in range(number % 3):
            next(generator)
        kept += [plain, Slots(number), generator, enclose(number), classes[number % 30](number), failure(number % 4)]
        kept += [with_attributes(kind, number) for kind in (Plain(number), Text("t%d" % number), Pair(["p%d" % number] * (number % 5)))]
        kept += [functools.partial(enclose, [number]), collections.deque([[number]] * (number % 200)), collections.OrderedDict(a=[number])]
        kept += [{"s%d" % key for key in range(number % 20)}, {str(key): [key] for key in range(number % 40)}, frozenset([str(number)])]
        kept += [contextvars.copy_context(), struct.Struct("<%dI" % (number % 50 + 1)), weakref.ref(plain, enclose(number)), sys.intern("kept-%d" % number)]
        kept += [iter([[number]]), map(str, [[number]]), itertools.tee(iter([[number]])), ctypes.py_object(["ctypes-%d" % number])]
        kept += [database.execute("select ?", (str(number),)), memoryview(bytearray(number + 1)), loop.create_task(wait(number))]
    loop.run_until_complete(asyncio.sleep(0.01))
    # Objects of lists of free ones, which are used again.
    for make in (float, str, lambda number: [number], lambda number: (number,), lambda number: {number: number}):
        [make(number) for number in range(500)]


def start_thread(number):
    started = threading.Event()

    def run():
        local, generator = [Plain(key) for key in range(50)], generate(number)
        next(generator)

        def descend(depth):
            own = ["depth-%d" % depth]
            if depth == 0:
                started.set()
                threading.Event().wait()
            return descend(depth - 1), own

        return descend(40 * number), local

    threading.Thread(target=run, daemon=True).start()
    started.wait()


SUBINTERPRETER = """
class Sub:
    def __init__(self, number):
        self.list = [str(number)]
def generate(number):
    local = [str(number)]
    yield local
subs = {str(number): Sub(number) for number in range(500)}
generators = [generate(number) for number in range(100)]
started = [next(generator) for generator in generators]
texts = {str(number) for number in range(1000)}
"""


def start_interpreters():
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters

        run = interpreters.exec
    else:
        import _xxsubinterpreters as interpreters

        run = interpreters.run_string
    made = [interpreters.create() for _ in range(2)]
    for interpreter in made:
        assert run(interpreter, SUBINTERPRETER) is None
    return made


def leave_garbage():
    for number in range(100):
        one, generator = Plain(number), generate(number)
        next(generator)
        kind = type("Garbage", (Plain,), {"data": [str(number)]})
        kind.own, error = kind, failure(2)
        error.one = error
        one.all = [one, generator, kind, kind(number), error, enclose(number), {one}, collections.deque([one])]
        generator = functools.lru_cache()(lambda given: given)
        generator(one)
        one.cached = generator


def lose():
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    small = ctypes.pythonapi.PyMem_Malloc
    small.restype, small.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    for _ in range(LOST):
        ctypes.memset(allocate(3333), 1, 3333)
        ctypes.memset(small(350), 1, 350)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(Lost()))


kept = []
keep_all(kept)
for number in range(4):
    start_thread(number)
interpreters = start_interpreters()
gc.collect()
gc.freeze()
gc.disable()
leave_garbage()
lose()
# Other words come to where those were that led to what is lost.
again = [[number] for number in range(5000)]
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
