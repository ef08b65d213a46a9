"""Benchmarks of pyperformance, a round of all for each line of stdin.

After a round, stdout has a line `time NAME SECONDS` for each benchmark, in processor time of the whole process, and a
line `end`. Arguments: `NAME[:ARGUMENT]=LOOPS` for each benchmark; a loop is one call of what it measures.
"""

import argparse
import gc
import os
import sys
import time
from pathlib import Path

import pyperf

# The benchmarks lie beside this file, because Scalene counts lines of files there only.
FOLDER = Path(__file__).parent


class Collector:
    """Takes the place of pyperf.Runner, which would start a process for each measurement: keeps the functions."""

    def __init__(self, **_):
        self.argparser = argparse.ArgumentParser()
        self.metadata = {}
        self.functions = []

    def parse_args(self):
        self.args = self.argparser.parse_args()
        return self.args

    def bench_func(self, _name, function, *args, inner_loops=1):
        def run(loops):
            for _ in range(loops):
                function(*args)

        self.functions.append(run)

    def bench_time_func(self, _name, function, *args, inner_loops=1):
        self.functions.append(lambda loops: function(loops, *args))


def load(name):
    """Returns the functions of a benchmark. Each takes the number of loops."""
    name, *arguments = name.split(":")
    program = FOLDER / f"bm_{name}/run_benchmark.py"
    collector = Collector()
    pyperf.Runner = lambda **options: collector
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.parent))
    names = {"__name__": "__main__", "__file__": str(program)}
    exec(compile(program.read_text(), str(program), "exec"), names)
    sys.path.pop(0)
    return collector.functions


def main():
    output = os.fdopen(os.dup(1), "w")
    # For what the benchmarks print.
    sys.stdout = open(os.devnull, "w")
    benchmarks = []
    for argument in sys.argv[1:]:
        name, loops = argument.split("=")
        benchmarks.append((name, int(loops), load(name)))
    print("ready", file=output, flush=True)
    for _ in sys.stdin:
        for name, loops, functions in benchmarks:
            gc.collect()
            begun = time.process_time()
            for function in functions:
                function(loops)
            print("time", name, time.process_time() - begun, file=output)
        print("end", file=output, flush=True)


main()
