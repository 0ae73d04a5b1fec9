"""A mesh as a service of a machine with systemd."""

import os
import pathlib
import signal
import unittest

from machine import wait_for
from story import Story

SYSTEMD = pathlib.Path("/lib/systemd/systemd")
UNITS = pathlib.Path("/usr/lib/systemd/system")
# Parts of systemd that a machine without hardware has.
KEPT = ("systemd-journald", "systemd-journal-flush", "systemd-tmpfiles-setup.", "systemd-user-sessions")


class Systemd(Story, unittest.TestCase):
    name = "systemd"
    program = [SYSTEMD, "--log-target=console", "--show-status=no"]

    def test_a_mesh_is_a_service(self):
        self.story()

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
        wait_for("systemd has started everything",
                 lambda: self.machine.ask("systemctl", "is-system-running")[1].strip() in ("running", "degraded"))
        self.assertEqual("", self.machine.run("systemctl", "--failed", "--plain", "--no-legend"))
        self.assertEqual("active", self.show("ActiveState"))

    def is_told(self):
        wait_for("systemd has its message", lambda: self.show("StatusText") == "every service has answered")
        status = self.machine.run("systemctl", "status", "--no-pager", "tulle")
        for part in ("active (running)", "enabled", "every service has answered"):
            self.assertIn(part, status)
        wait_for("the journal says so", lambda: "every service answers" in self.journal())
        self.assertEqual("", self.machine.run("systemd-analyze", "verify", "/etc/systemd/system/tulle.service"))
        self.assertEqual(self.show("MainPID"), str(self.service()["pid"]))

    def kill_supervisor(self):
        restarts = int(self.show("NRestarts"))
        self.machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "tulle")
        wait_for("systemd has started it again", lambda: int(self.show("NRestarts")) == restarts + 1)

    def ends_otherwise(self):
        """A process of the mesh ends alone, and the mesh by `tulle down` while systemd clears up as well."""
        process = next(pid for pid, process in self.processes().items() if process.words[1:] == ["reviews"])
        os.kill(process, signal.SIGKILL)
        wait_for("the journal has it as a warning", lambda: "ended" in self.journal("--priority=warning"))
        self.assertNotIn("every service answers", self.journal("--priority=warning"))
        self.assertEqual("active", self.show("ActiveState"))
        self.serves()
        self.done("a process that ended alone is back, and the journal warns")
        self.tulle("down")
        self.assertEqual({}, self.processes())
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
