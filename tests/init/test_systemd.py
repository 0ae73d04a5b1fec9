"""A mesh as a service of a machine with systemd."""

import json
import os
import pathlib
import shutil
import signal
import tempfile
import unittest

from machine import ROOT, wait_for
from story import MANIFEST, OF_HOST, PROGRAMS, Story

SYSTEMD = pathlib.Path("/lib/systemd/systemd")
UNITS = pathlib.Path("/usr/lib/systemd/system")
# Where packages have it.
UNIT = UNITS / "tulle.service"
# Parts of systemd that a machine without hardware has.
KEPT = ("systemd-journald", "systemd-journal-flush", "systemd-tmpfiles-setup.", "systemd-user-sessions")


class Systemd(Story):
    name = "systemd"
    program = [SYSTEMD, "--log-target=console", "--show-status=no"]

    def refusal(self):
        return "" if SYSTEMD.exists() else f"there is no {SYSTEMD}: `make test-init` installs it on Debian"

    def prepare(self):
        """Leaves out the units that the host's packages have for everybody: hardware, logins and other services."""
        units = self.machine.etc / "systemd/system"
        units.mkdir(parents=True)
        names = {file.name for file in UNITS.glob("*.wants/*") if file.suffix != ".target"}
        for name in {*names, "console-getty.service", "getty.target"}:
            if not name.startswith(KEPT):
                (units / name).symlink_to("/dev/null")
        (units / "default.target").symlink_to(UNITS / "multi-user.target")
        # Lines of before a power cut are kept, as on most machines.
        (self.machine.root / "var/log/journal").mkdir()

    def show(self, field):
        return self.machine.run("systemctl", "show", "--value", "--property", field, "tulle").strip()

    def journal(self, *which):
        return self.machine.ask("journalctl", "--no-pager", "--unit", "tulle", *which)[1]

    def has_booted(self):
        """The whole machine waits for the mesh, and for nothing that is not there."""
        self.systemd_has_booted()
        self.assertEqual("active", self.show("ActiveState"))

    def systemd_has_booted(self):
        wait_for("systemd has started everything",
                 lambda: self.machine.ask("systemctl", "is-system-running")[1].strip() in ("running", "degraded"))
        self.assertEqual("", self.machine.run("systemctl", "--failed", "--plain", "--no-legend"))

    def is_told(self, unit="/etc/systemd/system/tulle.service"):
        wait_for("systemd has its message", lambda: self.show("StatusText") == "every service has answered")
        status = self.machine.run("systemctl", "status", "--no-pager", "tulle")
        for part in ("active (running)", "enabled", "every service has answered"):
            self.assertIn(part, status)
        wait_for("the journal says so", lambda: "every service answers" in self.journal())
        self.assertEqual("", self.machine.run("systemd-analyze", "verify", unit))
        self.assertEqual(self.show("MainPID"), str(self.service()["pid"]))

    def has_ended(self):
        self.assertEqual("inactive", self.show("ActiveState"))
        self.assertEqual({}, self.processes())

    def kill_supervisor(self):
        restarts = int(self.show("NRestarts"))
        self.machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "tulle")
        wait_for("systemd has started it again", lambda: int(self.show("NRestarts")) == restarts + 1)

    def ends_otherwise(self):
        """A process of the mesh ends alone, and the mesh by `tulle down` while systemd clears up as well."""
        # The mesh knows that it is ready before systemd is told.
        wait_for("systemd knows that it serves", lambda: self.show("ActiveState") == "active")
        process = next(pid for pid, process in self.processes().items() if process.words[1:] == ["reviews"])
        os.kill(process, signal.SIGKILL)
        wait_for("the journal has it as a warning", lambda: "ended" in self.journal("--priority=warning"))
        self.assertNotIn("every service answers", self.journal("--priority=warning"))
        self.assertEqual("active", self.show("ActiveState"))
        self.serves()
        self.done("a process that ended alone is back, and the journal warns")
        self.tulle("down")
        # systemd has its `clear-up` look for leftovers, too.
        wait_for("every process of the mesh has ended", lambda: not self.processes())
        wait_for("systemd lets it rest", lambda: self.show("ActiveState") == "inactive")
        self.assertEqual("", self.service()["message"])
        self.machine.run("systemctl", "start", "tulle")
        self.serves()
        self.done("ended by `tulle down`, and started again")

    def reload(self):
        self.machine.run("systemctl", "reload", "tulle")

    def reload_fails(self):
        self.assertIn("Job for tulle.service failed", self.machine.fail("systemctl", "reload", "tulle"))
        wait_for("the journal says why", lambda: "required field is missing" in self.journal())
        self.assertEqual("active", self.show("ActiveState"))


