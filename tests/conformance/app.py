"""Applications: what a proxy's upstream is in these suites."""

import socket
import threading
import time

import reader


class Server:
    """Accepts on a port of its own; each connection has a thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.guarded, args=[connection], daemon=True).start()

    def guarded(self, connection):
        with connection:
            try:
                self.serve(connection)
            except OSError:
                pass

    def serve(self, connection):
        raise NotImplementedError

    def end(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()


class Recorder(Server):
    """Notes what it gets, read strictly, with the very bytes; answers 200 to each request."""

    def __init__(self):
        self.lock = threading.Lock()
        self.events = []
        self.busy = time.monotonic()
        super().__init__()

    def note(self, event):
        with self.lock:
            self.events.append(event)

    def take(self):
        """All since the last call: ("request", message), ("unclear", why, bytes), ("cut", bytes)."""
        with self.lock:
            events, self.events = self.events, []
        return events

    def serve(self, connection):
        data = b""
        while True:
            try:
                found = reader.read(data)
            except reader.Unclear as why:
                self.note(("unclear", str(why), data))
                connection.sendall(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            if found is None:
                try:
                    more = connection.recv(1 << 20)
                except OSError:
                    more = b""
                self.busy = time.monotonic()
                if not more:
                    if data:
                        self.note(("cut", data))
                    return
                data += more
                continue
            message, used = found
            self.note(("request", message, data[:used]))
            data = data[used:]
            # Neither tunnels nor upgrades are to be had here.
            status = b"405 No" if message.method == b"CONNECT" else b"200 OK"
            connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")


class Http(Server):
    """Takes any HTTP/1.1 request, answers it with a few bytes after its body has come."""

    BODY = b"hello from the application\n"

    def serve(self, connection):
        data = b""
        while True:
            try:
                found = reader.read(data)
            except reader.Unclear:
                return
            if found is None:
                more = connection.recv(1 << 20)
                if not more:
                    return
                data += more
                continue
            message, used = found
            data = data[used:]
            body = b"" if message.method == b"HEAD" else self.BODY
            text = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(self.BODY)}\r\n\r\n"
            connection.sendall(text.encode() + body)
