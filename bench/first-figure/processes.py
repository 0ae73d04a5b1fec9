"""Processes under test: started on a CPU, watched through /proc, always torn down."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time

_started = []


def on_cpu(cpu):
    """For `preexec_fn`: runs the child on one CPU, and no longer than this script.

    PR_SET_PDEATHSIG (1) takes it along even if this script is killed with -9; only nginx's workers,
    children of a child, then stay behind.
    """

    def in_child():
        os.sched_setaffinity(0, {cpu})
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    return in_child


def start(name, command, cpu, log, cwd=None):
    """Starts `command` in a session of its own on one CPU; its output goes to the file `log`."""

    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=on_cpu(cpu),
        )
    process.name, process.log = name, log
    _started.append(process)
    return process


def stop(process):
    """Ends the process's whole session: SIGTERM, after two seconds SIGKILL."""
    for sig, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            break
    if process in _started:
        _started.remove(process)


def stop_all():
    for process in reversed(list(_started)):
        stop(process)


atexit.register(stop_all)
for _signal in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(_signal, lambda *_: sys.exit(130))


def family(process):
    """The process and its descendants (nginx has a worker)."""
    found, todo = [], [process.pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    todo += [int(child) for child in children.read().split()]
        except FileNotFoundError:
            pass
    return found


def cpu_nanoseconds(process):
    """Time on a CPU of every thread so far, from the scheduler."""
    total = 0
    for pid in family(process):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as stat:
                total += int(stat.read().split()[0])
    return total


def memory_mib(process):
    """{"now", "peak", "anonymous"}: resident memory, the processes of a family added up.

    Anonymous is the part of `now` that is the process's own; the rest are pages of its files.
    """
    fields = {"VmRSS:": "now", "VmHWM:": "peak", "RssAnon:": "anonymous"}
    mib = dict.fromkeys(fields.values(), 0.0)
    for pid in family(process):
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                key, *values = line.split()
                if key in fields:
                    mib[fields[key]] += int(values[0]) / 1024
    return mib


def tail(process):
    """The end of its log, for an error message."""
    with open(process.log, "rb") as log:
        return log.read()[-3000:].decode(errors="replace")
