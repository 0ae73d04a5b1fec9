"""The runner of tests, tried on real processes."""

import contextlib
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import expected
import page
import promises
import run
import skips
import times
from cargo_tests import ROOT, Job


def job(script, name="t"):
    return Job(name, ["bash", "-c", script], str(ROOT), {})


def outcomes(jobs, **how):
    return {outcome.job.name: outcome for outcome in run.run(jobs, **how)}


class Processes(unittest.TestCase):
    def only(self, script, **how):
        return outcomes([job(script)], **how)["t"]

    def test_success_and_failure_are_told_apart(self):
        self.assertEqual(self.only("exit 0").faults, [])
        self.assertEqual(self.only("echo why; exit 3").faults, ["exit code 3"])
        self.assertEqual(self.only("echo why; exit 3").log, "why\n")
        self.assertEqual(outcomes([Job("t", ["/nowhere"], str(ROOT), {})])["t"].faults, ["exit code 127"])

    def test_what_is_left_behind_is_a_fault_and_ended(self):
        found = self.only("setsid sleep 987654 & sleep 0.2")
        self.assertEqual(found.faults, ["it left processes behind: sleep 987654"])
        left = [entry for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline") if b"987654" in _read(entry)]
        self.assertEqual(left, [])

    def test_cpu_time_counts_descendants_that_nobody_waited_for(self):
        found = self.only("(setsid bash -c 'for ((i = 0; i < 300000; i++)); do :; done' &) ; sleep 0.1")
        self.assertGreater(found.cpu, 0.2)

    def test_a_test_that_hangs_is_ended(self):
        found = self.only("sleep 1000 & sleep 1000", limit=0.5)
        self.assertIn("it was ended after", found.faults[0])

    def test_standard_input_and_the_interrupt_are_as_asked(self):
        closed = "[[ ! -e /proc/self/fd/0 ]]"
        ignored = "trap - INT; grep -q 'SigIgn:.*[2367abef]$' /proc/self/status"
        self.assertNotEqual(self.only(f"{closed} || {ignored}").faults, [])
        self.assertEqual(self.only(closed, stdin="closed").faults, [])
        self.assertEqual(self.only(ignored, ignore_interrupt=True).faults, [])

    def test_a_list_of_tests_that_must_fail_is_held_to_both_ways(self):
        jobs = [job("exit 1", "a::fails"), job("exit 0", "a::passes"), job("exit 1", "b::one"), job("exit 1", "c::new")]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("# why\n\na::fails  ptrace\na::passes  ptrace\nb::*  netlink\nd::gone  netlink\nc::gone  netlink\n")
            file.flush()
            listed = expected.Expected([pathlib.Path(file.name)])
            judged = {outcome.job.name: outcome.faults for outcome in listed.judge(run.run(jobs))}
        self.assertEqual(judged["a::fails"], [])
        self.assertIn("it passes, but", judged["a::passes"][0])
        self.assertIn("ptrace", judged["a::passes"][0])
        self.assertEqual(judged["b::one"], [])
        self.assertEqual(judged["c::new"], ["exit code 1"])
        self.assertEqual(sorted(outcome.job.name for outcome in listed.failed), ["a::fails", "b::one"])
        # Of a program that has not run nobody knows.
        self.assertEqual(listed.unmet(jobs), ["c::gone"])

    def test_a_line_without_a_reason_is_no_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("a::fails\n")
            file.flush()
            with self.assertRaises(SystemExit) as end:
                expected.Expected([pathlib.Path(file.name)])
        self.assertIn(":1: a line is a test", str(end.exception))

    def test_a_test_that_says_that_it_is_skipped_has_not_passed(self):
        jobs = [job("echo 'running 1 test'; echo 'skipped: no qemu'; echo 'test a ... ok'", "a::whole"),
                job("echo 'test b ... skipped: no qemu'", "b::one_processor"), job("echo 'it is skipped: no'", "c::ran"),
                job("echo 'skipped in part: no systemd'", "d::part"), job("echo 'skipped: no Go'; exit 1", "e::failed")]
        found = outcomes(jobs)
        self.assertEqual([found[one.name].skipped for one in jobs], ["no qemu", "no qemu", None, None, None])
        self.assertEqual(found["d::part"].left_out, "no systemd")
        self.assertEqual(found["e::failed"].faults, ["exit code 1"])
        rows = [found[one.name].row() for one in jobs]
        self.assertEqual(skips.summary(rows), ["skipped 2: no qemu (a::whole, b::one_processor)",
                                               "skipped in part 1: no systemd (d::part)"])
        self.assertEqual(skips.count(rows), "3, 2 skipped")

    def test_a_skip_that_no_list_allows_is_a_failure(self):
        jobs = [job("echo 'skipped: why'", "a::may"), job("true", "a::ran"), job("echo 'skipped: why'", "b::may_not"),
                job("echo 'skipped in part: why'", "b::not_in_part"), job("exit 1", "b::fails")]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("a::may  it may\na::ran  it may, too\nb::gone  it may\n")
            file.flush()
            allowed = skips.Allowed([pathlib.Path(file.name)])
            judged = {outcome.job.name: outcome for outcome in allowed.judge(run.run(jobs))}
        self.assertEqual([judged[name].faults for name in ("a::may", "a::ran")], [[], []])
        self.assertEqual(judged["a::may"].skipped, "why")
        for name in ("b::may_not", "b::not_in_part"):
            self.assertIn("does not say that it may be: why", judged[name].faults[0])
        self.assertEqual(judged["b::fails"].faults, ["exit code 1"])
        self.assertEqual(allowed.unmet(jobs), ["b::gone"])

    def test_a_skipped_test_that_must_fail_here_has_done_neither(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("a::fails  qemu\n")
            file.flush()
            listed = expected.Expected([pathlib.Path(file.name)])
            one = list(listed.judge(run.run([job("echo 'skipped: no root'", "a::fails")])))[0]
        self.assertEqual((one.faults, one.skipped, listed.failed), ([], "no root", []))

    def test_waits_are_summed_by_what_was_waited_for(self):
        found = self.only('printf "0.5 a port\\n1.25 a pod\\n0.25 a port\\n" >"$TULLE_TEST_WAITS"')
        self.assertEqual(found.waits, {"a port": 0.75, "a pod": 1.25})

    def test_several_run_at_once_and_each_is_reported(self):
        jobs = [job("sleep 0.3", str(number)) for number in range(8)]
        self.assertEqual(len(outcomes(jobs, at_once=8)), 8)


class Accounts(unittest.TestCase):
    def test_builds_are_read_from_output(self):
        builds = times.Builds()
        for line in """\
   Compiling serde v1.0.229
   Compiling tulle-cli v0.1.0 (/src/tulle/crates/cli)
    Finished `dev` profile [unoptimized + debuginfo] target(s) in 5m 47s
    Finished `dev` profile [unoptimized + debuginfo] target(s) in 0.31s
    Checking tulle-tls v0.1.0 (/src/tulle/crates/tls)
    Finished `dev` profile [unoptimized + debuginfo] target(s) in 3.20s
built Kubernetes in 278 s""".splitlines():
            builds.line(line)
        self.assertEqual(builds.rows, [
            {"what": "cargo, dev", "units": 3, "seconds": 350.2},
            {"what": "Kubernetes", "units": 1, "seconds": 278.0},
        ])
        self.assertEqual(builds.libraries, 1)
        self.assertTrue(builds.is_cold())

    def test_a_page_shows_results_times_and_promises(self):
        skipped = {"name": "tests/kube/helm", "wall": 0.1, "cpu": 0.1, "waits": {}, "skipped": "there is no Go"}
        account = {"target": "test-kube-all", "kind": "warm", "when": "", "passed": False, "wall": 100.0, "cpu": 70.0,
                   "builds": [{"what": "Kubernetes", "units": 1, "seconds": 278.0}],
                   "tests": [{"name": "tests/kube/upgrade", "wall": 68.0, "cpu": 20.0, "waits": {"a pod": 9.0}}, skipped]}
        self.assertIn("warm, 1, 1 skipped", page.summary([account]))
        text = page.results([account])
        for part in ("**failed**", "1.7 min", "Kubernetes 4.6 min", "tests/kube/upgrade | 68.0 | 20.0 | a pod 9.0",
                     promises.OF["tests/kube/upgrade"][0], "skipped 1: there is no Go (tests/kube/helm)"):
            self.assertIn(part, text)
        self.assertNotIn("tests/kube/helm |", text)

    def test_every_promise_names_a_page_and_a_test_that_exist(self):
        for name, (_, place) in promises.OF.items():
            self.assertTrue((ROOT / place).exists(), f"{name}: {place}")
            if name.startswith("tests/kube/"):
                found = list((ROOT / "tests/kube/tests").glob(name.rsplit("/", 1)[1] + "*"))
                self.assertTrue(found, f"{name}: there is no such test")
            else:
                self.assertIn(f"\n{name}:", (ROOT / "Makefile").read_text(), f"{name}: there is no such target")

    def test_every_long_test_of_a_cluster_says_what_it_guards(self):
        smoke = set(promises.smoke())
        for file in (ROOT / "tests/kube/tests").iterdir():
            if file.stem not in smoke:
                self.assertIn(f"tests/kube/{file.stem}", promises.OF)

    def test_no_test_sleeps_without_saying_why(self):
        # The helpers themselves, and a process that has nothing to do.
        may = {"tests/local/src/waits.rs", "tests/kube/src/lib.rs", "crates/redirect/tests/namespaces/roles.rs"}
        for place in [ROOT / "tests", *ROOT.glob("crates/*/tests")]:
            for file in place.rglob("*.rs"):
                if file.relative_to(ROOT).as_posix() not in may:
                    self.assertNotIn("thread::sleep(", file.read_text(), f"{file}: use eventually(), or pause() with a reason")

    def test_no_test_returns_early_in_silence(self):
        # `is_root` and `can_redirect` of tests/local say that the test is skipped.
        silent = re.compile(r"(?:!\s*(?:rustix::process::)?get(?:e)?uid\(\)\.is_root\(\)|!\s*runs_as_root\(\)|!\s*redirects\(\))"
                            r"\s*\{\s*return(?: None)?;")
        for file in [*(ROOT / "tests").rglob("*.rs"), *ROOT.glob("crates/*/tests/**/*.rs"), *ROOT.glob("crates/*/src/**/*.rs")]:
            found = silent.search(file.read_text())
            self.assertIsNone(found, f"{file}: it says nothing before it returns: {found and found[0]!r}")

    def test_tables_are_put_between_marks(self):
        with tempfile.TemporaryDirectory() as place:
            file = pathlib.Path(place) / "page.md"
            file.write_text(f"a\n{page.BEGIN}\nold\n{page.END}\nb\n")
            page.replace(file, "new")
            self.assertEqual(file.read_text(), f"a\n{page.BEGIN}\nnew\n{page.END}\nb\n")
            file.write_text("no marks")
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                page.replace(file, "new")


class PythonTests(unittest.TestCase):
    def run_in(self, text, *options):
        with tempfile.TemporaryDirectory() as place:
            (pathlib.Path(place) / "test_a.py").write_text(f"import unittest\nclass A(unittest.TestCase):\n{text}")
            command = [sys.executable, "-B", ROOT / "scripts/suite/python_tests.py", *options, place]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_skips_are_told_and_fail_where_nothing_may_be_skipped(self):
        one = "    def test_a(self):\n        self.skipTest('there is no Go')\n"
        done = self.run_in(one)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("skipped 1: there is no Go (test_a.A.test_a)", done.stdout)
        self.assertEqual(self.run_in(one, "--no-skips").returncode, 1)
        self.assertEqual(self.run_in("    def test_a(self):\n        pass\n", "--no-skips").returncode, 0)

    def test_a_failure_and_no_test_at_all_are_failures(self):
        self.assertEqual(self.run_in("    def test_a(self):\n        self.fail()\n").returncode, 1)
        self.assertEqual(self.run_in("    pass\n").returncode, 1)


class Walls(unittest.TestCase):
    def test_an_account_that_a_killed_run_left_in_half_is_passed_over(self):
        with tempfile.TemporaryDirectory() as place, unittest.mock.patch.object(times, "PLACE", pathlib.Path(place)):
            tests = [{"name": "a::b", "wall": 2.5, "cpu": 1, "waits": {}}]
            times.keep("test", 3, 2, times.Builds(), tests, True)
            pathlib.Path(place, "lint-warm.json").write_text("")
            self.assertEqual(times.last_walls(), {"a::b": 2.5})
            self.assertEqual([f.suffix for f in pathlib.Path(place).iterdir()], [".json", ".json"])


class Ages(unittest.TestCase):
    """The ages of files in clones, by which Cargo judges what to build."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        self.origin = self.place / "origin"
        self.origin.mkdir()
        (self.origin / "a").mkdir()
        (self.origin / "a/same").write_text("1")
        (self.origin / "a/other").write_text("1")
        self.git(self.origin, "init", "--quiet")
        self.commit()

    def git(self, directory, *arguments):
        own = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
        subprocess.run(["git", *own, *arguments], cwd=directory, check=True, capture_output=True)

    def commit(self):
        self.git(self.origin, "add", ".")
        self.git(self.origin, "commit", "--quiet", "--message", "t")

    def clone(self, name="clone"):
        """Clones as CI does, to the same place each time; returns the time of each file."""
        clone = self.place / name
        shutil.rmtree(clone, ignore_errors=True)
        self.git(self.place, "clone", "--quiet", str(self.origin), str(clone))
        subprocess.run([ROOT / "scripts/restore-ages.py", self.place / "ages.json"], cwd=clone, check=True,
                       capture_output=True)
        return {name: (clone / name).stat().st_mtime_ns for name in ("a", "a/same", "a/other")}

    def test_what_is_the_same_keeps_its_age_and_what_changed_is_new(self):
        first = self.clone()
        self.assertEqual(self.clone(), first)
        (self.origin / "a/other").write_text("2")
        self.commit()
        second = self.clone()
        self.assertEqual(second["a/same"], first["a/same"])
        self.assertGreater(second["a/other"], first["a/other"])
        self.assertGreater(second["a"], first["a"])
        # Back to what it was two clones ago: the cache has been filled by another content since.
        (self.origin / "a/other").write_text("1")
        self.commit()
        self.assertGreater(self.clone()["a/other"], second["a/other"])

    def test_at_another_place_everything_is_new(self):
        first = self.clone()
        self.assertGreater(self.clone("elsewhere")["a/same"], first["a/same"])


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    unittest.main()
