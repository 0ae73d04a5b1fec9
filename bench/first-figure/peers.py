"""The peers: how a pair of each is configured and started, and how its mutual TLS is proven.

All run one worker, TLS 1.3 with certificates verified both ways, pooled keep-alive to both apps
and no access log. What differs is said in README.md.
"""

import http.client
import json
import os
import re
import ssl

from pki import TRUST_DOMAIN, spiffe

CLIENT, SERVER, STRANGER = "client", "echo", "stranger"


class Ports:
    """Loopback ports, counted from a base."""

    def __init__(self, base):
        self.app, self.client, self.server = base, base + 1, base + 2
        self.client_admin, self.server_admin = base + 3, base + 4
        self.client_metrics, self.server_metrics = base + 5, base + 6


class Failed(Exception):
    """A pair did not prove what it has to."""


def require(condition, message):
    if not condition:
        raise Failed(message)


def get(port, path="/", headers=None):
    """(status, body) of a GET to a loopback port, without a proxy from the environment."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def direct_status(port, directory, certificate=None):
    """What someone gets who goes past the client sidecar: a status, or the name of the error.

    With a certificate: TLS with it, the server's name not being ours to check. Without: plaintext.
    """
    try:
        if certificate is None:
            return get(port)[0]
        context = ssl.create_default_context(cafile=os.path.join(directory, "ca.crt"))
        context.check_hostname = False
        context.set_alpn_protocols(["http/1.1"])
        path = os.path.join(directory, certificate)
        context.load_cert_chain(f"{path}.crt", f"{path}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
        connection.request("GET", "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


class Peer:
    """One way to get from the client to the server."""

    name = ""
    version = ""

    def __init__(self, options, directory, ports):
        self.options, self.directory, self.ports = options, directory, ports

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def entry(self):
        """The port the load goes to."""
        return self.ports.client

    def commands(self):
        """{role: command}; empty without sidecars."""
        raise NotImplementedError

    def prove(self, requests):
        """After `requests` answered requests: raises Failed unless every one was mutual TLS with
        the right identities. Returns the evidence as text."""
        raise NotImplementedError

    def prove_refusals(self):
        """Plaintext and the wrong identity must not get past the server's sidecar."""
        plain = direct_status(self.ports.server, self.directory)
        require(plain != 200, f"{self.name}: plaintext reached the server")
        wrong = direct_status(self.ports.server, self.directory, STRANGER)
        require(wrong != 200, f"{self.name}: the identity {spiffe(STRANGER)} reached the server")
        return f"plaintext: {plain}; wrong identity: {wrong}"


class Direct(Peer):
    """No sidecars: client to server in plaintext."""

    name = "none"

    def entry(self):
        return self.ports.app

    def commands(self):
        return {}

    def prove(self, requests):
        return "no mutual TLS: this is the baseline"

    def prove_refusals(self):
        return ""


class Tulle(Peer):
    """Two tulle-proxy, each with a file for what it knows."""

    name = "tulle"

    def commands(self):
        binary, ports = self.options.tulle_proxy, self.ports
        client = self.config(CLIENT, ports.client_admin, ports.client_metrics) | {
            "listeners": [
                {"address": f"127.0.0.1:{ports.client}", "kind": "upstream", "service": SERVER, "port": 80}
            ],
            "services": [
                {
                    "name": SERVER,
                    "identities": [spiffe(SERVER)],
                    "ports": [
                        {
                            "port": 80,
                            "protocol": "http",
                            "endpoints": [{"address": f"127.0.0.1:{ports.server}", "mutualTls": True}],
                        }
                    ],
                }
            ],
        }
        server = self.config(SERVER, ports.server_admin, ports.server_metrics) | {
            "listeners": [{"address": f"127.0.0.1:{ports.server}", "kind": "inboundPort", "port": 80}],
            "inbound": {
                "service": SERVER,
                "ports": [{"port": 80, "protocol": "http", "target": f"127.0.0.1:{ports.app}"}],
                "policy": {"rules": [{"name": "TrafficTarget/client-to-echo", "sources": [spiffe(CLIENT)]}]},
            },
        }
        # JSON is YAML.
        return {
            role: [binary, "--config", self.write(f"tulle-{role}.yaml", json.dumps(config, indent=2))]
            for role, config in (("client", client), ("server", server))
        }

    def config(self, name, admin, metrics):
        return {
            "identity": spiffe(name),
            "certificates": {
                "certificate": self.path(f"{name}.crt"),
                "key": self.path(f"{name}.key"),
                "trustBundle": self.path("ca.crt"),
            },
            "workers": 1,
            "admin": f"127.0.0.1:{admin}",
            "metrics": f"127.0.0.1:{metrics}",
            "mesh": {"trustDomain": TRUST_DOMAIN, "strictMtls": True},
        }

    def prove(self, requests):
        status, text = get(self.ports.server_metrics, "/metrics")
        require(status == 200, f"tulle: the server sidecar's metrics answered {status}")
        right = {
            "connection_security_policy": "mutual_tls",
            "source_principal": spiffe(CLIENT),
            "destination_principal": spiffe(SERVER),
        }
        good = other = 0
        for line in text.splitlines():
            found = re.fullmatch(r"istio_requests_total\{(.*)\} ([0-9.e+]+)", line)
            if not found:
                continue
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[1]))
            if all(labels.get(key) == value for key, value in right.items()):
                good += float(found[2])
            else:
                other += float(found[2])
        require(good >= requests, f"tulle: {requests} requests answered, {good:.0f} of them known as mutual TLS")
        require(other == 0, f"tulle: {other:.0f} requests without mutual TLS from {spiffe(CLIENT)}")
        return f"istio_requests_total {good:.0f} mutual_tls {spiffe(CLIENT)} -> {spiffe(SERVER)}"


