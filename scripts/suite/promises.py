"""The promises of README and docs that only the long tier guards: what is promised, and on which page."""

import re

from cargo_tests import ROOT

OF = {
    "tests/kube/bench": ("both studies run between pods, each sample with proof of mutual TLS", "docs/benchmarks.md"),
    "tests/kube/cni": ("pods without a privilege are redirected by their node, and a node is left as it was",
                       "docs/kubernetes/cni.md"),
    "tests/kube/calls": ("ports that nobody declares, and what a Service says of its endpoints", "docs/kubernetes.md"),
    "tests/kube/gateway_api_gateways": ("Gateway API conformance of gateways", "docs/conformance.md"),
    "tests/kube/gateway_api_mesh": ("Gateway API conformance of the mesh", "docs/conformance.md"),
    "tests/kube/gateway_life": ("changes of a Gateway lose no request", "docs/kubernetes/gateways.md"),
    "tests/kube/helm": ("the charts install what `tulle install` prints", "docs/kubernetes/install.md"),
    "tests/kube/images": ("an image that a node cannot get is named at once, at installation and by `tulle check`",
                          "docs/kubernetes/install.md"),
    "tests/kube/ingress": ("Ingresses are served by Kubernetes' rules", "docs/kubernetes/ingress.md"),
    "tests/kube/ipv6": ("the mesh works in a cluster of IPv6 alone", "docs/kubernetes.md"),
    "tests/kube/issuers": ("cert-manager signs workloads' certificates", "docs/certificates.md"),
    "tests/kube/joining": ("a namespace joins while it is called, and becomes strict by a command",
                           "docs/kubernetes.md"),
    "tests/kube/life": ("restarts of every component of a node lose no request", "docs/kubernetes.md"),
    "tests/kube/node_loss": ("a node that is lost for 20 s costs no request where a policy says so, and comes back by itself",
                             "docs/kubernetes.md"),
    "tests/kube/nodes": ("mutual TLS, zones, ports of nodes and Gateways across two nodes", "docs/kubernetes.md"),
    "tests/kube/nodes_cni": ("the CNI plugin on each of two nodes", "docs/kubernetes/cni.md"),
    "tests/kube/console": ("the console opens for whoever may read Meshes, and for nobody else", "docs/console.md"),
    "tests/kube/osm": ("Open Service Mesh runs in the test cluster, so that studies between pods can measure it",
                       "docs/benchmarks.md"),
    "tests/kube/peer_istio": ("Istio is measured beside Tulle, with mutual TLS between its sidecars", "docs/benchmarks.md"),
    "tests/kube/quick_start": ("the quick start, policies, strictness and removal, as the page has them, cost no request",
                               "docs/kubernetes.md"),
    "tests/kube/rotation": ("the root is replaced under load without a lost request", "docs/certificates.md"),
    "tests/kube/scale": ("memory of the controller and time of a change in a large mesh", "docs/kubernetes.md"),
    "tests/kube/settings": ("what a Mesh and annotations say of sidecars holds", "docs/kubernetes.md"),
    "tests/kube/smi_metrics": ("SMI's metrics API", "docs/kubernetes/monitoring.md"),
    "tests/kube/throttled": ("an API server that answers 429 stops nothing that works", "docs/kubernetes.md"),
    "tests/kube/told": ("`tulle check` names what is wrong with objects, keys and certificates",
                        "docs/kubernetes/checks.md"),
    "tests/kube/trust": ("a revoked identity is refused, and a flood leaves the controller within its limits",
                         "SECURITY.md"),
    "tests/kube/upgrade": ("sidecars of the release before work, and are updated under load", "docs/kubernetes/install.md"),
    "conformance": ("scores beside nginx, HAProxy and Envoy", "docs/conformance.md"),
    "bench": ("figures beside the peers", "docs/benchmarks.md"),
    "study-quick": ("figures between pods, beside the real Open Service Mesh and Istio", "docs/benchmarks.md"),
    "images": ("static images for amd64, arm64 and armv7", "docs/kubernetes/install.md"),
    "test-memory": ("a mesh that nobody calls keeps within 60 MiB and 0.5 % of a core", "docs/machines.md"),
    "test-skew": ("programs of the version before work with today's on a host, and a package is upgraded while its mesh runs",
                  "docs/install.md"),
    "test-init": ("a mesh starts with its machine under systemd and OpenRC without a network, comes back after a kill and a power cut, "
                  "is reloaded and upgraded in place, and is uninstalled without a trace", "docs/service.md"),
    "test-month": ("a host goes on without its controller for the lifetime of its authority, thirty of a certificate's",
                   "docs/certificates.md"),
    "test-release": ("the same commit gives the same bytes; programs are static and within their sizes, and packages are whole",
                     "docs/install.md"),
    "test-released": ("programs as a release has them serve in sidecars and meshes", "docs/machines.md"),
    "test-smoke": ("programs of armv7 (32 bits) and riscv64 pass the tests inside crates, and serve in whole meshes",
                   "docs/machines.md"),
    "test-arm64": ("programs of arm64 pass the tests of one host, but for what qemu cannot run", "docs/machines.md"),
    "fuzz": ("no input from the network makes a parser panic", "SECURITY.md"),
    "docs": ("the documentation's books have no dead link and ask no other host for anything", "CONTRIBUTING.md"),
    "test-stress": ("no test is flaky", "CONTRIBUTING.md"),
}


def smoke():
    """The tests of a cluster that CI runs, as tests/kube/run.sh has them."""
    script = (ROOT / "tests/kube/run.sh").read_text()
    return re.search(r"^smoke=\((.*?)\)", script, re.MULTILINE | re.DOTALL)[1].split()
