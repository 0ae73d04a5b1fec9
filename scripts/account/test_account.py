"""The account's own reckoning: python3 -m unittest discover -s scripts/account"""

import pathlib
import struct
import tempfile
import unittest

import flame
import functions
import wire

# `main` calls `parse` twice and spends 5 itself; `parse` spends 30 in a file of the standard
# library that was inlined and 10 of its own; `memory::trim` runs by the clock.
CALLGRIND = """\
version: 1
positions: line
events: Ir
summary: 52

fl=(1) crates/http1/src/request.rs
fn=(1) tulle_http1::request::parse
12 10
fi=(2) /rustc/x/library/core/src/slice.rs
+3 30
fe=(1)

fl=(3) src/main.rs
fn=(2) main
1 5
cfi=(1)
cfn=(1)
calls=2 12
* 40
fn=(3) tulle_net::memory::trim
9 7
"""


def profile(text):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        return functions.Profile(file.name)


class Functions(unittest.TestCase):
    def test_a_profile_is_read_with_compressed_names_and_relative_lines(self):
        found = profile(CALLGRIND)
        self.assertEqual(found.total, 45)
        self.assertEqual(found.functions(), {"tulle_http1::request::parse": 40, "main": 5})
        self.assertEqual(found.inclusive["main"], 45)
        self.assertEqual(found.called["tulle_http1::request::parse"], 2)

    def test_what_was_inlined_from_the_library_belongs_to_its_function(self):
        self.assertEqual(profile(CALLGRIND).parts()["HTTP: parse a head"], 40)

    def test_names_are_short_enough_for_a_table(self):
        name = "<tulle_proxy::mux::Driver<F> as core::future::future::Future>::poll'2"
        self.assertEqual(functions.short(name), "proxy::mux::DriverF::poll")


def record(length):
    return struct.pack("!BHH", 23, 0x0303, length) + b"x" * length


class Wire(unittest.TestCase):
    def test_records_are_counted_wherever_segments_end(self):
        stream = record(10) + record(0) + record(300)
        for size in range(1, len(stream) + 1):
            state = [0, 0]
            segments = [stream[at : at + size] for at in range(0, len(stream), size)]
            found = sum(wire.records(state, segment) for segment in segments)
            self.assertEqual(found, 3, size)
            self.assertEqual(state[1], 0, size)

    def test_only_what_came_after_the_connections_were_made_counts(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "capture")
            segments = [
                (1, 5000, 443, 100, 2, b""),
                (1, 5000, 443, 101, 24, record(50)),
                (3, 5000, 443, 156, 24, record(60) + record(70)),
                (3, 5000, 443, 156, 24, record(60) + record(70)),
            ]
            file.write_bytes(capture(segments))
            cells = wire.account(file, 443, 2, 2)
        self.assertEqual(cells[:4], ["70", "0", "1.00", "0.00"])
        self.assertEqual(cells[5], "1.00")


def capture(segments):
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    for when, source, destination, sequence, flags, payload in segments:
        tcp = struct.pack("!HHIIBBHHH", source, destination, sequence, 0, 5 << 4, flags, 0, 0, 0)
        ip = struct.pack("!BBHIBBH8s", 0x45, 0, 40 + len(payload), 0, 64, 6, 0, b"")
        frame = b"\0" * 14 + ip + tcp + payload
        data += struct.pack("<IIII", when, 0, len(frame), len(frame)) + frame
    return data


class Flame(unittest.TestCase):
    def test_a_stack_is_shown_from_the_task_to_the_kernel(self):
        frames = [
            ("block_on", "tulle-proxy"),
            ("tokio::runtime::task::harness::Harness<T,S>::poll", "tulle-proxy"),
            ("tulle_proxy::relay::Relay::poll", "tulle-proxy"),
            ("__send", "libc.so.6"),
            ("entry_SYSCALL_64_after_hwframe", "[kernel.kallsyms]"),
            ("__x64_sys_sendto", "[kernel.kallsyms]"),
            ("tcp_sendmsg", "[kernel.kallsyms]"),
        ]
        shown = [("relay::Relay::poll", "Tulle"), ("__send", "other"), ("tcp_sendmsg", "kernel")]
        self.assertEqual(flame.shown(frames), shown)
        self.assertEqual(flame.asked_for(frames), "send")
        self.assertEqual(flame.asked_for(frames[:3]), "user space")

    def test_a_label_fits_its_frame(self):
        name = "tokio::net::tcp::stream::TcpStream::poll_write_priv"
        self.assertEqual(flame.label(name, "4%", 60), f"{name} 4%")
        self.assertEqual(flame.label(name, "4%", 30), "TcpStream::poll_write_priv")
        self.assertEqual(flame.label(name, "4%", 6), "poll_…")


if __name__ == "__main__":
    unittest.main()
