"""The peers: each as one sidecar that takes a protocol in plaintext and hands it to an application,
or as a pair with mutual TLS between. Everything that can be asked of a peer's own documentation for
safety is on by default there or is switched on here; nothing is switched off.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

from lab import CLIENT, SERVER, Process, connect, free_port, spiffe, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["tulle", "nginx", "haproxy", "envoy"]


@dataclasses.dataclass
class Place:
    """Where a client connects, and who is behind it."""

    port: int
    processes: list[Process]
    # Where the server's sidecar takes mutual TLS, if there is one.
    inbound: int = 0

    def cpu(self):
        return sum(process.cpu() for process in self.processes)

    def rss(self):
        return sum(process.rss() for process in self.processes)


@dataclasses.dataclass
class Hop:
    """One sidecar."""

    role: str
    port: int
    next: int
    # Application's protocols before and behind it: `http1`, `http2`.
    takes: str = "http1"
    gives: str = "http1"
    # Mutual TLS before it, behind it.
    tls_in: bool = False
    tls_out: bool = False


class Peer:
    name = ""
    # Whether one hop is measured where a suite is about one hop; else there is always a pair.
    one_hop = True

    def program(self):
        raise NotImplementedError

    def version(self):
        raise NotImplementedError

    def start_hop(self, lab, hop):
        raise NotImplementedError

    def pair(self, lab, app, takes="http1", gives="http1"):
        """client → sidecar ═ mutual TLS ═ sidecar → application."""
        inbound, port = free_port(), free_port()
        # Between the sidecars: as the application speaks.
        server = Hop("server", inbound, app, takes=gives, gives=gives, tls_in=True)
        client = Hop("client", port, inbound, takes=takes, gives=gives, tls_out=True)
        processes = [self.start_hop(lab, hop) for hop in (server, client)]
        return Place(port, processes, inbound)

    def front(self, lab, app, takes="http1", gives="http1"):
        """The smallest thing that takes a client's plaintext and gives it to the application."""
        if not self.one_hop:
            return self.pair(lab, app, takes, gives)
        port = free_port()
        hop = Hop("front", port, app, takes=takes, gives=gives)
        return Place(port, [self.start_hop(lab, hop)])

    def server(self, lab, app):
        """The server's sidecar alone; clients bring their own certificates."""
        inbound = free_port()
        hop = Hop("server", inbound, app, tls_in=True)
        return Place(0, [self.start_hop(lab, hop)], inbound)


