"""lost.py COUNT BASE: keeps so many objects, loses as many, and leaves as many that know each other to the collector.
Prints "ready" and echoes what it reads."""
import builtins
import ctypes
import gc
import sys


class Lost(getattr(builtins, sys.argv[2])):
    def __init__(self):
        self.texts = [None] * 1000


class Garbage(Lost):
    def __init__(self):
        super().__init__()
        self.again = [self]


def lose(count):
    for _ in range(count):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(Lost()))


count = int(sys.argv[1])
kept = [Lost() for _ in range(count)]
lose(count)
gc.disable()
for _ in range(count):
    Garbage()
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
