"""Sends its arguments as one message."""

import sys

import memory_profile

try:
    print(memory_profile.send(" ".join(sys.argv[1:])))
except RuntimeError as error:
    sys.exit(str(error))
