"""The promises of docs/service.md about a mesh that an init system starts, step by step on one machine.

Its only network is `lo`, which systemd itself, or the service `loopback` of OpenRC, brings up at boot: the demo's ingress and the
controller's console listen there. In a mesh with namespaces workloads reach each other through a bridge of their own; in loopback
mode everything is on `lo`.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

from machine import ROOT, Machine, copy, refusal, wait_for

PROGRAMS = pathlib.Path(os.environ.get("TULLE_PROGRAMS", ROOT / "target/debug"))
NAMES = ("tulle", "tulle-proxy", "bookinfo")
RATING = "2099a055-1e21-46ef-825e-9e0de93554ea"
MANIFEST = "/etc/tulle/mesh.yaml"
# Applied by a command, in no file of the service.
ACKNOWLEDGED = """apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: acknowledged}
spec:
  destination: {kind: ServiceAccount, name: ratings}
  sources: [{kind: ServiceAccount, name: details}]
"""
# A host that joins has it.
OF_HOST = """apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: sleeper}
spec: {command: [sleep, '1000']}
"""
# The demo's callers of `ratings`, and those without the gateway.
CALLERS = "    - kind: ServiceAccount\n      name: gateway\n    - kind: ServiceAccount\n      name: reviews\n"
FEWER = "    - kind: ServiceAccount\n      name: reviews\n"


def manifest():
    """The demo, with the programs where a machine has them."""
    text = (ROOT / "demo/mesh.yaml").read_text()
    return text.replace("target/release/bookinfo", "/usr/local/bin/bookinfo").replace("workingDirectory: ..", "workingDirectory: /")


class Story:
    """The steps. A class of tests for each init system says how that one is asked."""

    # Its program, and the name that `tulle service` has for it.
    program: list
    name: str
    over_usr = None
    # Those in /usr/local/bin.
    programs = NAMES

    def setUp(self):
        reason = refusal() or self.refusal()
        missing = [name for name in NAMES if not (PROGRAMS / name).exists()]
        if missing:
            reason = reason or f"it needs {', '.join(missing)} in {PROGRAMS}: `make test-init` builds them"
        if reason:
            # Who asks for this test is told that it has shown nothing: it is never skipped.
            self.fail(f"a machine with {self.name} cannot be booted here: {reason}")
        self.machine = Machine(self.program, [PROGRAMS / name for name in self.programs], self.over_usr)
        self.addCleanup(self.machine.close)
        self.prepare()
        self.write(manifest())
        self.since = time.monotonic()

    def write(self, text, path=MANIFEST):
        file = self.machine.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def done(self, what):
        now = time.monotonic()
        print(f"{self.name}: {what} ({now - self.since:.1f} s)", file=sys.stderr, flush=True)
        self.since = now

    def tulle(self, *words):
        return self.machine.run("tulle", *words)

    def code_of(self, path):
        """The status of an answer through the ingress."""
        return self.machine.ask("curl", "--silent", "--max-time", "10", "--output", "/dev/null", "--write-out", "%{http_code}",
                                f"http://127.0.0.1:8080{path}")[1]

    def answers(self, code, path):
        wait_for(f"{path} is answered {code}", lambda: self.code_of(path) == code)

    def serves(self):
        """Waits until every service answers, and requests pass all but the gateway."""
        wait_for("every service answers", self.is_ready)
        self.answers("200", "/productpage")
        self.answers("200", f"/ratings/{RATING}")

    def is_ready(self, *which):
        code, said = self.machine.ask("tulle", "status", *which, "-o", "json")
        return code == 0 and json.loads(said)["mesh"]["ready"]

    def service(self):
        """The account of `tulle service status`."""
        return json.loads(self.machine.ask("tulle", "service", "status", "-o", "json")[1])

    def processes(self):
        """Processes of the mesh, by their numbers on the host."""
        return {pid: process for pid, process in self.machine.processes().items() if process.name in NAMES}

    def applications(self):
        """The numbers of those that are of the sample application."""
        return {pid for pid, process in self.processes().items() if process.name == "bookinfo"}

    def supervisor(self):
        """The process that the init system has started, if there is one."""
        return next((pid for pid, process in self.processes().items() if process.words[1:3] == ["up", "--service"]), None)

    def traces(self):
        """Everything in which a mesh could have left something, but for manifests, its durable directory and logs of the machine."""
        # `ip` leaves its own /run/netns, as after any namespace.
        files = self.machine.run("find", "/run", "/tmp", "/dev/shm", "/etc", "-path", "/etc/tulle", "-prune", "-o",
                                 "-path", "/run/log", "-prune", "-o", "-iname", "*tulle*", "-print")
        interfaces = json.loads(self.machine.run("ip", "-json", "address"))
        places = [line.split()[4] for line in self.machine.run("cat", "/proc/self/mountinfo").splitlines()]
        return {
            "processes": sorted(process.words for process in self.processes().values()),
            "files": files.split(),
            "control groups": sorted(group for group in self.machine.groups() if "tulle" in group),
            "network namespaces": self.machine.run("ip", "netns", "list").split(),
            "addresses": {i["ifname"]: sorted(a["local"] for a in i["addr_info"]) for i in interfaces},
            "packet filter": self.machine.run("nft", "list", "ruleset"),
            "mounts": [place for place in places if place.startswith("/run/netns/") or "tulle" in place],
        }

    def leaves_nothing(self, *which):
        self.tulle("service", "uninstall", *which)
        self.assertEqual({"processes": [], "files": [], "control groups": [], "network namespaces": [],
                          "addresses": {"lo": ["127.0.0.1", "::1"]}, "packet filter": "", "mounts": []}, self.traces())

    def story(self):
        try:
            self.steps()
        except Exception:
            print(f"{self.machine.console()[-2000:]}\n{self.journal()[-8000:]}", file=sys.stderr)
            raise

    def steps(self):
        self.starts_with_an_image()
        self.is_installed_now()
        self.comes_back_when_its_supervisor_is_killed()
        self.ends_otherwise()
        self.reloads()
        self.upgrades()
        self.survives_a_power_cut()
        self.works_in_loopback_mode()

    def starts_with_an_image(self):
        """Has the host write the service into the file system of a machine that has never run."""
        root = self.machine.root
        words = [self.machine.bin / "tulle", "service", "install", "--init", self.name, "--root", root, root / MANIFEST[1:]]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done)
        self.machine.boot()
        self.has_booted()
        self.serves()
        self.done("enabled in an image, it serves after the first boot of a machine without a network")
        self.is_told()
        shown = self.service()
        for field, value in {"installed": True, "enabled": True, "changed": False, "active": True}.items():
            self.assertEqual(value, shown[field], shown)
        self.assertEqual(MANIFEST, " ".join(shown["manifests"]))
        self.done("the init system and the log say so")
        self.leaves_nothing()
        self.done("uninstalled, it has left nothing")

    def is_installed_now(self):
        self.assertIn("every service answers", self.tulle("service", "install", MANIFEST, "--now"))
        self.serves()
        self.done("installed with --now, it serves")

    def comes_back_when_its_supervisor_is_killed(self):
        self.write(ACKNOWLEDGED, "/root/acknowledged.yaml")
        self.tulle("apply", "/root/acknowledged.yaml")
        supervisor, before = self.supervisor(), set(self.processes())
        self.kill_supervisor()
        wait_for("another supervisor runs", lambda: self.supervisor() not in (None, supervisor))
        self.serves()
        self.assertFalse(before & set(self.processes()), "processes of before")
        self.assertIn("acknowledged", self.tulle("get"))
        self.done("its supervisor was killed, and all are back")

    def reloads(self):
        through_gateway = f"/bookinfo-ratings/ratings/{RATING}"
        self.answers("200", through_gateway)
        self.assertEqual(1, manifest().count(CALLERS))
        self.write(manifest().replace(CALLERS, FEWER))
        self.reload()
        self.answers("403", through_gateway)
        objects, processes = self.tulle("get"), set(self.processes())
        self.write("kind: Mesh\n")
        self.reload_fails()
        self.assertEqual(objects, self.tulle("get"))
        self.assertEqual(processes, set(self.processes()))
        self.answers("403", through_gateway)
        self.serves()
        self.write(manifest().replace(CALLERS, FEWER))
        self.done("a reload applies a changed manifest, and one with a mistake fails and changes nothing")

    def upgrades(self):
        supervisor = self.supervisor()
        for name in NAMES:
            copy(PROGRAMS / name, self.machine.bin)
        self.assertEqual({True}, {process.replaced for process in self.processes().values()})
        applications = self.applications()
        self.tulle("service", "upgrade")

        def old():
            own = {pid: process for pid, process in self.processes().items() if pid not in applications}
            return {pid: process.words[1] for pid, process in own.items() if process.replaced}

        # A proxy's process of before ends when its requests have.
        wait_for("the programs of before are the supervisor's alone", lambda: set(old().values()) == {"up", "janitor"})
        self.assertIn(supervisor, old())
        self.assertEqual(applications, self.applications())
        self.serves()
        self.done("upgraded, all of Tulle's but the supervisor run the programs of now, and applications go on")

    def survives_a_power_cut(self):
        self.machine.cut_power()
        self.machine.boot()
        self.has_booted()
        self.serves()
        self.assertIn("acknowledged", self.tulle("get"))
        self.answers("403", f"/bookinfo-ratings/ratings/{RATING}")
        self.assertEqual({False}, {process.replaced for process in self.processes().values()})
        self.done("after a power cut it serves, with every object that was acknowledged")
        self.leaves_nothing()
        self.done("uninstalled, it has left nothing")

    def works_in_loopback_mode(self):
        """A mesh of another name, and beside it a host that joins it: two services of one machine."""
        self.tulle("service", "install", MANIFEST, "--name", "two", "--loopback", "--now")
        self.answers("200", "/productpage")
        self.answers("200", f"/ratings/{RATING}")
        self.assertEqual("", self.machine.run("ip", "netns", "list"))
        self.done("in loopback mode, with another name, it serves")

        self.write(OF_HOST, "/etc/tulle/workloads.yaml")
        made = json.loads(self.tulle("token", "create", "node/edge", "--name", "two", "-o", "json"))
        self.machine.run("env", f"TULLE_TOKEN={made['token']}", "tulle", "service", "join", "--name", "edge", "--now",
                         "--controller", made["controller"], "--ca-fingerprint", made["ca_fingerprint"], "/etc/tulle/workloads.yaml")
        self.assertIn("sleeper", self.tulle("get", "workloads", "--name", "two"))
        self.assertFalse((self.machine.root / "var/lib/tulle-edge/host-token").exists(), "a spent token")
        self.machine.cut_power()
        self.machine.boot()
        self.answers("200", "/productpage")
        wait_for("the host is back", lambda: self.is_ready("--name", "edge") and self.is_ready("--name", "two"))
        self.done("a host that joined is back with its mesh after a power cut")
        self.assertIn("this host has left its mesh", self.tulle("service", "uninstall", "--name", "edge"))
        self.assertNotIn("sleeper", self.tulle("get", "workloads", "--name", "two"))
        self.leaves_nothing("--name", "two")
        self.done("both uninstalled, they have left nothing")