def first_line(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[0]


class Direct:
    """No proxy."""

    name = "direct"

    def program(self):
        return True

    def version(self):
        return "–"

    def front(self, lab, app, takes="http1", gives="http1"):
        return Place(app, [])

    pair = front


class Tulle(Peer):
    name = "tulle"
    one_hop = False

    def program(self):
        path = pathlib.Path(os.environ.get("TULLE_PROXY", ROOT / "target/release/tulle-proxy"))
        return path if path.exists() else None

    def version(self):
        version = first_line(self.program(), "--version").split()[-1]
        commit = first_line("git", "-C", ROOT, "rev-parse", "--short", "HEAD")
        return f"{version} ({commit})"

    def protocol(self, name):
        return {"http1": "http", "http2": "http2"}[name]

    def start_hop(self, lab, hop):
        name = SERVER if hop.role == "server" else CLIENT
        certificate, key = lab.files[name]
        admin, metrics = free_port(), free_port()
        config = {
            "identity": spiffe(name),
            "workers": 1,
            "admin": f"127.0.0.1:{admin}",
            "metrics": f"127.0.0.1:{metrics}",
            "certificates": {
                "certificate": str(certificate),
                "key": str(key),
                "trustBundle": str(lab.authority.certificate),
            },
            "mesh": {},
        }
        address = f"127.0.0.1:{hop.port}"
        if hop.role == "server":
            config["listeners"] = [{"address": address, "kind": "inboundPort", "port": 9080}]
            target = {"port": 9080, "target": f"127.0.0.1:{hop.next}"}
            config["inbound"] = {
                "service": SERVER,
                "ports": [{**target, "protocol": self.protocol(hop.gives)}],
                "policy": {"rules": [{"name": "client", "sources": [spiffe(CLIENT)]}]},
            }
        else:
            listener = {"address": address, "kind": "upstream", "service": SERVER, "port": 9080}
            config["listeners"] = [listener]
            port = {
                "port": 9080,
                # The client may use another protocol than the application.
                "protocol": self.protocol(hop.takes),
                "endpoints": [{"address": f"127.0.0.1:{hop.next}"}],
            }
            service = {"name": SERVER, "hostnames": [SERVER], "identities": [spiffe(SERVER)]}
            config["services"] = [{**service, "ports": [port]}]
        place = lab.place(f"tulle-{hop.role}")
        file = place / "config.yaml"
        file.write_text(json.dumps(config, indent=1))
        process = lab.start("tulle", [self.program(), "--config", file], place)

        def ready():
            process.check()
            try:
                with connect(admin, 5) as connection:
                    connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return connection.recv(100).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

        wait_for("tulle is ready", ready)
        return process


class Nginx(Peer):
    name = "nginx"

    def program(self):
        return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

    def version(self):
        return first_line(self.program(), "-v").rsplit("/", 1)[-1]

    def start_hop(self, lab, hop):
        place = lab.place(f"nginx-{hop.role}")
        files = lambda name: [*lab.files[name], lab.authority.certificate]
        listen = f"listen 127.0.0.1:{hop.port}"
        listen += " ssl" if hop.tls_in else ""
        listen += " http2" if hop.takes == "http2" else ""
        server = [listen]
        if hop.tls_in:
            certificate, key, roots = files(SERVER)
            server += [
                f"ssl_certificate {certificate}",
                f"ssl_certificate_key {key}",
                f"ssl_client_certificate {roots}",
                "ssl_verify_client on",
                "ssl_protocols TLSv1.3",
            ]
        # nginx speaks HTTP/2 to upstreams only for gRPC.
        kind = "grpc" if hop.gives == "http2" else "proxy"
        scheme = {"grpc": "grpc", "proxy": "http"}[kind] + ("s" if hop.tls_out else "")
        location = [f"{kind}_pass {scheme}://next"]
        location += [f"{kind}_set_header Host $http_host"]
        if kind == "proxy":
            location += [
                "proxy_http_version 1.1",
                "proxy_set_header Upgrade $http_upgrade",
                "proxy_set_header Connection $connection_upgrade",
            ]
        # Told by who knows it, or by nobody.
        caller = 'Subject="$ssl_client_s_dn"' if hop.tls_in else ""
        location += [f"{kind}_set_header X-Forwarded-Client-Cert '{caller}'"]
        if hop.tls_out:
            certificate, key, roots = files(CLIENT)
            location += [
                f"{kind}_ssl_certificate {certificate}",
                f"{kind}_ssl_certificate_key {key}",
                f"{kind}_ssl_trusted_certificate {roots}",
                f"{kind}_ssl_protocols TLSv1.3",
                f"{kind}_ssl_verify on",
                f"{kind}_ssl_name {SERVER}",
            ]
        lines = lambda statements, indent: "".join(f"{indent}{s};\n" for s in statements)
        # Callers are compared by their subject: a SPIFFE id is out of nginx's reach.
        refuse = f'if ($ssl_client_s_dn != "CN={CLIENT}") {{ return 403; }}\n' if hop.tls_in else ""
        temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        text = f"""{"user root;" if os.geteuid() == 0 else ""}
daemon off;
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
{lines([f"{name}_temp_path {name}" for name in temporary], "    ")}
    client_max_body_size 0;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream next {{ server 127.0.0.1:{hop.next}; keepalive 64; }}
    server {{
{lines(server, "        ")}        {refuse}        location / {{
{lines(location, "            ")}        }}
    }}
}}
"""
        file = place / "nginx.conf"
        file.write_text(text)
        command = [self.program(), "-e", "stderr", "-p", place, "-c", file]
        return lab.start("nginx", command, place, hop.port)


class HaProxy(Peer):
    name = "haproxy"

    def program(self):
        return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

    def version(self):
        return first_line(self.program(), "-v").split()[2].split("-")[0]

    def start_hop(self, lab, hop):
        place = lab.place(f"haproxy-{hop.role}")
        joined = {}
        for name, (certificate, key) in lab.files.items():
            joined[name] = place / f"{name}.pem"
            joined[name].write_text(certificate.read_text() + key.read_text())
        roots = lab.authority.certificate
        bind, choose = f"bind 127.0.0.1:{hop.port}", "default_backend app"
        if hop.tls_in:
            bind += f" ssl crt {joined[SERVER]} ca-file {roots} verify required"
            bind += " alpn h2" if hop.takes == "http2" else ""
            # HAProxy cannot read a SPIFFE id, so the common name decides.
            choose = f"use_backend app if {{ ssl_c_used }} {{ ssl_c_verify 0 }} {{ ssl_c_s_dn(cn) -m str {CLIENT} }}"
        elif hop.takes == "http2":
            bind += " proto h2"
        told = 'set-header X-Forwarded-Client-Cert "Subject=CN=%[ssl_c_s_dn(cn)]"'
        told = told if hop.tls_in else "del-header X-Forwarded-Client-Cert"
        to = f"server next 127.0.0.1:{hop.next}"
        if hop.tls_out:
            to += f" ssl crt {joined[CLIENT]} ca-file {roots} verify required verifyhost {SERVER}"
            to += " alpn h2" if hop.gives == "http2" else ""
        elif hop.gives == "http2":
            to += " proto h2"
        text = f"""global
    nbthread 1
    maxconn 4096
    no strict-limits
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout tunnel 60s
    timeout http-request 10s
    option http-restrict-req-hdr-names reject
    http-reuse safe
frontend in
    {bind}
    http-request {told}
    {choose}
    default_backend {"refused" if hop.tls_in else "app"}
backend app
    {to}
backend refused
    http-request deny deny_status 403
"""
        file = place / "haproxy.cfg"
        file.write_text(text)
        return lab.start("haproxy", [self.program(), "-db", "-f", file], place, hop.port)


class Envoy(Peer):
    name = "envoy"

    def program(self):
        if named := os.environ.get("TULLE_ENVOY"):
            return named
        pattern = "lib/python*/site-packages/envoy/_bin/envoy"
        return next(iter((ROOT / "build/envoy-venv").glob(pattern)), None)

    def version(self):
        return first_line(self.program(), "--version").split("version: ")[1].split("/")[1]

    def start_hop(self, lab, hop):
        place = lab.place(f"envoy-{hop.role}")
        address = lambda port: {"socket_address": {"address": "127.0.0.1", "port_value": port}}
        typed = lambda name, fields: {"@type": f"type.googleapis.com/envoy.extensions.{name}", **fields}

        def tls(own, peer):
            certificate, key = lab.files[own]
            return {
                "tls_certificates": [
                    {
                        "certificate_chain": {"filename": str(certificate)},
                        "private_key": {"filename": str(key)},
                    }
                ],
                "validation_context": {
                    "trusted_ca": {"filename": str(lab.authority.certificate)},
                    "match_typed_subject_alt_names": [
                        {"san_type": "URI", "matcher": {"exact": spiffe(peer)}}
                    ],
                },
                # An upstream's highest is TLS 1.2 unless told.
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "alpn_protocols": ["h2", "http/1.1"] if hop.takes == "http2" else ["http/1.1"],
            }

        def socket(side, own, peer):
            kind = {"downstream": "Downstream", "upstream": "Upstream"}[side]
            fields = {"common_tls_context": tls(own, peer)}
            if side == "downstream":
                fields["require_client_certificate"] = True
            config = typed(f"transport_sockets.tls.v3.{kind}TlsContext", fields)
            return {"name": "envoy.transport_sockets.tls", "typed_config": config}

        manager = {
            "stat_prefix": "in",
            "codec_type": "HTTP2" if hop.takes == "http2" else "HTTP1",
            "use_remote_address": True,
            "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
            "forward_client_cert_details": "SANITIZE_SET" if hop.tls_in else "SANITIZE",
            "set_current_client_cert_details": {"uri": True},
            "upgrade_configs": [{"upgrade_type": "websocket"}],
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "routes": [
                            {
                                "match": {"prefix": "/"},
                                "route": {"cluster": "next", "timeout": "0s"},
                            }
                        ],
                    }
                ]
            },
            "http_filters": [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": typed("filters.http.router.v3.Router", {}),
                }
            ],
        }
        path = "filters.network.http_connection_manager.v3.HttpConnectionManager"
        chain = {
            "filters": [
                {
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": typed(path, manager),
                }
            ]
        }
        if hop.tls_in:
            chain["transport_socket"] = socket("downstream", SERVER, CLIENT)
        protocol = "http2_protocol_options" if hop.gives == "http2" else "http_protocol_options"
        cluster = {
            "name": "next",
            "connect_timeout": "5s",
            "load_assignment": {
                "cluster_name": "next",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(hop.next)}}]}],
            },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                    "upstreams.http.v3.HttpProtocolOptions",
                    {"explicit_http_config": {protocol: {}}},
                )
            },
        }
        if hop.tls_out:
            cluster["transport_socket"] = socket("upstream", CLIENT, SERVER)
        config = {
            "static_resources": {
                "listeners": [
                    {"name": "in", "address": address(hop.port), "filter_chains": [chain]}
                ],
                "clusters": [cluster],
            }
        }
        file = place / "envoy.json"
        file.write_text(json.dumps(config, indent=1))
        command = [self.program(), "-c", file, "--concurrency", "1", "--log-level", "error"]
        command += ["--disable-hot-restart"]
        return lab.start("envoy", command, place, hop.port)


ALL = {peer.name: peer for peer in (Direct(), Tulle(), Nginx(), HaProxy(), Envoy())}
