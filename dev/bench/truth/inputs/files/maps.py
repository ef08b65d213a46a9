"""Writes a heap dump of a stack in the function `leak` of a program to stdout: maps.py PROGRAM FORM. FORM is the memory map:
`brief` as of tcmalloc, `freebsd`, or `linked` with addresses that were normalized, as jemalloc_pprof writes them."""
import os
import re
import subprocess
import sys

program, form = os.path.abspath(sys.argv[1]), sys.argv[2]
PAGE = 4096


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


leak = next(int(line.split()[0], 16) for line in lines("nm", program) if line.endswith(" leak"))
loads = [line for line in lines("readelf", "-lW", program) if line.split()[:1] == ["LOAD"]]
base = 0 if form == "linked" else 0x555555554000
mappings = []
for load in loads:
    start, size = int(load.split()[2], 16), int(load.split()[5], 16)
    flags = re.search(r" (R?) ?(W?) ?(E?) +0x\w+$", load)
    end = base + (start + size + PAGE - 1) // PAGE * PAGE
    mappings.append((base + start // PAGE * PAGE, end, "x" if "E" in flags.group(0) else "-"))
print("heap profile:     10:      640 [    10:      640] @ heap_v2/524288")
print(f"    10:      640 [    10:      640] @ {base + leak + 6:#x}\n\nMAPPED_LIBRARIES:")
if form == "linked":
    print(f"0-ffffffffffffffff r-xp 00000000 00:00 0 {program}")
for start, end, execute in mappings:
    if form == "brief" and execute == "x":
        print(f"  {start:x}-{end:x}: {program}")
    if form == "freebsd":
        print(f"{start:#x} {end:#x} 1 0 0xfffff80003a5c000 r-{execute} 2 1 0x1000 COW NC vnode {program} NCH -1")
