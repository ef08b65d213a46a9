"""unread.py STRINGS ITEMS: breaks the fields of as many strings, and moves the table of a list of as many items to memory
that no allocator gave out. Prints "ready" and echoes what it reads."""

import ctypes
import mmap
import os
import sys

strings, items = int(sys.argv[1]), int(sys.argv[2])
# PyASCIIObject.state: no character has seven bytes.
STATE, SEVEN_BYTES = 32, 7 << 2
broken = ["broken string %08d" % number for number in range(strings)]
for text in broken:
    ctypes.c_uint32.from_address(id(text) + STATE).value = SEVEN_BYTES
# PyListObject.ob_item.
TABLE = 24
moved = [None] * items
private = mmap.mmap(-1, items * 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
place = ctypes.addressof(ctypes.c_char.from_buffer(private))
table = ctypes.c_uint64.from_address(id(moved) + TABLE)
ctypes.memmove(place, table.value, items * 8)
table.value = place
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
# Nothing of this may be freed.
os._exit(0)
