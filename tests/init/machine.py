"""A machine of namespaces: its own processes, mounts, network, name and control groups, with a real init system as PID 1.

Its /etc, /var and /usr/local are directories of the test, and outlive a power cut. Its programs are the host's, read-only
(boot.sh). The only network interface it ever has is its own `lo`.
"""

import atexit
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import typing

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
# Longest wait for something that must happen; a limit against hanging, not a measurement.
PATIENCE = 120
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Accounts, libraries and alternatives as the host has them, whose programs run in there.
OF_THE_HOST = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "login.defs")
NEEDED = ("unshare", "nsenter", "setpriv", "mount", "pivot_root", "ip", "nft", "curl")


def wait_for(what, condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {patience} s")
        time.sleep(0.1)
    return found


def refusal():
    """The reason why no machine can be booted here, if there is one."""
    if os.geteuid() != 0:
        return "it needs root: it makes namespaces and control groups"
    missing = [tool for tool in NEEDED if not shutil.which(tool, path=PATH)]
    if missing:
        return f"it needs {', '.join(missing)}: `make test-init` installs them on Debian"
    if not pathlib.Path("/bin").is_symlink():
        return "it needs a system whose /bin is a link to /usr/bin"
    if not cgroups() or not os.access(cgroups(), os.W_OK):
        return "it needs a mounted cgroup2 file system that may be written"
    return ""


def cgroups():
    """Where the tree of control groups of version 2 is, if anywhere."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return pathlib.Path(place)
    return None


def copy(program, directory):
    """Puts a program in a directory as `install` does: a file of its own, while the one before may be running."""
    new = directory / f".{program.name}"
    shutil.copy2(program, new)
    new.rename(directory / program.name)


class Process(typing.NamedTuple):
    """A process of a machine: its command line, the name of its program, and whether that file was replaced since."""

    words: list
    name: str
    replaced: bool


class Machine:
    """One that is off at first."""

    def __init__(self, init, programs, over_usr=None):
        self.init = [*map(str, init)]
        self.over_usr = over_usr
        self.process = self.pid = None
        self.temporary = tempfile.TemporaryDirectory(prefix="tulle-init-")
        self.root = pathlib.Path(self.temporary.name)
        self.bin = self.root / "usr/local/bin"
        for directory in (self.bin, self.root / "etc", self.root / "var/log", self.root / "root"):
            directory.mkdir(parents=True)
        # Open for users other than root, as /etc and /usr are.
        self.root.chmod(0o755)
        self.etc = self.root / "etc"
        for name in OF_THE_HOST:
            self._copy_of_host(name)
        for name, text in {"hostname": "machine", "hosts": "127.0.0.1 localhost", "machine-id": "0123456789abcdef" * 2,
                           "fstab": ""}.items():
            (self.etc / name).write_text(f"{text}\n")
        (self.root / "var/run").symlink_to("/run")
        for program in programs:
            copy(program, self.bin)
        self.cgroup = cgroups() / self.root.name
        self.cgroup.mkdir()
        atexit.register(self.close)

    def _copy_of_host(self, name):
        source = pathlib.Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, self.etc / name, symlinks=True)
        elif source.exists():
            shutil.copy2(source, self.etc / name)

    def boot(self):
        """Turns it on, and returns when its init system runs."""
        # Where commands of operators are.
        (self.cgroup / "visitors").mkdir()
        # Only what will be PID 1 is in the machine's control group: the root of a tree may have no process of its own.
        into = 'echo 0 >"$0"/cgroup.procs && exec unshare --cgroup --mount "$@"'
        # It ends with the test, however that ends.
        command = ["setpriv", "--pdeathsig=KILL", "unshare", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc", "sh", "-c", into, self.cgroup,
                   HERE / "boot.sh", self.root, self.over_usr or "", *self.init]
        with (self.root / "console").open("a") as console:
            self.process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        wait_for(f"{self.init[0]} runs", self._is_init)

    def _is_init(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the machine did not boot: {self.console()}")
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.pid = next(map(int, children), None)
        name = self.pid and pathlib.Path(f"/proc/{self.pid}/comm").read_text().strip()
        return name == pathlib.Path(self.init[0]).name

    def console(self):
        return (self.root / "console").read_text(errors="replace")

    def ask(self, *command):
        """Runs a command in it, as an operator does who has logged in; its code, and all that it said."""
        given = [f"PATH={PATH}", "HOME=/root", "LC_ALL=C"]
        into = 'echo 0 >"$0"/cgroup.procs && exec nsenter "$@"'
        words = ["sh", "-c", into, self.cgroup / "visitors", f"--target={self.pid}", "--mount", "--pid", "--uts", "--ipc", "--net",
                 "--cgroup", "--wd=/", "--", "env", "-i", *given, *command]
        done = subprocess.run([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=300, check=False)
        return done.returncode, done.stdout

    def run(self, *command):
        """Runs one that succeeds."""
        code, said = self.ask(*command)
        if code != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: {code}: {said}")
        return said

    def fail(self, *command):
        """Runs one that does not."""
        code, said = self.ask(*command)
        if code == 0:
            raise AssertionError(f"{' '.join(map(str, command))} succeeds: {said}")
        return said


    def pids(self):
        """All its processes, by their numbers on the host."""
        found = []
        for procs in self.cgroup.rglob("cgroup.procs"):
            try:
                found += map(int, procs.read_text().split())
            except OSError:
                # This control group has just been removed.
                continue
        return found

    def processes(self):
        """The same, each with what it runs."""
        found = {}
        for pid in self.pids():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                file = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                # It has just ended.
                continue
            program = file.removesuffix(" (deleted)")
            found[pid] = Process(words, pathlib.PurePath(program).name, file != program)
        return found

    def groups(self):
        """Its control groups."""
        return {str(d.relative_to(self.cgroup)) for d in self.cgroup.rglob("*") if d.is_dir()}

    def cut_power(self):
        """Ends everything in it at once. What its kernel has had written is there at the next boot; /run is not."""
        if self.process is None:
            return
        if self.pid and self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        self.process = self.pid = None
        wait_for("every process of the machine has ended", lambda: not self.pids())
        for directory in sorted(self.groups(), reverse=True):
            (self.cgroup / directory).rmdir()

    def close(self):
        """Leaves nothing of it on the host."""
        atexit.unregister(self.close)
        self.cut_power()
        self.cgroup.rmdir()
        self.temporary.cleanup()
