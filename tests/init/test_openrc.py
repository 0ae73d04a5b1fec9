"""A mesh as a service of a machine with OpenRC."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from machine import ROOT, wait_for
from story import Story

# Parts of a system with OpenRC that Debian's package has not: one that mounts disks, and one that brings up lo.
SERVICES = {"localmount": ":", "loopback": "ip link set lo up"}


class Openrc(Story, unittest.TestCase):
    name = "openrc"
    program = ["/sbin/openrc-init"]

    def test_a_mesh_is_a_service(self):
        self.story()

    def refusal(self):
        fetched = subprocess.run([ROOT / "scripts/fetch-openrc.sh"], capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            return fetched.stderr
        self.openrc = pathlib.Path(fetched.stdout.strip())
        self.over_usr = self.openrc / "usr"
        return ""

    def prepare(self):
        shutil.copytree(self.openrc / "etc", self.machine.etc, symlinks=True, dirs_exist_ok=True)
        # The one tree of control groups that this machine has.
        with (self.machine.etc / "rc.conf").open("a") as settings:
            settings.write("rc_cgroup_mode=unified\nrc_logger=NO\n")
        # Debian's OpenRC also reads what `insserv` has for scripts of other systems, of which there are none.
        (self.machine.etc / "insserv.conf").touch()
        for runlevel in (self.machine.etc / "runlevels").iterdir():
            for service in runlevel.iterdir():
                service.unlink()
        for name, command in SERVICES.items():
            script = self.machine.etc / "init.d" / name
            script.write_text(f"#!/sbin/openrc-run\nstart() {{\n\t{command}\n}}\n")
            script.chmod(0o755)
            (self.machine.etc / "runlevels/boot" / name).symlink_to(f"/etc/init.d/{name}")

    def journal(self):
        log = self.machine.root / "var/log/tulle.log"
        return log.read_text() if log.exists() else ""

    def says(self):
        return self.machine.ask("rc-service", "tulle", "status")[1]

    def has_booted(self):
        wait_for("OpenRC has started it", lambda: "status: started" in self.says())

    def is_told(self):
        wait_for("the log says so", lambda: "every service answers" in self.journal())
        self.assertIn("tulle up --service", self.machine.run("ps", "--format=args", "--pid", self.service()["pid"]))

    def kill_supervisor(self):
        self.machine.run("kill", "-KILL", self.service()["pid"])

    def ends_otherwise(self):
        """OpenRC's own process dies: then OpenRC ends nothing, and says that it has."""
        daemons = [pid for pid, process in self.machine.processes().items() if process.name == "supervise-daemon"]
        self.assertEqual(1, len(daemons))
        os.kill(daemons[0], signal.SIGKILL)
        wait_for("OpenRC sees it", lambda: "status: unsupervised" in self.says())
        self.assertIn("lost sight of the mesh", self.machine.fail("tulle", "service", "uninstall"))
        self.serves()
        self.tulle("down")
        self.assertEqual({}, self.processes())
        self.machine.run("rc-service", "tulle", "start")
        self.serves()
        self.done("without OpenRC's own process it goes on and is not uninstalled; `tulle down` ends it")
        self.machine.run("rc-service", "tulle", "stop")
        self.assertEqual({}, self.processes())
        self.machine.run("ip", "link", "set", "lo", "down")
        self.machine.run("rc-service", "tulle", "start")
        wait_for("its workloads answer", self.are_workloads_ready)
        self.assertEqual("000", self.code_of("/productpage"))
        self.machine.run("ip", "link", "set", "lo", "up")
        self.serves()
        self.done("started before lo is up, it serves from then on")

    def are_workloads_ready(self):
        # Another code than 0: the gateway is not.
        said = self.machine.ask("tulle", "status", "-o", "json")[1]
        services = json.loads(said)["services"] if said.startswith("{") else []
        return len(services) == 5 and all(w["ready"] for s in services for w in s["workloads"])

    def reload(self):
        self.machine.run("rc-service", "tulle", "reload")

    def reload_fails(self):
        self.assertIn("required field is missing", self.machine.fail("rc-service", "tulle", "reload"))
        self.assertIn("status: started", self.says())
