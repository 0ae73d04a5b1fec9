"""gRPC's interoperability client and server, of grpc-go: directly and through a pair of sidecars."""

import pathlib
import subprocess

import tools
from lab import connect, free_port, wait_for

# All that grpc-go's server answers as its client wants, directly: not those of load reports, of
# server ids, and of a cloud's credentials.
CASES = """
    empty_unary large_unary client_streaming server_streaming ping_pong empty_stream
    timeout_on_sleeping_server cancel_after_begin cancel_after_first_response
    status_code_and_message special_status_message custom_metadata unimplemented_method
    unimplemented_service
""".split()


def case(client, port, name):
    """Why it failed; none: it passed."""
    command = [client, "--server_host", "127.0.0.1", "--server_port", str(port), "--test_case", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no end within 60 s"
    said = (done.stdout + done.stderr).strip().splitlines()
    return None if done.returncode == 0 else (said or ["?"])[-1][:300]


def run(peer, lab, options):
    client = tools.fetched("grpc-interop")
    server = pathlib.Path(client).with_name("grpc-interop-server")
    port = free_port()
    here = lab.place("grpc")
    process = lab.start("grpc-server", [server, "--port", port], here)
    # It listens on all addresses, of both families.
    def answers():
        process.check()
        try:
            connect(port, 5).close()
            return True
        except OSError:
            return False

    wait_for("the gRPC server listens", answers)
    place = peer.pair(lab, port, takes="http2", gives="http2")
    failed = {}
    for name in CASES:
        if why := case(client, place.port, name):
            failed[name] = why
    return {
        "cases": len(CASES),
        "passed": len(CASES) - len(failed),
        "details": [f"{name}: {why}" for name, why in failed.items()],
    }
