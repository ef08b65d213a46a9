"""collecting.py LIBRARY COUNT: keeps and loses as many objects, and begins a collection that calls the library's function
twice: while it counts references, and while it separates what is reachable. The function prints "ready" and waits for a byte."""
import ctypes
import gc
import os
import sys

TRAVERSE = 184


class Kept:
    def __init__(self):
        self.texts = [None] * 100


class Lost(Kept):
    pass


class Waiting:
    pass


def add(count):
    kept.extend(Kept() for _ in range(count))
    for _ in range(count):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(Lost()))


count = int(sys.argv[2]) // 2
hold = ctypes.cast(ctypes.CDLL(sys.argv[1]).hold, ctypes.c_void_p).value
gc.disable()
kept = []
add(count)
# The collection examines those before it, and then those behind it.
waiting = Waiting()
add(count)
ctypes.c_void_p.from_address(id(Waiting) + TRAVERSE).value = hold
gc.collect()
os._exit(0)
