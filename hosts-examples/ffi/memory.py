"""Sends a message through the library in the first argument."""

import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])
library.memory_profile_send.restype = ctypes.c_void_p
library.memory_profile_free.argtypes = [ctypes.c_void_p]

reply = library.memory_profile_send(" ".join(sys.argv[2:]).encode())
print(ctypes.string_at(reply).decode())
library.memory_profile_free(reply)
