"""sessions.py COUNT BASE: a dict of so many sessions, each with orders. Prints "ready" and echoes what it reads."""
import array
import builtins
import sys


Base = getattr(builtins, sys.argv[2])


class Order(Base):
    def __init__(self):
        self.text = "x" * 200 + str(id(self))


class Session(Base):
    def __init__(self):
        self.orders = [Order() for _ in range(3)]


sessions = {number: Session() for number in range(int(sys.argv[1]))}
# As a count of references and the address of a type, of which no field can be read.
numbers = array.array("q", [1, -8, 1, -8])
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
