"""Loads an agent into a running JVM of the same user: attach.py PID LIBRARY OPTIONS."""

import os
import pathlib
import signal
import socket
import sys
import time

pid, library, options = sys.argv[1:]
path = f"/tmp/.java_pid{pid}"
if not os.path.exists(path):
    # The JVM opens its socket when it receives SIGQUIT and finds this file.
    request_file = pathlib.Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    request_file.touch()
    os.kill(int(pid), signal.SIGQUIT)
    for _ in range(100):
        if os.path.exists(path):
            break
        time.sleep(0.1)
    request_file.unlink()

with socket.socket(socket.AF_UNIX) as jvm:
    jvm.connect(path)
    # Version 1 of the protocol; "true": the path is absolute.
    jvm.sendall(b"".join(word.encode() + b"\0" for word in ("1", "load", library, "true", options)))
    reply = jvm.makefile().read()
print(reply.strip())
