"""A release holds what it says, is the same again, and is installed and removed without a trace."""

import functools
import hashlib
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
TARGET = f"{platform.machine()}-unknown-linux-musl"
SETTINGS = ("ARCH", "PROFILE", "KEY", "REGISTRY", "OUTPUT", "PROGRAMS", "PAGES", "MAINTAINER", "DOCS", "CARGO_TARGET_DIR")
MISSING = [tool for tool in ("dpkg-deb", "rpmbuild", "ssh-keygen", "cargo", "git") if not shutil.which(tool)]


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)


def release(**settings):
    """scripts/release.sh with these settings, and none of who runs the tests."""
    others = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    return run(ROOT / "scripts/release.sh", env={**others, **{k: str(v) for k, v in settings.items()}})


def files_below(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def new_key(path):
    made = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "whoever releases", "-f", path)
    assert made.returncode == 0, made
    return path


def service(program, *, name="", init="systemd"):
    """The lines of a service that install.sh and packages read, as crates/cli/src/service/unit.rs writes them."""
    mark = re.search(r'^const MARK: &str = "(.*)";$', (ROOT / "crates/cli/src/service/unit.rs").read_text(), re.MULTILINE)[1]
    which = f" --name {name}" if name else ""
    if init == "systemd":
        lines = ["[Service]", f"ExecStart={program} up --service{which} /etc/tulle/mesh.yaml",
                 f"ExecReload={program} service reload{which}", f"ExecStopPost=-{program} clear-up{which}"]
    else:
        lines = ["#!/sbin/openrc-run", "supervisor=supervise-daemon", f"command={program}",
                 f"command_args='up --service{which} /etc/tulle/mesh.yaml'", "reload() {", f"\t{program} service reload{which}", "}"]
    return "\n".join([*lines, f"{mark}{'0' * 64}\n"])


def copy_accounts(etc):
    for name in ("passwd", "group", "shadow", "gshadow", "login.defs"):
        if Path("/etc", name).exists():
            shutil.copy2(Path("/etc", name), etc / name)


def write_services(etc, services):
    """Makes a small /etc with services, by name of the file."""
    for name in ("systemd/system", "init.d"):
        (etc / name).mkdir(parents=True)
    copy_accounts(etc)
    # Debian's awk is a link to there.
    if Path("/etc/alternatives").is_dir():
        shutil.copytree("/etc/alternatives", etc / "alternatives", symlinks=True)
    for name, text in services.items():
        (etc / name).write_text(text)


def names_service(file, program, command):
    """What install.sh and packages say instead of removing the program."""
    return (f"error: {file} starts {program} at boot, and would fail at every boot without it\n"
            f"  what to do: run '{command}' as root, then remove tulle again\n")


OWN_ETC = unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "needs root, for an /etc of its own")