class Envoy(Peer):
    """Envoy as lean as it gets with identities checked: connection manager, RBAC, router."""

    name = "envoy"

    def commands(self):
        # `--disable-hot-restart` spares the shared memory that two Envoys on a host would fight for.
        return {
            role: [
                self.options.envoy, "-c", self.write(f"envoy-{role}.json", json.dumps(config, indent=2)),
                "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn",
            ]
            for role, config in (("client", self.client_config()), ("server", self.server_config()))
        }

    def client_config(self):
        tls = self.tls("UpstreamTlsContext", CLIENT, SERVER, common_only=True)
        return self.config(
            self.ports.client_admin,
            self.listener("outbound", self.ports.client, filters=[]),
            self.cluster(self.ports.server, tls),
        )

    def server_config(self):
        tls = self.tls("DownstreamTlsContext", SERVER, CLIENT)
        rbac = {
            "name": "envoy.filters.http.rbac",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
                "rules": {
                    "action": "ALLOW",
                    "policies": {
                        "client-to-echo": {
                            "permissions": [{"any": True}],
                            "principals": [{"authenticated": {"principal_name": {"exact": spiffe(CLIENT)}}}],
                        }
                    },
                },
            },
        }
        return self.config(
            self.ports.server_admin,
            self.listener("inbound", self.ports.server, filters=[rbac], tls=tls),
            self.cluster(self.ports.app),
        )

    def tls(self, kind, own, peer, common_only=False):
        context = {
            "@type": f"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{kind}",
            "common_tls_context": {
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "tls_certificates": [
                    {
                        "certificate_chain": {"filename": self.path(f"{own}.crt")},
                        "private_key": {"filename": self.path(f"{own}.key")},
                    }
                ],
                "validation_context": {
                    "trusted_ca": {"filename": self.path("ca.crt")},
                    "match_typed_subject_alt_names": [{"san_type": "URI", "matcher": {"exact": spiffe(peer)}}],
                },
            },
        }
        if common_only:
            return {"name": "envoy.transport_sockets.tls", "typed_config": context}
        context["require_client_certificate"] = True
        # Any identity of the CA may connect, as in a mesh; who may call is RBAC's question.
        del context["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
        return {"name": "envoy.transport_sockets.tls", "typed_config": context}

    def listener(self, name, port, filters, tls=None):
        manager = {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": name,
            "codec_type": "HTTP1",
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "next"}}],
                    }
                ]
            },
            "http_filters": filters
            + [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                }
            ],
        }
        if tls:
            manager["forward_client_cert_details"] = "SANITIZE_SET"
            manager["set_current_client_cert_details"] = {"uri": True}
        chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        if tls:
            chain["transport_socket"] = tls
        return {"name": name, "address": self.address(port), "filter_chains": [chain]}

    def cluster(self, port, tls=None):
        cluster = {
            "name": "next",
            "type": "STATIC",
            "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096}]},
            "load_assignment": {
                "cluster_name": "next",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": self.address(port)}}]}],
            },
        }
        if tls:
            cluster["transport_socket"] = tls
        return cluster

    @staticmethod
    def address(port):
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    def config(self, admin, listener, cluster):
        return {
            "admin": {"address": self.address(admin)},
            "static_resources": {"listeners": [listener], "clusters": [cluster]},
        }

    def stats(self, port):
        status, text = get(port, "/stats")
        require(status == 200, f"envoy: admin answered {status}")
        stats = {}
        for line in text.splitlines():
            name, _, value = line.partition(": ")
            if value.isdigit():
                stats[name] = int(value)
        return stats

    def prove(self, requests):
        server = self.stats(self.ports.server_admin)
        client = self.stats(self.ports.client_admin)
        ssl_prefix = f"listener.127.0.0.1_{self.ports.server}.ssl."
        handshakes = server.get(ssl_prefix + "handshake", 0)
        allowed = server.get("http.inbound.rbac.allowed", 0)
        denied = server.get("http.inbound.rbac.denied", 0)
        require(handshakes > 0, "envoy: no TLS handshake at the server's sidecar")
        require(client.get("cluster.next.ssl.handshake", 0) > 0, "envoy: no TLS handshake at the client's sidecar")
        require(server.get(ssl_prefix + "no_certificate", 0) == 0, "envoy: a connection without a certificate")
        require(allowed >= requests, f"envoy: {requests} requests answered, RBAC allowed {allowed}")
        require(denied == 0, f"envoy: RBAC denied {denied} requests")
        return f"ssl.handshake {handshakes}, no_certificate 0, rbac.allowed {allowed} for {spiffe(CLIENT)}"


