"""One test as a tree of processes: its CPU time with all descendants, what it waited for, what it left.

A keeper process stands between this program and each test. Descendants that lose their parent fall to the
keeper (a child subreaper), so their CPU time is counted and none outlives the test unseen.
"""

import ctypes
import json
import os
import resource
import signal
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Processes that a test has told to end may take a moment to be gone.
GRACE_SECONDS = 2.0

libc = ctypes.CDLL(None, use_errno=True)


class Running:
    """A test that runs. `pidfd` is readable once it is over."""

    def __init__(self, job, log, waits, stdin="null", ignore_interrupt=False):
        self.job = job
        self.log = log
        self.waits = waits
        self.begun = time.monotonic()
        report, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(report)
                code = _keep(job, log, waits, theirs, stdin, ignore_interrupt)
            finally:
                os._exit(code)
        os.close(theirs)
        self.report = report
        self.pidfd = os.pidfd_open(self.pid)

    def end(self):
        """Ends the test with all its processes; its result then says that it was cut off."""
        os.kill(self.pid, signal.SIGTERM)

    def result(self):
        """Waits for the keeper and returns its report."""
        with os.fdopen(self.report) as pipe:
            text = pipe.read()
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        found = json.loads(text) if text else {"code": -1, "wall": time.monotonic() - self.begun, "cpu": 0.0}
        found["waits"] = read_waits(self.waits)
        return found


def read_waits(path):
    """Seconds by what was waited for, as test helpers have written them down."""
    waits = {}
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                seconds, _, what = line.rstrip("\n").partition(" ")
                waits[what] = round(waits.get(what, 0.0) + float(seconds), 2)
    except FileNotFoundError:
        pass
    return waits


def _keep(job, log, waits, report, stdin, ignore_interrupt):
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.setsid()
    cut = []
    signal.signal(signal.SIGTERM, lambda *_: cut.append(True) or _kill_all())
    # Ctrl-C is for the program that started this one; it then sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begun = time.monotonic()
    test = os.fork()
    if test == 0:
        _become(job, log, waits, stdin, ignore_interrupt)
    code = None
    while code is None:
        pid, status = os.wait()
        if pid == test:
            code = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begun
    left = _reap_rest()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "code": code,
        "cut": bool(cut),
        "wall": round(wall, 3),
        "cpu": round(used.ru_utime + used.ru_stime, 3),
        "left": left,
    }
    os.write(report, json.dumps(found).encode())
    return 0


def _become(job, log, waits, stdin, ignore_interrupt):
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_interrupt else signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if stdin == "closed":
            os.close(0)
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job.directory)
        environment = {**os.environ, **job.environment, "TULLE_TEST_WAITS": waits}
        os.execvpe(job.command[0], job.command, environment)
    except OSError as why:
        os.write(2, f"{job.command[0]}: {why}\n".encode())
    finally:
        os._exit(127)


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _descendants(pid):
    found = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


def _kill_all():
    for pid in _descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _reap_rest():
    """Reaps what the test left; returns the command lines of what did not end by itself."""
    left = {}
    end = time.monotonic() + GRACE_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return sorted(left.values())
        if pid:
            continue
        if time.monotonic() > end:
            for pid in _descendants(os.getpid()):
                left.setdefault(pid, _command_line(pid))
            _kill_all()
        time.sleep(0.01)


def _command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
