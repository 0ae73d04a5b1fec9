"""A throw-away CA and SPIFFE certificates (ECDSA P-256), made with openssl."""

import os
import subprocess

TRUST_DOMAIN = "tulle.local"


def spiffe(name):
    return f"spiffe://{TRUST_DOMAIN}/svc/{name}"


def _openssl(*arguments):
    done = subprocess.run(("openssl", *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"openssl {' '.join(arguments)} failed:\n{done.stderr}")


def make(directory, names):
    """Writes ca.crt and, for each name, NAME.crt and NAME.key (PKCS#8) into the directory."""
    path = lambda name: os.path.join(directory, name)
    old = os.umask(0o077)
    try:
        key = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        _openssl(*key, "-out", path("ca.key"))
        _openssl(
            "req", "-x509", "-new", "-key", path("ca.key"), "-days", "2", "-subj", "/CN=first-figure CA",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-addext", f"subjectAltName=URI:spiffe://{TRUST_DOMAIN}",
            "-out", path("ca.crt"),
        )
        for name in names:
            _openssl(*key, "-out", path(f"{name}.key"))
            _openssl("req", "-new", "-key", path(f"{name}.key"), "-subj", f"/CN={name}", "-out", path(f"{name}.csr"))
            with open(path(f"{name}.ext"), "w") as extensions:
                extensions.write(
                    "basicConstraints=critical,CA:FALSE\n"
                    "keyUsage=critical,digitalSignature\n"
                    "extendedKeyUsage=serverAuth,clientAuth\n"
                    f"subjectAltName=URI:{spiffe(name)}\n"
                )
            _openssl(
                "x509", "-req", "-in", path(f"{name}.csr"), "-CA", path("ca.crt"), "-CAkey", path("ca.key"),
                "-CAcreateserial", "-days", "1", "-extfile", path(f"{name}.ext"), "-out", path(f"{name}.crt"),
            )
    finally:
        os.umask(old)
