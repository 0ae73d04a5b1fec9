"""Tests that the suites can fail: their judgements, on wrong bytes."""

import pathlib
import struct
import tempfile
import unittest

import app
import corpus
import frames
import framing
import reader
import report
import websocket
from lab import Process, connect, wait_for


def got(data):
    """Events as the recording application would note them."""
    recorder = app.Recorder()
    try:
        with connect(recorder.port) as connection:
            connection.sendall(data)
            connection.settimeout(0.2)
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                pass
        wait_for("the recorder has seen the end", lambda: recorder.events)
        framing.settle(recorder)
        return recorder.take()
    finally:
        recorder.end()


class Framing(unittest.TestCase):
    def test_one_meaning_is_read(self):
        data = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n0\r\nb: c\r\n\r\nGET"
        message, used = reader.read(data)
        self.assertEqual((message.method, message.target), (b"POST", b"/a"))
        self.assertEqual(data[used:], b"GET")
        self.assertIsNone(reader.read(data[: used - 1]))

    def test_what_two_readers_take_differently_is_refused(self):
        head = b"POST / HTTP/1.1\r\nHost: a\r\n"
        for bad in [
            head + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            head + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
            head + b"Content-Length: 1\r\nContent_Length: 2\r\n\r\n",
            head + b"Content-Length: +1\r\n\r\n",
            head + b"Content-Length: 18446744073709551616\r\n\r\n",
            head + b"Transfer-Encoding: x, chunked\r\n\r\n",
            head + b"X: a\nContent-Length: 1\r\n\r\n",
            head + b"X: a\rb\r\n\r\n",
            head + b"X: a\0b\r\n\r\n",
            head + b"X : a\r\n\r\n",
            head + b" folded\r\n\r\n",
            head + b"Host: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
            b"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
            b"GET /\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        ]:
            with self.assertRaises(reader.Unclear, msg=bad):
                reader.read(bad)

    def test_verdicts(self):
        good = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
        case = lambda **how: corpus.Case("x", b"", **how)
        self.assertIsNone(framing.verdict(case(), got(good + corpus.HIDDEN)))
        self.assertIn("smuggled", framing.verdict(case(ambiguous=True), got(good + corpus.HIDDEN)))
        self.assertIn("smuggled", framing.verdict(case(most=1), got(good + corpus.HIDDEN)))
        self.assertIn("unclear", framing.verdict(case(), got(b"GET /a HTTP/1.1\nHost: a\r\n\r\n")))
        self.assertIn("forged", framing.verdict(case(forbidden=b"/a"), got(good)))
        # A request that was cut is none.
        self.assertIsNone(framing.verdict(case(most=0), got(good[:-2])))

    def test_the_corpus_is_whole(self):
        cases = corpus.cases()
        self.assertGreater(len(cases), 2500)
        self.assertEqual(len({case.bytes for case in cases}), len(cases))
        self.assertGreater(sum(case.ambiguous for case in cases), 150)
        self.assertEqual(len(corpus.HIDDEN), 52)


class Http2(unittest.TestCase):
    def test_frames_and_integers(self):
        self.assertEqual(frames.frame(frames.PING, 0, 0, b"12345678")[:9], b"\0\0\x08\x06\0\0\0\0\0")
        self.assertEqual(frames.reset(3), b"\0\0\x04\x03\0\0\0\0\x03" + struct.pack(">I", 8))
        # RFC 7541 C.1.
        self.assertEqual(frames.integer(10, 5, 0), b"\x0a")
        self.assertEqual(frames.integer(1337, 5, 0), b"\x1f\x9a\x0a")


class Measures(unittest.TestCase):
    def test_a_process_is_measured_and_ended(self):
        with tempfile.TemporaryDirectory() as directory:
            busy = Process("busy", ["python3", "-c", "while 1: pass"], directory)
            wait_for("CPU time is seen", lambda: busy.cpu() > 0)
            self.assertGreater(busy.rss(), 1 << 20)
            busy.end()
            self.assertIsNotNone(busy.child.returncode)


class WebSocket(unittest.TestCase):
    def test_only_what_the_direct_run_found_can_be_missed(self):
        for through, direct, same in [
            (["OK", "OK", 1002], ["OK", "OK", 1002], True),
            (["OK", "OK", 1002], ["OK", "OK", None], True),
            (["OK", "OK", None], ["OK", "OK", 1002], False),
            (["OK", "OK", 1000], ["OK", "OK", 1002], False),
            (["FAILED", "OK", 1002], ["OK", "OK", None], False),
        ]:
            self.assertEqual(websocket.is_as_direct(through, direct), same, (through, direct))


class Report(unittest.TestCase):
    def test_the_table_stands_between_its_marks(self):
        found = {"cases": 2, "bad": 1, "repaired": 0, "version": "9", "date": "2026-01-01"}
        with tempfile.TemporaryDirectory() as directory:
            page = pathlib.Path(directory) / "page.md"
            page.write_text(f"a\n{report.BEGIN}\nold\n{report.END}\nz\n")
            report.write(page, {"framing": {"nginx": found}})
            text = page.read_text()
        self.assertTrue(text.startswith("a\n") and text.endswith("\nz\n"))
        self.assertIn("| not measured | 1 bad of 2 | not measured |", text)
        self.assertNotIn("old", text)


if __name__ == "__main__":
    unittest.main()