class Nginx(Peer):
    """nginx as a sidecar: certificates verified both ways, the client's by its subject.

    It cannot match a SPIFFE id, so common names stand in for identities.
    """

    name = "nginx"

    def commands(self):
        commands = {}
        for role, server in (("client", self.client_server()), ("server", self.server_server())):
            file = self.write(f"nginx-{role}.conf", nginx_config(f"nginx-{role}", server))
            commands[role] = ["nginx", "-e", "stderr", "-p", self.directory, "-c", file]
        return commands

    def client_server(self):
        return f"""
    upstream next {{ server 127.0.0.1:{self.ports.server}; {UPSTREAM_KEEP_ALIVE} }}
    server {{
        listen 127.0.0.1:{self.ports.client} backlog=4096;
        location / {{
            proxy_pass https://next;
            {PROXY}
            proxy_ssl_certificate {self.path(CLIENT)}.crt;
            proxy_ssl_certificate_key {self.path(CLIENT)}.key;
            proxy_ssl_trusted_certificate {self.path("ca.crt")};
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_verify on;
            proxy_ssl_name {SERVER};
        }}
    }}"""

    def server_server(self):
        return f"""
    upstream next {{ server 127.0.0.1:{self.ports.app}; {UPSTREAM_KEEP_ALIVE} }}
    server {{
        listen 127.0.0.1:{self.ports.server} ssl backlog=4096;
        ssl_certificate {self.path(SERVER)}.crt;
        ssl_certificate_key {self.path(SERVER)}.key;
        ssl_client_certificate {self.path("ca.crt")};
        ssl_verify_client on;
        ssl_protocols TLSv1.3;
        if ($ssl_client_s_dn != "CN={CLIENT}") {{ return 403; }}
        location = /tls-peer {{ return 200 "$ssl_client_verify $ssl_client_s_dn $ssl_protocol"; }}
        location / {{ proxy_pass http://next; {PROXY} }}
    }}"""

    def prove(self, requests):
        status, peer = get(self.ports.client, "/tls-peer")
        expected = f"SUCCESS CN={CLIENT} TLSv1.3"
        require((status, peer) == (200, expected), f"nginx: the server's sidecar saw {status} {peer!r}")
        return peer


UPSTREAM_KEEP_ALIVE = "keepalive 512; keepalive_requests 1000000000; keepalive_timeout 600s;"
PROXY = """proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
            proxy_set_header X-Request-Id $request_id;"""


def nginx_config(name, servers):
    """A configuration with one worker and no access log, everything in its own directory."""
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "\n    ".join(
        f"{kind}_temp_path {name}-{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user}
daemon off;
worker_processes 1;
pid {name}.pid;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    {temporary}
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    tcp_nodelay on;
{servers}
}}
"""


def app_config(ports):
    """The server behind the sidecars: a 200-byte JSON from memory."""
    body = json.dumps({"id": "2099a055-1e21-46ef-825e-9e0de93554ea", "rating": 5, "text": ""})
    body = json.dumps({"id": "2099a055-1e21-46ef-825e-9e0de93554ea", "rating": 5, "text": "x" * (200 - len(body))})
    return nginx_config(
        "app",
        f"""
    server {{
        listen 127.0.0.1:{ports.app} backlog=4096;
        default_type application/json;
        location = /caller {{ return 200 "$http_x_forwarded_client_cert"; }}
        location / {{ return 200 '{body}'; }}
    }}""",
    )


def prove_caller(peer):
    """The app must be told who called: both Envoy and Tulle set x-forwarded-client-cert."""
    forged = {"x-forwarded-client-cert": f"URI={spiffe(STRANGER)}"}
    status, caller = get(peer.entry(), "/caller", forged)
    require(status == 200, f"{peer.name}: /caller answered {status}")
    require(f"URI={spiffe(CLIENT)}" in caller.replace('"', ""), f"{peer.name}: the app was told the caller is {caller!r}")
    require(spiffe(STRANGER) not in caller, f"{peer.name}: a forged identity reached the app: {caller!r}")


PEERS = {peer.name: peer for peer in (Tulle, Envoy, Nginx, Direct)}
