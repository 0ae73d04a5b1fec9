"""Directory, certificates, ports and processes of one run; all of them end with it."""

import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

# Longest wait for something that must happen; a limit against hanging, not a measurement.
PATIENCE = 30
TRUST_DOMAIN = "tulle.local"
CLIENT = "productpage"
SERVER = "ratings"
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def spiffe(name):
    return f"spiffe://{TRUST_DOMAIN}/svc/{name}"


def wait_for(what, condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not happen within {patience} s")
        time.sleep(0.02)
    return found


# Below the ports that the kernel gives to connections, one of which could take a port before its program listens.
PORTS = range(20000, 30000)
given = itertools.count(os.getpid() * 37 % len(PORTS))


def free_port():
    """A port where nobody listens. It is given once in this run, so several peers may start at the same time."""
    for _ in PORTS:
        port = PORTS[next(given) % len(PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError(f"ports {PORTS.start} to {PORTS.stop - 1} are all taken")


def connect(port, timeout=PATIENCE):
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def listens(port):
    """Seen from outside: a connection would be taken for a client's."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table]
    return any(row[3] == "0A" and row[1].endswith(f":{port:04X}") for row in rows)


def read_to_end(connection, limit=4 << 20):
    """Returns the bytes until the other side ends, and whether it ended in time."""
    received = bytearray()
    try:
        while len(received) < limit:
            more = connection.recv(65536)
            if not more:
                return bytes(received), True
            received += more
    except TimeoutError:
        return bytes(received), False
    except OSError:
        return bytes(received), True
    return bytes(received), True


class Process:
    """A program in the foreground, with its children: a proxy may be a master and its workers."""

    def __init__(self, name, command, directory, **options):
        self.name = name
        self.log = pathlib.Path(directory) / f"{name}.log"
        with open(self.log, "wb") as output:
            self.child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )

    def check(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.child.returncode}: {self.tail()}")
        return True

    def tail(self):
        return self.log.read_text(errors="replace")[-1500:]

    def await_port(self, port):
        wait_for(f"{self.name} listens", lambda: self.check() and listens(port))

    def family(self):
        """Its process id and those of its children."""
        pid = self.child.pid
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return [pid, *map(int, children.split())]

    def cpu(self):
        """CPU-seconds so far, user and system."""
        total = 0
        for pid in self.family():
            try:
                text = pathlib.Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                continue
            fields = text.rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def rss(self):
        """Resident bytes."""
        total = 0
        for pid in self.family():
            try:
                total += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
            except OSError:
                continue
        return total

    def end(self):
        for what in (signal.SIGTERM, signal.SIGKILL):
            if self.child.poll() is None:
                try:
                    os.killpg(self.child.pid, what)
                    self.child.wait(3)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
        self.child.wait()


class Authority:
    """A root of its own; issues what it is told, right or wrong."""

    def __init__(self, directory, name="test root"):
        self.directory = directory
        directory.mkdir(parents=True)
        self.certificate, self.key = directory / "ca.crt", directory / "ca.key"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key)
        openssl(
            "req", "-x509", "-new", "-key", self.key, "-out", self.certificate, "-days", "2",
            "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def issue(self, file, common_name, names, **how):
        return issue(self.certificate, self.key, self.directory / file, common_name, names, **how)


def issue(
    issuer,
    issuer_key,
    stem,
    common_name,
    names,
    usage="serverAuth,clientAuth",
    begin=-60,
    end=86400,
    is_authority=False,
):
    """Makes STEM.crt and STEM.key; `names` as OpenSSL writes them: URI:…, DNS:….

    Times are seconds from now. `openssl ca` is the one command of all versions that takes them.
    """
    key, certificate, request = (pathlib.Path(f"{stem}.{kind}") for kind in ("key", "crt", "csr"))
    work = pathlib.Path(f"{stem}.ca")
    work.mkdir()
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    (work / "index.txt").touch()
    raw = next((name for name in names if name.startswith("DER:")), None)
    entries = "\n".join(
        f"{kind}.{at} = {value}"
        for at, (kind, _, value) in enumerate(name.partition(":") for name in names)
    )
    constraint = "critical,CA:TRUE" if is_authority else "critical,CA:FALSE"
    usages = "digitalSignature,keyCertSign" if is_authority else "digitalSignature"
    config = work / "openssl.cnf"
    config.write_text(
        f"""[req]
prompt = no
distinguished_name = dn
[dn]
CN = {common_name}
[ca]
default_ca = own
[own]
database = {work}/index.txt
new_certs_dir = {work}
rand_serial = yes
default_md = sha256
policy = any
email_in_dn = no
[any]
commonName = supplied
[leaf]
basicConstraints = {constraint}
keyUsage = critical,{usages}
{f"extendedKeyUsage = {usage}" if usage else ""}
{f"subjectAltName = {raw or '@names'}" if names else ""}
[names]
{entries}
"""
    )
    openssl("req", "-new", "-key", key, "-config", config, "-out", request)
    at = lambda seconds: time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + seconds))
    openssl(
        "ca", "-batch", "-notext", "-config", config, "-extensions", "leaf", "-cert", issuer,
        "-keyfile", issuer_key, "-startdate", at(begin), "-enddate", at(end), "-in", request,
        "-out", certificate,
    )  # fmt: skip
    return certificate, key


def openssl(*words):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr}")


class Lab:
    """Where everything of a run is; use with `with`."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="tulle-conformance-"))
        self.running = []
        self.count = 0
        self.authority = Authority(self.directory / "pki")
        self.files = {
            name: self.authority.issue(name, name, [f"URI:{spiffe(name)}"])
            for name in (CLIENT, SERVER)
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    def place(self, name):
        """A new directory."""
        self.count += 1
        path = self.directory / f"{self.count}-{name}"
        path.mkdir()
        return path

    def start(self, name, command, directory, port=None, **options):
        process = Process(name, command, directory, **options)
        self.running.append(process)
        if port:
            process.await_port(port)
        return process

    def add(self, thing):
        """Something else that is ended by its `end`."""
        self.running.append(thing)
        return thing

    def end_all(self):
        while self.running:
            self.running.pop().end()