def with_etc(etc, *command, **options):
    """Runs a command that has this directory as /etc, which no other process sees."""
    return run("unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /etc; exec "$@"', etc, *command, **options)


# Where packages have it; `tests/init` runs it.
UNIT = "usr/lib/systemd/system/tulle.service"


class Settings(unittest.TestCase):
    def test_a_setting_that_makes_no_release_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            (place / "mine").write_text("mine")
            for settings, said in (({"ARCH": "mips"}, "amd64, arm64, armv7 and riscv64"), ({"KEY": "/nowhere"}, "no such file"),
                                   ({"KEY": place / "mine"}, "no SSH key"), ({"MAINTAINER": "me"}, "NAME <ADDRESS>"),
                                   ({"OUTPUT": place}, "is no release")):
                done = release(**settings)
                self.assertEqual((done.returncode, done.stdout), (64, ""), done)
                self.assertIn(said, done.stderr)
            self.assertEqual(files_below(place), {"mine": b"mine"})

    @unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
    def test_a_translation_that_is_behind_its_page_makes_no_release(self):
        with tempfile.TemporaryDirectory() as directory:
            clone = Path(directory) / "clone"
            self.assertEqual(run("git", "clone", "--quiet", ROOT, clone).returncode, 0)
            shutil.copytree(ROOT / "scripts", clone / "scripts", dirs_exist_ok=True)
            with open(clone / "docs/machines.md", "a", encoding="utf-8") as page:
                page.write("\nA sentence that nobody has translated.\n")
            for language in ("en", "zh"):
                (clone / "build/docs" / language).mkdir(parents=True)
                (clone / "build/docs" / language / "index.html").touch()
            me = ("-c", "user.name=t", "-c", "user.email=t@t.invalid")
            self.assertEqual(run("git", *me, "commit", "--quiet", "--all", "--message", "t", cwd=clone).returncode, 0)
            others = {k: v for k, v in os.environ.items() if k not in SETTINGS}
            done = run(clone / "scripts/release.sh", env=others)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done)
            self.assertIn("docs/zh/machines.md", done.stderr)
            self.assertIn("translations that are behind their pages", done.stderr)
            self.assertFalse((clone / "build/release").exists())

    def test_a_directory_with_anything_but_a_release_is_not_replaced(self):
        def sums(*names):
            return "".join(f"{hashlib.sha256(b'').hexdigest()}  {name}\n" for name in names)

        made = {"tulle-1.0.0.provenance.json": "", "install.sh": "", "SHA256SUMS.sig": "",
                "SHA256SUMS": sums("install.sh", "tulle-1.0.0.provenance.json")}
        for held, said in (({"SHA256SUMS": sums("debian.iso"), "debian.iso": ""}, "this is there and is no release"),
                           ({"SHA256SUMS": ""}, "this is there and is no release"),
                           ({**made, "SHA256SUMS": sums("install.sh", "other-1.0.0.provenance.json")}, "is no release"),
                           ({**made, "notes": "mine"}, "notes in it is of no release"),
                           ({**made, ".notes": "mine"}, ".notes in it is of no release"),
                           # A name that is only a part of another one.
                           ({**made, "install": "mine"}, "install in it is of no release"),
                           # What has such a name is a directory.
                           ({**made, "LICENSE/mine": "mine", "SHA256SUMS": made["SHA256SUMS"] + sums("LICENSE")},
                            "LICENSE in it is of no release")):
            with self.subTest(said=said, held=sorted(held)), tempfile.TemporaryDirectory() as directory:
                for name, text in held.items():
                    (Path(directory) / name).parent.mkdir(exist_ok=True)
                    (Path(directory) / name).write_text(text)
                done = release(OUTPUT=directory)
                self.assertEqual((done.returncode, done.stdout), (64, ""), done)
                self.assertIn(said, done.stderr)
                self.assertEqual(files_below(Path(directory)), {name: text.encode() for name, text in held.items()})


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
@unittest.skipUnless(ARCH, f"there are no releases for {platform.machine()}")
class Release(unittest.TestCase):
    """One release of small programs, made twice in other places."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.place = Path(cls.temporary.name)
        cls.key = new_key(cls.place / "key")
        cls.public = " ".join((cls.place / "key.pub").read_text().split()[:2])
        cls.version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        made = []
        for turn in ("first", "again"):
            place = cls.place / turn
            programs, pages = place / "programs" / ARCH, place / "pages"
            for directory in (programs, pages / "man1", pages / "completions"):
                directory.mkdir(parents=True)
            for program in ("tulle", "tulle-proxy", "tulle-envoy", "bookinfo"):
                (programs / program).write_text(f"#!/bin/sh\necho {program} of the release\n")
                (programs / program).chmod(0o755)
            for page in ("tulle", "tulle-up", "tulle-proxy", "tulle-envoy"):
                (pages / f"man1/{page}.1").write_text(f'.TH {page} 1\n.SH NAME\n{page} \\- a page\n')
            for name in ("tulle.bash", "tulle.fish", "_tulle"):
                (pages / "completions" / name).write_text(f"# {name}\n")
            for language in ("en", "zh"):
                book = place / "docs" / language
                book.mkdir(parents=True)
                (book / "index.html").write_text(f"<title>{language}</title>\n")
            made.append(release(ARCH=ARCH, KEY=cls.key, PROGRAMS=programs.parent, PAGES=pages, DOCS=place / "docs",
                                OUTPUT=place / "out"))
        cls.made = made[0]
        for done in made:
            assert done.returncode == 0, done
        cls.out = cls.place / "first/out"

    def file(self, pattern):
        (found,) = self.out.glob(pattern)
        return found

    def test_made_again_elsewhere_it_has_the_same_bytes(self):
        first, again = files_below(self.out), files_below(self.place / "again/out")
        self.assertGreater(len(first), 10)
        self.assertEqual({n: hashlib.sha256(d).hexdigest() for n, d in first.items()},
                         {n: hashlib.sha256(d).hexdigest() for n, d in again.items()})

    def test_no_file_names_where_it_was_made(self):
        for name, data in files_below(self.out).items():
            self.assertNotIn(str(self.place).encode(), data, name)
            self.assertNotIn(str(ROOT).encode(), data, name)
            self.assertNotIn(platform.node().encode() if len(platform.node()) > 6 else b"\0never\0", data, name)

    def test_the_sums_are_of_all_files_and_are_signed(self):
        lines = dict(reversed(line.split("  ")) for line in (self.out / "SHA256SUMS").read_text().splitlines())
        every = files_below(self.out)
        self.assertEqual(lines.keys(), every.keys() - {"SHA256SUMS", "SHA256SUMS.sig"})
        for name, said in lines.items():
            self.assertEqual(hashlib.sha256(every[name]).hexdigest(), said, name)
        signers = self.place / "signers"
        signers.write_text(f"tulle {self.public}\n")
        with open(self.out / "SHA256SUMS", "rb") as sums:
            seen = run("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "tulle", "-n", "tulle-release", "-s",
                       self.out / "SHA256SUMS.sig", stdin=sums)
        self.assertEqual(seen.returncode, 0, seen)
        self.assertIn(self.public, self.made.stdout)

    def test_without_a_key_it_is_unsigned_and_says_so(self):
        with tempfile.TemporaryDirectory() as directory:
            # It replaces another one.
            shutil.copytree(self.out, Path(directory) / "out")
            done = release(ARCH=ARCH, PROGRAMS=self.place / "first/programs", PAGES=self.place / "first/pages",
                           DOCS=self.place / "first/docs", OUTPUT=Path(directory) / "out")
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("nothing is signed", done.stdout)
            self.assertFalse((Path(directory) / "out/SHA256SUMS.sig").exists())
            self.assertIn('\nkey=""\n', (Path(directory) / "out/install.sh").read_text())

    def test_packages_have_the_names_that_their_systems_give_to_architectures(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            for arch in ("armv7", "riscv64"):
                shutil.copytree(self.place / "first/programs" / ARCH, place / "programs" / arch)
            done = release(ARCH="armv7 riscv64", PROGRAMS=place / "programs", PAGES=self.place / "first/pages",
                           DOCS=self.place / "first/docs", OUTPUT=place / "out")
            self.assertEqual(done.returncode, 0, done)
            for arch, deb, rpm in (("armv7", "armhf", "armv7hl"), ("riscv64", "riscv64", "riscv64")):
                self.assertTrue((place / f"out/tulle-{self.version}-linux-{arch}.tar.gz").exists())
                found = run("dpkg-deb", "--field", place / f"out/tulle_{self.version}-1_{deb}.deb", "Architecture")
                self.assertEqual(found.stdout, f"{deb}\n", found)
                found = run("rpm", "-qp", "--qf", "%{ARCH}", place / f"out/tulle-{self.version}-1.{rpm}.rpm")
                self.assertEqual(found.stdout, rpm, found)

    def test_the_deb_has_programs_pages_and_completions(self):
        deb = self.file("*.deb")
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for name in ("info", "updates", "triggers"):
                (root / "var/lib/dpkg" / name).mkdir(parents=True)
            (root / "var/lib/dpkg/status").touch()
            # Unpacked alone: its script asks the machine's own accounts.
            done = run("dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--unpack", deb)
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(run(root / "usr/bin/tulle").stdout, "tulle of the release\n")
            self.assertEqual(run(root / "usr/bin/tulle-proxy").stdout, "tulle-proxy of the release\n")
            for name in ("man/man1/tulle-up.1.gz", "bash-completion/completions/tulle", "zsh/vendor-completions/_tulle",
                         "fish/vendor_completions.d/tulle.fish", "doc/tulle/copyright", "doc/tulle/LIBRARIES.txt.gz"):
                self.assertTrue((root / "usr/share" / name).is_file(), name)
            self.assertEqual((root / "etc/tulle").stat().st_mode & 0o777, 0o750)
            # Nothing is started by a package: its unit is not enabled.
            self.assertEqual([str(p.relative_to(root)) for p in root.rglob("*.service")], [UNIT])
            self.assertEqual((root / UNIT).read_text(), (ROOT / "deploy/systemd/tulle.service").read_text())
            removed = run("dpkg", f"--root={root}", "--force-not-root", "--remove", "--force-remove-reinstreq", "tulle")
            self.assertFalse((root / "usr/bin/tulle").exists(), removed)
        said = run("dpkg-deb", "--field", deb)
        self.assertIn(f"Version: {self.version}-1\nArchitecture: {ARCH}\n", said.stdout)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "needs root, for accounts of its own")
    def test_the_debs_scripts_make_the_user_and_take_it_away(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            run("dpkg-deb", "--control", self.file("*.deb"), place / "control")
            (place / "etc/tulle").mkdir(parents=True)
            (place / "etc/tulle").chmod(0o750)
            copy_accounts(place / "etc")
            # The machine's own /etc is behind it, for these processes alone.
            done = run("unshare", "--mount", "sh", "-ec", f"""
                mount --bind {place}/etc /etc
                if getent passwd tulle; then userdel tulle; fi
                {place}/control/postinst configure
                getent passwd tulle
                {place}/control/postinst configure 0.0.1
                stat --format '%U %G %a' /etc/tulle
                rmdir /etc/tulle
                {place}/control/postinst configure 0.0.1
                mkdir --mode 750 /etc/tulle
                touch /etc/tulle/mesh.yaml
                {place}/control/postrm purge
                getent passwd tulle >/dev/null && echo stays with its files
                rm /etc/tulle/mesh.yaml
                {place}/control/postrm purge
                getent passwd tulle || echo gone
                ls -d /etc/tulle 2>/dev/null || echo gone
                """)
            self.assertEqual(done.returncode, 0, done)
            self.assertRegex(done.stdout, r"(?m)^tulle:x:\d+:\d+:.*:/nonexistent:/usr/sbin/nologin\nroot tulle 750\n"
                                          r"stays with its files\ngone\ngone\n$")

    @OWN_ETC
    def test_a_group_that_has_outlived_its_user_is_used_again(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            run("dpkg-deb", "--control", self.file("*.deb"), place / "control")
            before = run("rpm", "--dbpath", place / "database", "-qp", "--queryformat", "%{PREIN}", self.file("*.rpm"))
            (place / "prein").write_text(before.stdout)
            for script in (place / "control/postinst", place / "prein"):
                etc = place / f"etc-{script.name}"
                (etc / "tulle").mkdir(parents=True)
                copy_accounts(etc)
                # It stays, for somebody else is in it.
                done = with_etc(etc, "sh", "-ec", f"""
                    getent group tulle >/dev/null || groupadd --system tulle
                    getent passwd tulle >/dev/null || useradd --system --gid tulle tulle
                    usermod --append --groups tulle daemon
                    userdel tulle 2>/dev/null
                    getent group tulle
                    sh {script} configure
                    id --group --name tulle
                    """)
                self.assertEqual(done.returncode, 0, done)
                self.assertRegex(done.stdout, r"^tulle:[^:]*:\d+:daemon\ntulle\n$")

    @OWN_ETC
    def test_the_deb_is_upgraded_but_not_removed_while_a_service_starts_it(self):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for name in ("info", "updates", "triggers"):
                (root / "var/lib/dpkg" / name).mkdir(parents=True)
            (root / "var/lib/dpkg/status").touch()
            write_services(root / "etc", {"systemd/system/tulle-two.service": service("/usr/bin/tulle", name="two"),
                                          "systemd/system/tulle.service": service("/usr/local/bin/tulle")})

            # Its scripts run outside of the root, with the machine's programs and this /etc.
            def dpkg(*arguments):
                return with_etc(root / "etc", "dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", *arguments)

            for _ in ("it is installed", "and upgraded"):
                done = dpkg("--install", self.file("*.deb"))
                self.assertEqual(done.returncode, 0, done)
            unit = root / "etc/systemd/system/tulle-two.service"
            for removal in ("--remove", "--purge"):
                done = dpkg(removal, "tulle")
                self.assertNotEqual(done.returncode, 0, done)
                self.assertIn(names_service(unit, "/usr/bin/tulle", "/usr/bin/tulle service uninstall --name two"), done.stderr)
                self.assertEqual(done.stderr.count("what to do"), 1, done)
                self.assertEqual(run(root / "usr/bin/tulle").stdout, "tulle of the release\n")
                self.assertIn("tulle:", (root / "etc/passwd").read_text())
            unit.unlink()
            # dpkg removes the empty directory, and makes it anew.
            self.assertEqual(dpkg("--remove", "tulle").returncode, 0)
            self.assertFalse((root / "etc/tulle").exists())
            self.assertEqual(dpkg("--install", self.file("*.deb")).returncode, 0)
            group = re.search(r"^tulle:[^:]*:(\d+):", (root / "etc/group").read_text(), re.MULTILINE)[1]
            self.assertEqual((root / "etc/tulle").stat().st_gid, int(group))
            done = dpkg("--purge", "tulle")
            self.assertEqual(done.returncode, 0, done)
            self.assertFalse((root / "usr/bin/tulle").exists())
            self.assertNotIn("tulle:", (root / "etc/passwd").read_text())

    def test_the_rpm_has_the_same(self):
        rpm = self.file("*.rpm")
        with tempfile.TemporaryDirectory() as database:
            def ask(*what):
                done = run("rpm", "--dbpath", database, "-qp", *what, rpm)
                self.assertEqual(done.returncode, 0, done)
                return done.stdout

            listed = set(ask("--list").split())
            for name in ("/usr/bin/tulle", "/usr/bin/tulle-proxy", "/usr/bin/tulle-envoy", "/usr/share/man/man1/tulle-up.1.gz",
                         "/usr/share/bash-completion/completions/tulle", "/usr/share/zsh/site-functions/_tulle",
                         "/usr/share/fish/vendor_completions.d/tulle.fish", "/usr/share/doc/tulle/LICENSE",
                         "/usr/share/doc/tulle/LIBRARIES.txt.gz", "/etc/tulle"):
                self.assertIn(name, listed)
            self.assertEqual([name for name in listed if name.endswith(".service")], [f"/{UNIT}"])
            self.assertEqual(ask("--queryformat", "%{VERSION} %{ARCH} %{BUILDHOST}"),
                             f"{self.version} {platform.machine()} localhost")
            self.assertIn("useradd --system", ask("--scripts"))
            self.assertEqual(ask("--queryformat", "%{PREUN}").strip(), (ROOT / "scripts/release/prerm").read_text().strip())
            # Users that have no rpm of today read gzip.
            self.assertEqual(ask("--queryformat", "%{PAYLOADCOMPRESSOR}"), "gzip")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("busybox"), "needs root, and busybox for a small system")
    def test_the_rpm_is_upgraded_but_not_removed_while_a_service_starts_it(self):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            programs = root / "bin"
            programs.mkdir()
            shutil.copy2(shutil.which("busybox"), programs)
            if run("chroot", root, "/bin/busybox", "true").returncode:
                self.skipTest("needs a static busybox")
            for name in ("sh", "grep", "sed"):
                (programs / name).symlink_to("busybox")
            (root / "dev").mkdir()
            (root / "dev/null").touch()
            # There is a user already.
            (programs / "getent").write_text("#!/bin/sh\n")
            (programs / "getent").chmod(0o755)
            write_services(root / "etc", {"init.d/tulle": service("/usr/bin/tulle", init="openrc")})
            (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
            (root / "etc/group").write_text("root:x:0:\ntulle:x:990:\n")

            def rpm(*arguments):
                return run("rpm", "--root", root, "--nodeps", "--noplugins", *arguments)

            done = rpm("--install", self.file("*.rpm"))
            self.assertEqual(done.returncode, 0, done)
            # The next version has the same files.
            shutil.copytree(root / "usr", root / "next/usr")
            (root / "next/etc/tulle").mkdir(parents=True)
            made = run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {root}/top", "--define", f"_dbpath {root}/top/db",
                       "--define", "tulle_version 99", "--define", f"tulle_root {root}/next", "--define", "tulle_packager me",
                       "--define", f"tulle_prerm {ROOT}/scripts/release/prerm", ROOT / "scripts/release/tulle.spec")
            self.assertEqual(made.returncode, 0, made)
            (following,) = (root / "top/RPMS").rglob("*.rpm")
            done = rpm("--upgrade", following)
            self.assertEqual(done.returncode, 0, done)
            query = run("rpm", "--root", root, "--query", "--queryformat", "%{VERSION};", "tulle")
            self.assertEqual(query.stdout, "99;")
            done = rpm("--erase", "tulle")
            self.assertNotEqual(done.returncode, 0, done)
            self.assertIn(names_service("/etc/init.d/tulle", "/usr/bin/tulle", "/usr/bin/tulle service uninstall"), done.stderr)
            self.assertEqual(run(root / "usr/bin/tulle").stdout, "tulle of the release\n")
            (root / "etc/init.d/tulle").unlink()
            done = rpm("--erase", "tulle")
            self.assertEqual(done.returncode, 0, done)
            self.assertFalse((root / "usr/bin/tulle").exists())

    def test_the_demo_needs_nothing_beside_it(self):
        name = f"tulle-demo-{self.version}-linux-{ARCH}"
        with tempfile.TemporaryDirectory() as directory:
            done = run("tar", "--extract", "--gzip", "--file", self.out / f"{name}.tar.gz", "--directory", directory)
            self.assertEqual(done.returncode, 0, done)
            place = Path(directory) / name
            self.assertEqual(sorted(files_below(place)), ["LIBRARIES.txt", "LICENSE", "bookinfo", "deny-ratings.yaml", "mesh.yaml"])
            self.assertEqual(run(place / "bookinfo").stdout, "bookinfo of the release\n")
            ours = (ROOT / "demo/mesh.yaml").read_text()
            theirs = (place / "mesh.yaml").read_text()
            self.assertEqual(theirs.replace("workingDirectory: .\n", "workingDirectory: ..\n").replace("[./", "[target/release/"), ours)
            # Each application is started where the manifest is, and by its name there.
            self.assertEqual(re.findall(r"workingDirectory: (.*)", theirs), ["."] * ours.count("kind: Workload\n"))
            self.assertEqual({command.split(",")[0] for command in re.findall(r"command: \[(.*)\]", theirs)}, {"./bookinfo"})

    def test_charts_are_whole(self):
        for name in ("tulle", "tulle-crds"):
            with tarfile.open(self.out / f"{name}-{self.version}.tgz") as tar:
                held = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
                self.assertEqual({m.mtime for m in tar.getmembers()}.__len__(), 1)
            self.assertEqual(held, {f"{name}/{path}": data
                                    for path, data in files_below(ROOT / "deploy/charts" / name).items()})

    def test_the_statement_names_the_commit_and_every_file(self):
        statement = json.loads(self.file("*.provenance.json").read_text())
        self.assertEqual(statement["_type"], "https://in-toto.io/Statement/v1")
        self.assertEqual(statement["predicateType"], "https://slsa.dev/provenance/v1")
        every = files_below(self.out)
        named = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
        self.assertEqual(named.keys(), every.keys() - {"SHA256SUMS", "SHA256SUMS.sig", self.file("*.provenance.json").name})
        for name, digest in named.items():
            self.assertEqual(hashlib.sha256(every[name]).hexdigest(), digest)
        build = statement["predicate"]["buildDefinition"]
        commit = run("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip()
        self.assertEqual(build["resolvedDependencies"][0]["digest"], {"gitCommit": commit})
        self.assertEqual(build["externalParameters"]["command"], "make release")
        # These programs are no build of the commit, and it does not claim so.
        self.assertEqual(build["externalParameters"]["programs"], "made before, elsewhere")
        self.assertTrue(build["internalParameters"]["tools"]["rustc"].startswith("rustc 1."))


# The objects of bom-1.5.schema.json that a bill of ours has, with the fields it uses: the schema refuses a field that it does not know.
BILL = {
    "bom": {"bomFormat": {"CycloneDX"}, "specVersion": {"1.5"}, "serialNumber": str, "version": int, "metadata": "metadata",
            "components": ["component"], "dependencies": ["dependency"]},
    "metadata": {"timestamp": str, "component": "component", "properties": ["property"]},
    "component": {"type": {"application", "library"}, "bom-ref": str, "name": str, "version": str, "description": str,
                  "scope": {"required", "optional", "excluded"}, "hashes": ["hash"], "licenses": ["licence"], "purl": str,
                  "components": ["component"], "properties": ["property"]},
    "hash": {"alg": {"SHA-1", "SHA-256", "SHA-384", "SHA-512"}, "content": str},
    "licence": {"expression": str},
    "property": {"name": str, "value": str},
    "dependency": {"ref": str, "dependsOn": [str]},
}
# Fields that an object must have, where these are not all.
BILL_NEEDS = {"component": {"type", "name"}}


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
@unittest.skipUnless(ARCH, f"there are no releases for {platform.machine()}")
class Bill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            for program in ("tulle", "tulle-proxy", "tulle-envoy", "bookinfo"):
                (place / program).write_text(program)
            done = run(sys.executable, "-B", ROOT / "scripts/release", "libraries", "--version", "9.9", "--target", TARGET,
                       "--programs", place, "--sbom", place / "bill", "--licences", place / "licences",
                       env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
            assert done.returncode == 0, done
            cls.bill = json.loads((place / "bill").read_text())
            cls.licences = (place / "licences").read_text()
        cls.components = {c["bom-ref"]: c for c in cls.bill["components"]}

    def test_it_names_every_crate_of_the_lock_file_that_the_target_has(self):
        locked = {(p["name"], p["version"]): p
                  for p in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
        wanted = {}
        for package in ("tulle-cli", "tulle-proxy", "tulle-envoy", "bookinfo"):
            for edges in ("normal", "normal,build"):
                done = run("cargo", "tree", "--locked", "--target", TARGET, "--package", package, "--edges", edges,
                           "--prefix", "none", cwd=ROOT)
                self.assertEqual(done.returncode, 0, done)
                for line in done.stdout.splitlines():
                    if line:
                        wanted[tuple(line.replace(" v", " ").split()[:2])] = line
        self.assertGreater(len(wanted), 200)
        named = {(c["name"], c["version"]) for c in self.components.values()
                 if not c["bom-ref"].startswith(("npm:", "rust:"))}
        self.assertEqual(named, wanted.keys())
        for reference, component in self.components.items():
            if reference.startswith("cargo:"):
                checksum = locked[component["name"], component["version"]]["checksum"]
                self.assertEqual(component["hashes"], [{"alg": "SHA-256", "content": checksum}])
                self.assertEqual(component["purl"], f"pkg:cargo/{component['name']}@{component['version']}")
                self.assertTrue(component["licenses"][0]["expression"], component)

    def test_it_tells_what_is_in_a_program_from_what_built_it(self):
        def of(name):
            return next(c for c in self.components.values() if c["name"] == name)

        self.assertEqual(of("rustls")["scope"], "required")
        self.assertEqual([p["value"] for p in of("rustls")["properties"]], ["bookinfo", "tulle", "tulle-envoy", "tulle-proxy"])
        # The engine of plugins is in the proxy alone; derive macros are in nothing.
        self.assertEqual([p["value"] for p in of("rquickjs-core")["properties"]], ["tulle-proxy"])
        self.assertEqual(of("serde_derive")["scope"], "excluded")
        self.assertEqual(of("preact")["hashes"][0]["alg"], "SHA-512")
        self.assertNotIn("clap_mangen", {c["name"] for c in self.components.values()})

    def test_it_is_cyclonedx(self):
        bill = self.bill
        self.assertEqual((bill["bomFormat"], bill["specVersion"], bill["version"]), ("CycloneDX", "1.5", 1))
        self.assertRegex(bill["serialNumber"], r"^urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$")
        self.assertEqual(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        programs = {p["bom-ref"]: p for p in bill["metadata"]["component"]["components"]}
        self.assertEqual(programs["program:tulle"]["hashes"][0]["content"], hashlib.sha256(b"tulle").hexdigest())
        references = [*self.components, *programs, "tulle"]
        self.assertEqual(len(references), len(set(references)))
        self.assertEqual(len(bill["components"]), len(self.components))
        for dependency in bill["dependencies"]:
            self.assertIn(dependency["ref"], references)
            self.assertLessEqual(set(dependency["dependsOn"]), set(references))
        self.assertEqual({d["ref"] for d in bill["dependencies"]}, set(references))
        for component in bill["components"]:
            self.assertIn(component["scope"], ("required", "excluded"))
            for digest in component.get("hashes", ()):
                self.assertRegex(digest["content"], {"SHA-256": r"^[0-9a-f]{64}$", "SHA-512": r"^[0-9a-f]{128}$"}[digest["alg"]])
        # All but the parents of a circle are reached from the top.
        needs = {d["ref"]: d["dependsOn"] for d in bill["dependencies"]}
        seen, new = set(), ["tulle"]
        while new:
            new = [n for reference in new for n in needs[reference] if n not in seen and not seen.add(n)]
        self.assertEqual(set(references) - seen - {"tulle"}, set())

    def test_it_has_only_fields_that_the_schema_has(self):
        def follow(shape, value, where):
            if isinstance(shape, list):
                self.assertIsInstance(value, list, where)
                for number, item in enumerate(value):
                    follow(shape[0], item, f"{where}[{number}]")
            elif isinstance(shape, set):
                self.assertIn(value, shape, where)
            elif isinstance(shape, type):
                self.assertIs(type(value), shape, where)
            else:
                fields = BILL[shape]
                self.assertLessEqual(value.keys(), fields.keys(), where)
                self.assertLessEqual(BILL_NEEDS.get(shape, fields.keys()), value.keys(), where)
                for name, held in value.items():
                    follow(fields[name], held, f"{where}.{name}")

        follow("bom", self.bill, "bom")
        for component in self.bill["components"]:
            self.assertLessEqual(len(component.get("licenses", ())), 1, "of expressions there is one")
        for dependency in self.bill["dependencies"]:
            self.assertEqual(len(dependency["dependsOn"]), len(set(dependency["dependsOn"])), dependency["ref"])

    def test_licences_are_of_all_libraries_in_the_programs(self):
        for component in self.components.values():
            line = f"    {component['name']} {component['version']}: "
            held = component["scope"] == "required" and component["bom-ref"].startswith(("cargo:", "npm:"))
            self.assertEqual(line in self.licences, held, line)
        # Libraries of C, too.
        for text in ("Jason Evans", "Fabrice Bellard", "OpenSSL"):
            self.assertIn(text, self.licences)


SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@unittest.skipUnless(ARCH and shutil.which("ssh-keygen"), "needs ssh-keygen, and a machine that has releases")
class Install(unittest.TestCase):
    """install.sh, on releases that only have what it reads."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.place = Path(temporary.name)
        self.key = new_key(self.place / "key")
        self.prefix = self.place / "prefix"
        self.first = self.make("1.0.0", {"bin/tulle": "one", "bin/tulle-proxy": "proxy", "share/man/man1/tulle-old.1": "old"})

    def make(self, version, files):
        place, name = self.place / f"release-{version}", f"tulle-{version}-linux-{ARCH}"
        tree = place / name
        for path, text in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(f"#!/bin/sh\necho {text}\n")
            (tree / path).chmod(0o755 if path.startswith("bin/") else 0o644)
        with tarfile.open(place / f"{name}.tar.gz", "w:gz") as tar:
            tar.add(tree, name)
        shutil.rmtree(tree)
        self.sign(place)
        return place

    def sign(self, place, key=None):
        names = sorted(p.name for p in place.iterdir() if not p.name.startswith("SHA256SUMS"))
        lines = [f"{hashlib.sha256((place / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
        (place / "SHA256SUMS").write_text("".join(lines))
        (place / "SHA256SUMS.sig").unlink(missing_ok=True)
        done = run("ssh-keygen", "-q", "-Y", "sign", "-f", key or self.key, "-n", "tulle-release", place / "SHA256SUMS")
        self.assertEqual(done.returncode, 0, done)

    def script(self, *arguments, shell="sh", key=True, prefix=None, etc=None, **options):
        command = [shell, "sh"] if shell == "busybox" else [shell]
        named = ["--key", f"{self.key}.pub"] if key else []
        command += [ROOT / "scripts/install.sh", *arguments, *named, "--prefix", prefix or self.prefix]
        return with_etc(etc, *command, **options) if etc else run(*command, **options)

    def refused(self, code, said, *arguments, **options):
        before = files_below(self.prefix)
        done = self.script(*arguments, **options)
        self.assertEqual(done.returncode, code, done)
        self.assertIn(said, done.stderr)
        self.assertEqual(files_below(self.prefix), before)
        return done

    def test_every_shell_installs_and_removes_without_a_trace(self):
        for shell in SHELLS:
            with self.subTest(shell):
                done = self.script(self.first, shell=shell)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertIn(f"installed tulle 1.0.0 into {self.prefix}: 3 files", done.stdout)
                self.assertEqual(run(self.prefix / "bin/tulle").stdout, "one\n")
                self.assertEqual(len(files_below(self.prefix)), 4)
                done = self.script("--uninstall", shell=shell, key=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertFalse(self.prefix.exists())

    @unittest.skipUnless(shutil.which("busybox"), "needs busybox")
    def test_a_box_with_busybox_and_ssh_keygen_is_enough(self):
        programs = self.place / "programs"
        programs.mkdir()
        run("busybox", "--install", "-s", programs)
        (programs / "ssh-keygen").symlink_to(shutil.which("ssh-keygen"))
        done = self.script(self.first, shell=programs / "sh", env={"PATH": str(programs)})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        done = self.script("--uninstall", shell=programs / "sh", key=False, env={"PATH": str(programs)})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertFalse(self.prefix.exists())

    @OWN_ETC
    def test_what_a_service_starts_is_upgraded_but_not_removed(self):
        for shell in SHELLS:
            for init, name in (("systemd", "systemd/system/tulle-two.service"), ("openrc", "init.d/tulle-two")):
                with self.subTest(shell, init=init), tempfile.TemporaryDirectory() as directory:
                    etc, program = Path(directory), self.prefix / "bin/tulle"
                    write_services(etc, {
                        name: service(program, name="two", init=init),
                        # Of another installation, and of somebody else.
                        "systemd/system/tulle.service": service("/usr/bin/tulle"),
                        "systemd/system/tulle-three.service": service(f"{program}-of-mine"),
                        "init.d/tulle-three": service(f"{program}-of-mine", init="openrc"),
                        "systemd/system/own.service": f"[Service]\nExecStart={program} up --service\n"})
                    for _ in ("it is installed", "and upgraded"):
                        done = self.script(self.first, shell=shell, etc=etc)
                        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                    done = self.refused(1, "", "--uninstall", shell=shell, key=False, etc=etc)
                    said = names_service(f"/etc/{name}", program, f"{program} service uninstall --name two")
                    self.assertEqual((done.stdout, done.stderr), ("", said))
                    (etc / name).unlink()
                    done = self.script("--uninstall", shell=shell, key=False, etc=etc)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                    self.assertFalse(self.prefix.exists())

    @OWN_ETC
    def test_every_service_is_named_and_so_is_one_with_another_path_of_the_program(self):
        (self.place / "real").mkdir()
        linked = self.place / "linked"
        linked.symlink_to("real")
        prefix = linked / "it's 100% $mine"
        real = self.place / "real" / prefix.name / "bin/tulle"
        etc = self.place / "etc"
        # As unit.rs quotes it.
        quoted = str(real).replace("%", "%%").replace("$", "$$")
        once = "'" + str(real).replace("'", "'\\''") + "'"
        twice = "'" + once.replace("'", "'\\''") + "'"
        write_services(etc, {"systemd/system/tulle.service": service(f'"{quoted}"'),
                             "init.d/tulle": service(once, init="openrc").replace(f"command={once}", f"command={twice}")})
        self.assertEqual(self.script(self.first, prefix=prefix, etc=etc).returncode, 0)
        before = files_below(prefix)
        done = self.script("--uninstall", prefix=prefix, key=False, etc=etc)
        self.assertEqual(done.returncode, 1, done)
        for file in ("/etc/systemd/system/tulle.service", "/etc/init.d/tulle"):
            self.assertIn(f"error: {file} starts {real} at boot", done.stderr)
        self.assertEqual(files_below(prefix), before)

    def test_the_root_directory_is_no_prefix(self):
        (self.place / "to-root").symlink_to("/")
        for prefix in ("/", "//", "///", "/.", "/usr/..", self.place / "to-root", "."):
            for arguments in ((self.first,), ("--uninstall",)):
                with self.subTest(prefix=str(prefix), arguments=arguments):
                    done = self.script(*arguments, prefix=prefix, key=False, cwd="/")
                    self.assertEqual((done.returncode, done.stdout), (64, ""), done)
                    self.assertIn("--prefix must not be the root directory", done.stderr)
        done = self.script(self.first, prefix=f"{self.prefix}///")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertEqual(run(self.prefix / "bin/tulle").stdout, "one\n")

    def test_what_others_have_below_the_prefix_stays(self):
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin/other").write_text("other")
        self.assertEqual(self.script(self.first).returncode, 0)
        (self.prefix / "share/man/man1/other.1").write_text("other")
        self.assertEqual(self.script("--uninstall", key=False).returncode, 0)
        self.assertEqual(files_below(self.prefix), {"bin/other": b"other", "share/man/man1/other.1": b"other"})
        self.assertFalse((self.prefix / "share/tulle").exists())

    def test_a_file_of_somebody_else_is_not_replaced(self):
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin/tulle").write_text("made by hand")
        self.refused(1, "did not install it", self.first)
        self.assertEqual([p.name for p in self.prefix.iterdir()], ["bin"])

    def test_an_upgrade_replaces_files_and_removes_those_that_are_gone(self):
        self.assertEqual(self.script(self.first).returncode, 0)
        # It is upgraded while it runs.
        running = subprocess.Popen([self.prefix / "bin/tulle"], stdout=subprocess.DEVNULL)
        inode = (self.prefix / "bin/tulle").stat().st_ino
        second = self.make("1.1.0", {"bin/tulle": "two", "bin/tulle-proxy": "proxy", "share/doc/tulle/NEW": "new"})
        done = self.script(second)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertIn("installed tulle 1.1.0", done.stdout)
        self.assertIn("where 1.0.0 was", done.stdout)
        self.assertEqual(running.wait(), 0)
        self.assertNotEqual((self.prefix / "bin/tulle").stat().st_ino, inode)
        self.assertEqual(run(self.prefix / "bin/tulle").stdout, "two\n")
        self.assertEqual(set(files_below(self.prefix)),
                         {"bin/tulle", "bin/tulle-proxy", "share/doc/tulle/NEW", "share/tulle/installed"})
        self.assertEqual(self.script("--uninstall", key=False).returncode, 0)
        self.assertFalse(self.prefix.exists())

    def test_the_same_release_again_changes_nothing(self):
        self.assertEqual(self.script(self.first).returncode, 0)
        before = files_below(self.prefix)
        self.assertEqual(self.script(self.first).returncode, 0)
        self.assertEqual({n: d for n, d in files_below(self.prefix).items() if n != "share/tulle/installed"},
                         {n: d for n, d in before.items() if n != "share/tulle/installed"})
        self.assertEqual(self.script("--uninstall", key=False).returncode, 0)
        self.assertFalse(self.prefix.exists())

    def test_a_changed_file_is_kept(self):
        self.assertEqual(self.script(self.first).returncode, 0)
        (self.prefix / "bin/tulle").write_text("changed")
        self.refused(1, "somebody has changed it", self.make("1.2.0", {"bin/tulle": "three"}))
        done = self.script("--uninstall", key=False)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("bin/tulle stays", done.stdout)
        self.assertEqual(files_below(self.prefix), {"bin/tulle": b"changed"})

    def test_a_tampered_file_is_refused(self):
        (archive,) = self.first.glob("*.tar.gz")
        archive.write_bytes(archive.read_bytes()[:-1] + b"!")
        self.refused(65, f"{archive.name} is not the file of the release", self.first)
        # Whoever makes the sums fit has no key.
        sums = self.first / "SHA256SUMS"
        sums.write_text(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
        self.refused(65, "is not signed with the key SHA256:", self.first)

    def test_another_signature_is_refused(self):
        self.sign(self.first, new_key(self.place / "other"))
        self.refused(65, "is not signed with the key SHA256:", self.first)
        # The right key for something else than a release.
        (self.first / "SHA256SUMS.sig").unlink()
        run("ssh-keygen", "-q", "-Y", "sign", "-f", self.key, "-n", "file", self.first / "SHA256SUMS")
        self.refused(65, "is not signed with the key SHA256:", self.first)
        (self.first / "SHA256SUMS.sig").write_text("no signature\n")
        self.refused(65, "is not signed with the key SHA256:", self.first)
        (self.first / "SHA256SUMS.sig").unlink()
        self.refused(1, "cannot get", self.first)

    def test_without_a_key_one_must_say_so(self):
        self.refused(64, "no key is known", self.first, key=False)
        self.refused(64, "this is no SSH key: 'rsa'", self.first, "--key", "rsa AAAA", key=False)
        self.refused(64, "contradict each other", self.first, "--unsigned")
        done = self.script(self.first, "--unsigned", key=False)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("nobody vouches", done.stdout)

    def test_the_key_within_the_script_is_used(self):
        public = " ".join(Path(f"{self.key}.pub").read_text().split()[:2])
        text = (ROOT / "scripts/install.sh").read_text()
        own = self.place / "install.sh"
        own.write_text(text.replace('\nkey=""\n', f'\nkey="{public}"\n'))
        done = run("sh", own, self.first, "--prefix", self.prefix)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertIn("is signed with the key SHA256:", done.stdout)
        run("sh", own, "--uninstall", "--prefix", self.prefix)
        self.sign(self.first, new_key(self.place / "other"))
        done = run("sh", own, self.first, "--prefix", self.prefix)
        self.assertEqual(done.returncode, 65, done)

    def test_another_version_or_no_release_is_refused(self):
        self.refused(65, "has tulle 1.0.0, not 1.0.1", self.first, "1.0.1")
        self.refused(64, "is no directory", self.place / "nowhere")
        (self.place / "empty").mkdir()
        self.refused(1, "cannot get", self.place / "empty")
        self.refused(64, "FROM is missing")
        self.refused(64, "no option --nonsense", "--nonsense")
        self.refused(1, "has installed nothing", "--uninstall", key=False)
        self.assertEqual(self.script(self.first, "v1.0.0").returncode, 0)

    def test_a_key_file_without_a_key_is_no_choice_of_another(self):
        file = self.place / "none.pub"
        for text in ("", "\n \n", "# a remark\n"):
            file.write_text(text)
            for more in ((), ("--unsigned",)):
                self.refused(64, f"there is no key in {file}", self.first, "--key", file, *more, key=False)
        file.write_text("\n# a remark\n" + Path(f"{self.key}.pub").read_text())
        done = self.script(self.first, "--key", file, key=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_files_are_on_the_disk_before_they_have_their_names(self):
        programs, told = self.place / "programs", self.place / "told"
        programs.mkdir()
        (programs / "sync").write_text(f"#!/bin/sh\n(cd '{self.prefix}' && find . -type f | sort) >>'{told}'\necho >>'{told}'\n")
        (programs / "sync").chmod(0o755)
        done = self.script(self.first, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        names = ["./bin/tulle", "./bin/tulle-proxy", "./share/man/man1/tulle-old.1", "./share/tulle/installed"]
        new, noted, named = (sorted(said.split("\n")) for said in told.read_text().rstrip("\n").split("\n\n"))
        self.assertEqual(new, sorted(f"{name}.tulle-new" for name in names))
        self.assertEqual(noted, [*names, f"{names[-1]}.tulle-new"])
        self.assertEqual(named, names)

    def test_a_failure_leaves_nothing(self):
        # A directory where a file should be.
        (self.prefix / "share/man/man1/tulle-old.1.tulle-new").mkdir(parents=True)
        (self.prefix / "share/man/man1/tulle-old.1.tulle-new/in-the-way").touch()
        done = self.script(self.first)
        self.assertEqual(done.returncode, 1, done)
        self.assertEqual([p for p in self.prefix.rglob("*") if p.is_file() and p.name != "in-the-way"], [], done)
        self.assertFalse((self.prefix / "bin").exists())

    @unittest.skipUnless(shutil.which("curl"), "needs curl")
    def test_a_release_comes_from_a_url(self):
        handler = functools.partial(Quiet, directory=str(self.first))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            self.refused(64, "anybody on the way", url, "--unsigned", key=False)
            self.refused(1, f"cannot get {url}/none/SHA256SUMS", f"{url}/none")
            done = self.script(f"{url}/")
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            server.shutdown()
        self.assertEqual(run(self.prefix / "bin/tulle").stdout, "one\n")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Pages(unittest.TestCase):
    """What `tulle-man` writes, where it has been built (make test builds it)."""

    def setUp(self):
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
        self.man, self.tulle = target / "tulle-man", target / "tulle"
        if not self.man.exists() or not self.tulle.exists():
            self.skipTest(f"there is no {self.man} or {self.tulle}: make test builds them")

    def test_completions_are_those_that_the_command_prints(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(run(self.man, directory).returncode, 0)
            for shell, name in (("bash", "tulle.bash"), ("fish", "tulle.fish"), ("zsh", "_tulle")):
                printed = run(self.tulle, "completions", shell).stdout
                self.assertEqual(Path(directory, "completions", name).read_text(), printed)

    def test_every_command_has_a_page_that_man_can_read(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(run(self.man, directory).returncode, 0)
            pages = {p.stem for p in Path(directory, "man1").iterdir()}
            helped = run(self.tulle, "--help").stdout
            commands = re.findall(r"^  ([a-z]+) ", helped.partition("Commands:")[2].partition("\n\n")[0], re.MULTILINE)
            self.assertGreater(len(commands), 20)
            for command in commands:
                if command != "help":
                    self.assertIn(f"tulle-{command}", pages)
            if not shutil.which("man"):
                self.skipTest("there is no man to read them with")
            for page in ("tulle", "tulle-up", "tulle-proxy", "tulle-envoy"):
                read = run("man", "--warnings", "--local-file", Path(directory, f"man1/{page}.1"),
                           env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
                self.assertEqual((read.returncode, read.stderr), (0, ""))
                self.assertIn(f"{page} - ", read.stdout)


if __name__ == "__main__":
    unittest.main()