class Installed(Systemd, unittest.TestCase):
    def test_a_mesh_is_a_service(self):
        self.story()


class Packaged(Systemd, unittest.TestCase):
    """The unit that packages bring, and their script before removal."""

    programs = ("bookinfo",)

    def test_a_mesh_is_the_service_of_a_package(self):
        self.story()

    def refusal(self):
        package = tempfile.TemporaryDirectory(prefix="tulle-package-")
        self.addCleanup(package.cleanup)
        self.over_usr = pathlib.Path(package.name)
        for directory in ("bin", "lib/systemd/system"):
            (self.over_usr / directory).mkdir(parents=True)
        for name in ("tulle", "tulle-proxy"):
            shutil.copy2(PROGRAMS / name, self.over_usr / "bin")
        shutil.copy2(ROOT / "deploy/systemd/tulle.service", self.over_usr / UNIT.relative_to("/usr"))
        # Open for users other than root, as /usr is.
        self.over_usr.chmod(0o755)
        return super().refusal()

    def steps(self):
        manifests = self.machine.root / MANIFEST[1:]
        kept = manifests.rename(manifests.with_suffix(".later"))
        self.machine.boot()
        self.systemd_has_booted()
        self.assertIn("Assertion failed", self.machine.fail("systemctl", "start", "tulle"))
        self.has_ended()
        self.done("it is not started without manifests, and says so")
        kept.rename(manifests)
        self.starts()
        self.is_told(UNIT)
        shown = self.service()
        for field, value in {"file": str(UNIT), "installed": True, "enabled": True, "changed": False, "active": True}.items():
            self.assertEqual(value, shown[field], shown)
        self.done("enabled as every unit is, it serves")
        self.reloads()
        self.machine.cut_power()
        self.machine.boot()
        self.has_booted()
        self.serves()
        self.done("after a power cut it serves")
        manifests.rename(kept)
        self.machine.run("systemctl", "restart", "tulle")
        self.serves()
        kept.rename(manifests)
        self.done("without the manifests it starts what is stored")
        self.write(OF_HOST, "/etc/tulle/workloads.yaml")
        made = json.loads(self.tulle("token", "create", "node/edge", "-o", "json"))
        refused = self.machine.fail("env", f"TULLE_TOKEN={made['token']}", "tulle", "service", "join", "--controller", made["controller"],
                                    "--ca-fingerprint", made["ca_fingerprint"], "/etc/tulle/workloads.yaml")
        self.assertIn("tulle.service is left as it is", refused)
        self.leaves_nothing()
        self.assertFalse(self.service()["enabled"])
        self.done("`tulle service uninstall` ends it, and leaves the package what is its own")

        self.starts()
        self.remove()
        self.has_ended()
        self.assertFalse(self.service()["enabled"])
        self.done("it ends before its package is removed")

        self.tulle("service", "install", MANIFEST, "--now")
        self.assertEqual("/etc/systemd/system/tulle.service", self.show("FragmentPath"))
        self.assertIn("run '/usr/bin/tulle service uninstall'", self.remove(refused=True))
        self.serves()
        self.leaves_nothing()
        self.done("another one of /etc goes before it, and keeps the package")

    def starts(self):
        self.machine.run("systemctl", "enable", "--now", "tulle")
        self.serves()

    def remove(self, refused=False):
        """What dpkg runs before it removes the files."""
        self.write((ROOT / "scripts/release/prerm").read_text(), "/root/prerm")
        ask = self.machine.fail if refused else self.machine.run
        return ask("sh", "/root/prerm", "remove")
