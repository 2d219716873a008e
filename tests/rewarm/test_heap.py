"""The agent's heap: shared by its threads, and given back where nothing is in it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import re, sys, threading
from rewarm.heap import share_one_heap

if sys.argv[1] == "shared":
    share_one_heap()
all_there, leave = threading.Barrier(5), threading.Event()

def work():
    kept = [bytes(100_000) for _ in range(50)]
    all_there.wait()
    leave.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
all_there.wait()
# An arena is a mapping of 64 MiB, written up to where it is used and closed to everybody from there on.
ranges = [line.split() for line in open("/proc/self/maps")]
sizes = [tuple(int(end, 16) for end in one[0].split("-")) for one in ranges]
arenas = [
    begin
    for (begin, end), one, (_, after), then in zip(sizes, ranges, sizes[1:], ranges[1:])
    if begin % 2**26 == 0 and after - begin == 2**26 and one[1] == "rw-p" and then[1] == "---p"
]
print(len(arenas))
leave.set()
"""


def arenas(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, text=True).stdout)


def test_threads_have_no_heap_of_their_own() -> None:
    assert arenas("shared") == 0
    assert arenas("own") > 0, "what it would be like otherwise, or this test sees nothing"


BUSY = """
from rewarm.heap import give_back_unused
from worker.procs import own_bytes
import os

moment = [bytearray(2_000) for _ in range(20_000)]  # too small for a mapping of its own each
stays = bytearray(2_000)  # after them: the heap's end cannot be given back
del moment
before = own_bytes(os.getpid())
give_back_unused()
print(before - own_bytes(os.getpid()))
"""


def test_what_a_busy_moment_took_goes_back_although_something_small_lies_behind_it() -> None:
    told = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, check=True, text=True).stdout
    assert int(told) > 30_000_000
